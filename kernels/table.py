"""The table of operations: one signature each, whatever the device.

Knows nothing of requests, models or the cache's tree: page numbers, slots and tensors only.

Names of sizes used below: T tokens in the pass, D model width, H query heads, K key-value heads, d head size, V width
of the output head, P pages of the pool, S = 16 slots a page, R rows. Slot s of page p has the number 16·p + s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PAGE = 16

Bytes = npt.NDArray[np.uint8]


class AttentionRow(NamedTuple):
    """One sequence in a pass: `length` query tokens at positions start … start + length - 1 over `pages`.

    Query i sees the keys at positions 0 … start + i; with `parents`, only its ancestors among the pass's own tokens.
    `parents[i]` < i is the index of token i's parent, negative for a root. Token i lies in the slot of position
    start + i all the same, but its position, for rotary and windows, is start + its depth (0 for a root).
    """

    start: int
    length: int
    pages: Sequence[int]
    parents: Sequence[int] | None = None


class Blocks(NamedTuple):
    """A weight [out, in] as a GGUF file stores it: `rows` [out, bytes of a row] in blocks of type `kind`."""

    kind: str
    rows: npt.NDArray[np.uint8]
    width: int


class Masks(NamedTuple):
    """Which tokens some rows of a pass may draw: row `rows[i]` those whose bit is set in `bits[i]`, other rows any.

    bits [n, ceil(V/32)] int32, bit v % 32 of word v // 32 for token v; rows [n] int64, each named once.
    """

    bits: Tensor
    rows: Tensor


class Best(NamedTuple):
    """The largest logit of each row [R], of equal ones that of the lowest id."""

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class ExpertsSpec(NamedTuple):
    """A feed-forward layer of many experts, of which a router chooses `top_k` for each token; see `Ops.experts`."""

    router: Any  # from `pack_router`
    weights: Any  # from `pack_experts`
    top_k: int
    normalize: bool


class LayerSpec(NamedTuple):
    """One layer of a decoder. Weights are packed; a norm that the family lacks is None.

    `out_norm` and `down_norm` apply to what attention and feed-forward yield, before it is added to the residual;
    `next_norm` is the norm before the following layer, or the last norm. `cos` and `sin` are [positions, d/2] float32.
    A layer with `experts` has neither `gate_up` nor `down`: both are None.
    """

    qkv: Any
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Any
    out_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Any
    down: Any
    down_norm: Tensor | None
    next_norm: Tensor
    cos: Tensor
    sin: Tensor
    window: int | None
    experts: ExpertsSpec | None = None


class StackSpec(NamedTuple):
    """A decoder from token ids to hidden states: embedding · `embed_scale`, then the layers."""

    layers: Sequence[LayerSpec]
    heads: int
    kv_heads: int
    head_dim: int
    activation: Literal["silu", "gelu_tanh"]
    embedding: Any
    embed_scale: float
    first_norm: Tensor
    eps: float
    scale: float  # of queries times keys


class Stack(Protocol):
    """A whole decoder, ready to run."""

    def __call__(self, tokens: Tensor, positions: Tensor, slots: Tensor, plan: Any, kv: Any) -> Tensor:
        """Hidden states after the last norm, [T, D]. `tokens`, `positions` and `slots` are [T] int64; `plan` is from
        `plan_attention`. Writes the pass's keys and values to `kv`."""

    def profile(self) -> dict[str, float]:
        """Seconds that all passes so far have spent on each stage; empty where that is not counted."""


class Ops(Protocol):
    """What a back end offers. Tensors are on the back end's device; `x` is in the activation type."""

    name: str

    identity: str
    """What the bits of keys and values depend on, besides model, tokens and types: equal names promise equal bits."""

    keeps_blocks: bool
    """`pack_linear` takes `Blocks` and computes with them as they are, so that nothing is dequantized at load."""

    def pack_linear(self, weight: Tensor | Sequence[Blocks], bias: Tensor | None = None) -> Any:
        """Prepare a weight [out, in] once, at load; blocks of several types stand one below the other. The result is
        opaque and only `linear` and `head` read it."""

    def pack_embedding(self, weight: Tensor | Blocks) -> Any:
        """Prepare a table [V, D] of which rows are looked up."""

    def pack_router(self, weight: Tensor) -> Any:
        """Prepare a router's weight [E, D], for `linear`: never in less precision than it comes in, since a small error
        would choose other experts."""

    def pack_experts(self, gate_up: Sequence[Tensor], down: Sequence[Tensor]) -> Any:
        """Prepare the weights of E experts: [2·F, D] each, gates above what they multiply, and [D, F] each."""

    def as_head(self, embedding: Any) -> Any:
        """The weight for `head` that is the same as a packed embedding: a tied one, or a head packed as one."""

    def stack(self, spec: StackSpec) -> Stack:
        """A decoder that runs as one."""

    def linear(self, x: Tensor, weight: Any) -> Tensor:
        """[T, in] → [T, out]."""

    def embedding(self, ids: Tensor, weight: Any) -> Tensor:
        """ids [T] int64, weight from `pack_embedding` → [T, D]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last axis, statistics in float32: [..., D] → [..., D]."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """s = x + residual; returns (rms_norm(s), s). May overwrite `residual`."""

    def make_kv(self, layers: int, kv_heads: int, pages: int, head_dim: int, dtype: torch.dtype) -> Any:
        """Storage for the keys and values of `pages` pages. Opaque; its layout is the back end's own."""

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate halves (Hugging Face layout): q [T, H, d], k [T, K, d], cos and sin [T, d/2]."""

    def write_kv(self, kv: Any, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store k and v [T, K, d] at slot numbers `slots` [T] int64."""

    def plan_attention(self, rows: Sequence[AttentionRow], device: torch.device) -> Any:
        """What every layer of one pass shares: gathered indices, masks, groups. Opaque."""

    def attention(self, q: Tensor, kv: Any, layer: int, plan: Any, scale: float, window: int | None = None) -> Tensor:
        """Causal attention of ragged queries over page lists. q [T, H, d], rows in the plan's order → [T, H·d].
        `window` w: a query at position p sees only keys at positions > p - w."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2·F] → [T, F]: silu(first half) · second half."""

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2·F] → [T, F]: gelu_tanh(first half) · second half."""

    def experts(self, x: Tensor, router_logits: Tensor, weights: Any, top_k: int, normalize: bool) -> Tensor:
        """x [T, D], router_logits [T, E], weights from `pack_experts` → [T, D]: the sum over a token's `top_k` experts
        of down(silu_mul(gate_up · x)) times the expert's share in a softmax over all E, in float32; with `normalize`
        times its share among the chosen. Of equal logits the lower number is chosen. Computes E = 1 … 512."""

    def head(self, x: Tensor, weight: Any) -> Tensor:
        """Output head on chosen rows, weight from `as_head`: [R, D] → [R, V] float32, valid until the next call of this
        or `masked_head`."""

    def masked_head(self, x: Tensor, weight: Any, masks: Masks) -> Tensor:
        """`head`, then `apply_mask`, with the same bits; but what no row may draw need not be computed, so a grammar
        that allows few tokens pays for few."""

    def head_best(self) -> Best | None:
        """What the newest `head` or `masked_head` found on its way; None where it does not look for it."""

    def apply_mask(self, logits: Tensor, bits: Tensor, rows: Tensor) -> None:
        """Set logits[rows[i]] to -inf, in place, where bit v of bits[i] is 0; see `Masks`."""

    def copy_pages(self, kv: Any, copies: Sequence[tuple[int, int, int]]) -> None:
        """For each (src, dst, n): the first n slots of page src to page dst, in all layers."""

    def page_bytes(self, kv: Any) -> int:
        """How many bytes one page is in `read_pages`."""

    def read_pages(self, kv: Any, pages: Sequence[int]) -> Bytes:
        """All that these pages hold, in all layers, scales included: a copy, [n, page_bytes]. What the bytes mean is
        the back end's own business; `identity` and the storage's sizes and type say who else may take them."""

    def write_pages(self, kv: Any, pages: Sequence[int], data: Bytes) -> None:
        """Fill pages, each named once, with what `read_pages` gave: data [n, page_bytes]."""

    def move_slots(self, kv: Any, src: Tensor, dst: Tensor) -> None:
        """Copy slots src [n] to dst [n] in all layers, as if all were read before any is written (`kv_move`)."""
