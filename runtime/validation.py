"""What a request may ask for, checked by the engine whoever asks: a server route, or a program.

Knows nothing of HTTP. The server checks the shapes of its own messages before this.
"""

from __future__ import annotations

import math

from ..errors import InvalidParameter
from ..types import LONGEST_STOP, MOST_STOPS, SAMPLING_RANGES, SamplingParams


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise `InvalidParameter`, naming the field, for a value that no sampler could honour."""
    for name, allowed in SAMPLING_RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not allowed.holds(value):
            raise InvalidParameter(f"{name} is {value}; it must be {allowed}", name)
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocab_size:
            raise InvalidParameter(f"logit_bias names the token {token}; ids go up to {vocab_size - 1}", "logit_bias")
        if math.isnan(bias):
            raise InvalidParameter(f"the bias of token {token} is not a number", "logit_bias")
    if not all(0 <= token < vocab_size for token in sampling.stop_token_ids):
        raise InvalidParameter(f"stop_token_ids go up to {vocab_size - 1}", "stop_token_ids")
    if len(sampling.stop) > MOST_STOPS or any(not 1 <= len(stop) <= LONGEST_STOP for stop in sampling.stop):
        raise InvalidParameter(f"at most {MOST_STOPS} stop strings of 1 to {LONGEST_STOP} bytes", "stop")
