"""How far native kernels are from the reference on a text: perplexity, divergence and the best token.

Knows models and back ends; nothing of servers or requests. Wants torch, so only what measures inside one process
imports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.cpu.library import Library, usable
from ...kernels.cpu.linear import NativeLinear, Packed, Storage
from ...kernels.reference.linear import PackedLinear
from ...kernels.reference.ops import ReferenceOps
from ...kernels.registry import load_ops
from ...kernels.table import AttentionRow, Blocks
from ...types import PAGE
from ..models.base import Batch, Model
from ..models.registry import load_model
from ..models.source import ModelFolder

_CHUNK = 128  # positions whose logits of all models are in memory at once


class Format(NamedTuple):
    """What a native model keeps: its matrices, and its cache of keys and values."""

    weights: Storage
    kv: torch.dtype


class RoundedOps(ReferenceOps):
    """The reference on the weights that native kernels would hold: packed, unpacked, then float32."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._packing = NativeLinear(Library(usable()[0], 1), storage)

    def pack_linear(self, weight: Tensor | Sequence[Blocks], bias: Tensor | None = None) -> PackedLinear:
        assert isinstance(weight, Tensor), "this back end keeps no blocks"
        return super().pack_linear(self._rounded(weight, self._packing.pack(weight)), bias)

    def pack_embedding(self, weight: Tensor | Blocks) -> Tensor:
        assert isinstance(weight, Tensor), "this back end keeps no blocks"
        return self._rounded(weight, self._packing.pack_table(weight))

    def _rounded(self, weight: Tensor, packed: Packed) -> Tensor:
        return self._packing.lookup(torch.arange(len(weight)), packed)


def native_model(folder: ModelFolder, weights: Storage, threads: int) -> Model:
    """`folder` is what `source.resolve` returned for "stored"."""
    ops = load_ops("native", threads=threads, storage=weights)
    return load_model(folder, torch.float32, ops, stored=weights == "stored")


def same_weights(folder: ModelFolder, weights: Storage) -> Model:
    """The reference in float32 on what `native_model` holds for `weights`; "stored" is the file, dequantized."""
    ops = ReferenceOps() if weights in ("stored", "float32") else RoundedOps(weights)
    return load_model(folder, torch.float32, ops)


@dataclass(slots=True)
class Reading:
    """Sums over the tokens that were predicted, in nats. The base is the reference on the same weights."""

    tokens: int = 0
    loss: float = 0.0
    base_loss: float = 0.0
    file_loss: float = 0.0  # of the reference on the file's own weights
    square: float = 0.0  # of the difference between loss and base's loss
    divergence: float = 0.0
    same_best: int = 0

    def add(self, model: Tensor, base: Tensor, file: Tensor, targets: Tensor) -> None:
        """Log-probabilities [n, V] of all three, and the tokens [n] that followed. Overwrites `model`."""
        mine, theirs, own = (-x.gather(1, targets[:, None])[:, 0].double() for x in (model, base, file))
        self.tokens += len(targets)
        self.loss += float(mine.sum())
        self.base_loss += float(theirs.sum())
        self.file_loss += float(own.sum())
        self.square += float((mine - theirs).square().sum())
        self.same_best += int((base.argmax(1) == model.argmax(1)).sum())
        self.divergence += float(torch.sub(base, model, out=model).mul_(base.exp()).sum(1, dtype=torch.float64).sum())

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.tokens)

    @property
    def base_perplexity(self) -> float:
        return math.exp(self.base_loss / self.tokens)

    @property
    def file_perplexity(self) -> float:
        return math.exp(self.file_loss / self.tokens)

    @property
    def excess(self) -> float:
        """Perplexity over the base's, less one."""
        return math.expm1((self.loss - self.base_loss) / self.tokens)

    @property
    def excess_error(self) -> float:
        """The standard error of `excess`, as if tokens were independent."""
        mean = (self.loss - self.base_loss) / self.tokens
        return math.sqrt(max(self.square / self.tokens - mean * mean, 0.0) / self.tokens)

    @property
    def excess_over_file(self) -> float:
        """Perplexity over that of the file's own weights, less one."""
        return math.expm1((self.loss - self.file_loss) / self.tokens)

    @property
    def mean_divergence(self) -> float:
        """Kullback-Leibler divergence of the model from the base, nats a token."""
        return self.divergence / self.tokens

    @property
    def agreement(self) -> float:
        """The share of places where model and base hold the same token for the most likely."""
        return self.same_best / self.tokens


@torch.inference_mode()
def compare(
    folder: ModelFolder,
    formats: Sequence[Format],
    windows: Sequence[Sequence[int]],
    threads: int,
    on_window: Callable[[dict[Format, Reading]], None] = lambda readings: None,
) -> dict[Format, Reading]:
    """Every model reads every window from an empty cache; of a window's tokens, all but the first are predicted.

    `threads` is for the native models. `on_window` is told the sums so far after each window.
    """
    kinds = list(dict.fromkeys(item.weights for item in formats))
    natives = {kind: native_model(folder, kind, threads) for kind in kinds}
    file = same_weights(folder, "float32")
    bases = {kind: file if kind in ("stored", "float32") else same_weights(folder, kind) for kind in kinds}
    found = {item: Reading() for item in formats}
    for window in windows:
        states_of_file = hidden_states(file, window, torch.float32)
        states_of_base = {
            kind: states_of_file if base is file else hidden_states(base, window, torch.float32)
            for kind, base in bases.items()
        }
        states = {item: hidden_states(natives[item.weights], window, item.kv) for item in formats}
        for places, targets in _chunks(window):
            of_file = _log_probabilities(file, states_of_file[places])
            for kind, base in bases.items():
                of_base = of_file if base is file else _log_probabilities(base, states_of_base[kind][places])
                for item in formats:
                    if item.weights == kind:
                        mine = _log_probabilities(natives[kind], states[item][places])
                        found[item].add(mine, of_base, of_file, targets)
        on_window(found)
    return found


def hidden_states(model: Model, tokens: Sequence[int], kv_dtype: torch.dtype) -> Tensor:
    """[T, D], from an empty cache."""
    count, shape, ops = len(tokens), model.shape, model.ops
    pages = -(-count // PAGE)
    kv = ops.make_kv(shape.layers, shape.kv_heads, pages, shape.head_dim, kv_dtype)
    plan = ops.plan_attention([AttentionRow(0, count, list(range(pages)))], torch.device("cpu"))
    places = torch.arange(count)
    return model.forward(Batch(torch.tensor(tokens), places, places, plan), kv)


def cut(tokens: Sequence[int], size: int) -> list[Sequence[int]]:
    """Windows of `size` tokens, one after another; a last one that would be shorter is left out."""
    return [tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size)]


def _chunks(window: Sequence[int]) -> Iterator[tuple[slice, Tensor]]:
    """Places, and what follows each."""
    for at in range(0, len(window) - 1, _CHUNK):
        stop = min(at + _CHUNK, len(window) - 1)
        yield slice(at, stop), torch.tensor(window[at + 1 : stop + 1])


def _log_probabilities(model: Model, hidden: Tensor) -> Tensor:
    return model.logits(hidden).log_softmax(1)
