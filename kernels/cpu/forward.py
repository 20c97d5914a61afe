"""A whole decoder in one call of the native library. Knows no model family: a `StackSpec` says what there is."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..table import LayerSpec, StackSpec
from .attention import AttentionPlan, KvStore
from .library import Library
from .linear import ACTIVATIONS, Packed

STAGES = ("embedding", "qkv", "rotary", "attention", "out", "norm", "gate and up", "down", "quantize")
"""What a pass spends its time on, in the order of native/forward.cpp."""

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Layer(ctypes.Structure):
    """As LayerSpec in native/forward.cpp."""

    _fields_ = (
        ("qkv", _POINTER * 3),
        ("q_norm", _POINTER),
        ("k_norm", _POINTER),
        ("out", _POINTER),
        ("out_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("gate_up", _POINTER * 2),
        ("down", _POINTER),
        ("down_norm", _POINTER),
        ("next_norm", _POINTER),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("window", _LONG),
    )


class _Stack(ctypes.Structure):
    """As StackSpec in native/forward.cpp."""

    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        ("count", _LONG),
        ("hidden", _LONG),
        ("heads", _LONG),
        ("kv_heads", _LONG),
        ("head_dim", _LONG),
        ("activation", _LONG),
        ("embedding", _POINTER),
        ("first_norm", _POINTER),
        ("eps", _FLOAT),
        ("scale", _FLOAT),
        ("embed_scale", _FLOAT),
    )


class NativeStack:
    """See `table.Stack`. Holds all that the native side points to."""

    def __init__(self, library: Library, spec: StackSpec) -> None:
        self._library = library
        self._spec = spec
        self._kept: list[Any] = [spec]
        functions = library.functions
        functions.bosquet_stack_create.restype = _POINTER
        functions.bosquet_stack_create.argtypes = (ctypes.POINTER(_Stack),)
        functions.bosquet_stack_destroy.restype = None
        functions.bosquet_stack_destroy.argtypes = (_POINTER,)
        functions.bosquet_stack_profile.restype = None
        functions.bosquet_stack_profile.argtypes = (_POINTER, ctypes.POINTER(ctypes.c_double))
        functions.bosquet_forward.restype = None
        functions.bosquet_forward.argtypes = (*(_POINTER,) * 7, _LONG, _POINTER)
        layers = (_Layer * len(spec.layers))(*(self._layer(layer) for layer in spec.layers))
        (embedding,) = spec.embedding.parts
        self._hidden = embedding.width
        self._vocabulary = embedding.outs
        stack = _Stack(
            layers,
            len(spec.layers),
            self._hidden,
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
            ACTIVATIONS[spec.activation],
            embedding.handle,
            self._floats(spec.first_norm),
            spec.eps,
            spec.scale,
            spec.embed_scale,
        )
        self._handle = functions.bosquet_stack_create(stack)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._library.functions.bosquet_stack_destroy(self._handle)

    def __call__(self, tokens: Tensor, positions: Tensor, slots: Tensor, plan: AttentionPlan, kv: KvStore) -> Tensor:
        count = len(tokens)
        hidden = torch.empty(count, self._hidden)
        if not count:
            return hidden
        assert plan.tokens == len(positions) == len(slots) == count
        assert kv.layers == len(self._spec.layers)
        assert plan.highest_page < kv.pages
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocabulary, "a token outside the vocabulary"
        self._library.functions.bosquet_forward(
            self._library.handle,
            self._handle,
            kv.handle,
            plan.handle,
            tokens.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            count,
            hidden.data_ptr(),
        )
        return hidden

    def profile(self) -> dict[str, float]:
        """Seconds that all passes so far have spent on each stage."""
        seconds = (ctypes.c_double * len(STAGES))()
        self._library.functions.bosquet_stack_profile(self._handle, seconds)
        return dict(zip(STAGES, seconds, strict=True))

    def _layer(self, layer: LayerSpec) -> _Layer:
        return _Layer(
            (_POINTER * 3)(*_handles(layer.qkv, 3)),
            self._floats(layer.q_norm),
            self._floats(layer.k_norm),
            *_handles(layer.out, 1),
            self._floats(layer.out_norm),
            self._floats(layer.mlp_norm),
            (_POINTER * 2)(*_handles(layer.gate_up, 2)),
            *_handles(layer.down, 1),
            self._floats(layer.down_norm),
            self._floats(layer.next_norm),
            self._floats(layer.cos),
            self._floats(layer.sin),
            layer.window or 0,
        )

    def _floats(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        own = tensor.detach().to(torch.float32).contiguous()
        self._kept.append(own)
        return own.data_ptr()


def _handles(weight: Packed, most: int) -> Sequence[int | None]:
    assert len(weight.parts) <= most, f"{len(weight.parts)} parts where {most} fit"
    handles: list[int | None] = [part.handle for part in weight.parts]
    return handles + [None] * (most - len(handles))
