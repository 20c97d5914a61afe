"""A draft that reads the target's last hidden state: one gated layer, a head over frequent tokens, no keys or values.

After Wertheimer et al., "Accelerating Production LLMs with Combined Token/Embedding Speculators" (arXiv 2404.19124),
with EAGLE's aim (Li et al., arXiv 2401.15077): the state after a step stands for the hidden state that the target would
have, so every step has the same weights. With r = the state, e = embedding of the token that came last, rms(y) = y over
its root mean square:

    a, b, c = split(mix · [r; e])        r' = rms(c + down · (silu(a) · b))        logits = head · r'

r begins as the target's hidden state / scale. The rare tokens share one embedding and have no logit.

Inference only. Knows tensors, files and the op table; nothing of sequences, or of who verifies.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import ModelLoadError
from ..kernels.registry import known_ops, load_ops
from ..kernels.table import Blocks, Ops

FORMAT = "bosquet-speculator-1"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
EPS = 1e-6
_BLOCK = 32  # of Q8_0


class Target(NamedTuple):
    """What a speculator is made for: `vocabulary` is a digest of what every token stands for, `hidden` the width of the
    hidden state."""

    vocabulary: str
    hidden: int

    @classmethod
    def of(cls, token_bytes: Sequence[bytes], hidden: int) -> Target:
        digest = hashlib.sha256()
        for token in token_bytes:
            digest.update(len(token).to_bytes(4, "little") + token)
        return cls(digest.hexdigest(), hidden)


class State(NamedTuple):
    """Of n rows: [n, D] float32."""

    r: Tensor


class Speculator:
    """`ids` [F] int64 are the tokens that columns of logits stand for, rising. One thread at a time may call."""

    def __init__(self, weights: dict[str, Tensor], ops: Ops) -> None:
        """`weights` by the names of `shapes`, and "ids", in any float type."""
        self.ids = weights["ids"]
        self._ops = ops
        self._rare = len(self.ids)
        self._row_of = {token: row for row, token in enumerate(self.ids.tolist())}
        self._inverse = 1 / weights["scale"].float()
        self._embedding = weights["embedding"].to(torch.bfloat16)
        self._mix, self._down, self._head = (_pack(ops, weights[name]) for name in ("mix", "down", "head"))
        self._inner = weights["down"].shape[1]
        self._ones = torch.ones_like(self._inverse)

    @classmethod
    def load(cls, folder: Path, target: Target | None = None, ops: Ops | None = None) -> Speculator:
        """Raises `ModelLoadError` for a folder that holds no speculator, a damaged one, or one that was made for
        another model than `target`. `ops` None: the best kernels here, with threads of their own."""
        config, weights = _read(folder)
        made_for = Target(config["target"]["vocabulary"], config["target"]["hidden"])
        if target is not None and target != made_for:
            width = f"hidden states of {made_for.hidden} numbers, and the model's have {target.hidden}"
            why = width if made_for.hidden != target.hidden else "another vocabulary than the model's"
            name = config["target"]["name"]
            raise ModelLoadError(f"{folder}: this draft was trained for {name!r}, for {why}; train one for this model")
        return cls(weights, ops or load_ops(known_ops()[0]))

    def begin(self, hidden: Tensor, tokens: Sequence[int]) -> tuple[State, Tensor]:
        """The token after `tokens`, the newest of n rows, each drawn from the logits of the target's hidden state
        [n, D]. Returns the state and logits [n, F] float32."""
        with torch.inference_mode():
            return self._advance(hidden.float() * self._inverse, tokens)

    def step(self, state: State, which: Sequence[int], tokens: Sequence[int]) -> tuple[State, Tensor]:
        """The same one token further, for the rows `which` of the state, of which each goes on with its token."""
        with torch.inference_mode():
            r = state.r
            if len(which) != len(r) or any(row != i for i, row in enumerate(which)):
                r = r[torch.tensor(which, dtype=torch.int64)]
            return self._advance(r, tokens)

    def _advance(self, r: Tensor, tokens: Sequence[int]) -> tuple[State, Tensor]:
        rows = [self._row_of.get(token, self._rare) for token in tokens]
        at = rows[0]
        e = self._embedding[at : at + 1] if len(rows) == 1 else self._embedding[torch.tensor(rows, dtype=torch.int64)]
        mixed = self._ops.linear(torch.cat((r, e.float()), 1), self._mix)
        gated = self._ops.silu_mul(mixed[:, : 2 * self._inner])
        inner = self._ops.linear(gated, self._down)
        r, _ = self._ops.add_rms_norm(inner, mixed[:, 2 * self._inner :], self._ones, EPS)
        return State(r), self._ops.linear(r, self._head)


def is_speculator(folder: Path) -> bool:
    """Whether the folder says that it holds one."""
    try:
        return str(json.loads((folder / CONFIG).read_bytes()).get("format", "")).startswith("bosquet-speculator")
    except (OSError, ValueError, AttributeError):
        return False


def shapes(tokens: int, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Of all float weights by name."""
    return {
        "scale": (hidden,),
        "embedding": (tokens + 1, hidden),  # the last one is that of every rare token
        "mix": (2 * inner + hidden, 2 * hidden),
        "down": (hidden, inner),
        "head": (tokens, hidden),
    }


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        if config.get("format") != FORMAT:
            raise ModelLoadError(f"{folder}: not a draft of this version; its format is {config.get('format')!r}")
        weights = load_file(folder / WEIGHTS)
        hidden, tokens, inner = config["target"]["hidden"], config["tokens"], config["inner"]
        expected = {"ids": (tokens,), **shapes(tokens, hidden, inner)}
        str(config["target"]["vocabulary"]), str(config["target"]["name"])
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelLoadError(f"{folder}: no draft can be read here: {error}") from None
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{folder / CONFIG}: damaged ({type(error).__name__}: {error})") from None
    if (found := {name: tuple(tensor.shape) for name, tensor in weights.items()}) != expected:
        raise ModelLoadError(f"{folder / WEIGHTS}: holds {found}; {CONFIG} promises {expected}")
    ids = weights["ids"].tolist()
    if weights["ids"].is_floating_point() or ids[:1] < [0] or any(a >= b for a, b in itertools.pairwise(ids)):
        raise ModelLoadError(f"{folder / WEIGHTS}: its token ids do not rise from 0 or more")
    if broken := [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]:
        raise ModelLoadError(f"{folder / WEIGHTS}: {broken[0]} holds what is no number")
    return config, weights


def _pack(ops: Ops, weight: Tensor) -> Any:
    """In eight bits where kernels take blocks of them: a step reads every weight, and at one row that is its time."""
    return ops.pack_linear([_q8(weight)] if ops.keeps_blocks and weight.shape[1] % _BLOCK == 0 else weight.float())


def _q8(weight: Tensor) -> Blocks:
    """GGUF's Q8_0: a float16 scale and 32 numbers of eight bits, block by block."""
    outs, width = weight.shape
    blocks = weight.float().numpy().reshape(outs, width // _BLOCK, _BLOCK)
    scales = (np.abs(blocks).max(2, keepdims=True) / 127).astype(np.float16)
    steps = np.where(scales == 0, 1, scales).astype(np.float32)
    numbers = np.clip(np.rint(blocks / steps), -127, 127).astype(np.int8)
    rows = np.concatenate((scales.view(np.uint8), numbers.view(np.uint8)), 2)
    return Blocks("Q8_0", rows.reshape(outs, -1), width)
