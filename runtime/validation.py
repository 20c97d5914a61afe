"""Ranges of what a request may ask for, checked by the engine whoever asks: a server route, or a program.

Knows nothing of HTTP. The server checks the shapes of its own messages before this.
"""

from __future__ import annotations

import math

from ..errors import InvalidParameter
from ..types import SamplingParams

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 2**31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "repetition_penalty": (1e-3, 1e3),
    "min_tokens": (0, 2**31),
    "max_tokens": (0, 2**31),
    "n": (1, 128),
    "logprobs": (0, 1000),
    "prompt_logprobs": (0, 1000),
    "prompt_logprobs_from": (1, 2**31),
    "seed": (-(2**63), 2**64 - 1),
}
MOST_STOPS, LONGEST_STOP = 64, 4096


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise `InvalidParameter`, naming the field, for a value that no sampler could honour."""
    for name, (low, high) in RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise InvalidParameter(f"{name} is {value}; it must be from {low:g} to {high:g}", name)
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocab_size:
            raise InvalidParameter(f"logit_bias names the token {token}; ids go up to {vocab_size - 1}", "logit_bias")
        if math.isnan(bias):
            raise InvalidParameter(f"the bias of token {token} is not a number", "logit_bias")
    if not all(0 <= token < vocab_size for token in sampling.stop_token_ids):
        raise InvalidParameter(f"stop_token_ids go up to {vocab_size - 1}", "stop_token_ids")
    if len(sampling.stop) > MOST_STOPS or any(not 1 <= len(stop) <= LONGEST_STOP for stop in sampling.stop):
        raise InvalidParameter(f"at most {MOST_STOPS} stop strings of 1 to {LONGEST_STOP} bytes", "stop")
