"""Triton's interpreter computes some numbers otherwise than a GPU does; here it is put right, so that no kernel needs
a branch for its tests. Knows no kernel.

As of triton 3.9 it cuts float32 off on the way to bfloat16 instead of rounding, loses the carry where rounding to
float8 reaches the next power of two, and takes the bits of a bfloat16 for an integer in products and in casts from
integers.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch


def repair() -> None:
    """Put the interpreter right, for the whole process. Does nothing where kernels are compiled."""
    if find_spec("triton") is None:
        return
    from triton import knobs

    if knobs.runtime.interpret:
        _repair_numbers()
        _repair_patches()


def _repair_numbers() -> None:
    from triton import language
    from triton.runtime import interpreter

    types = {
        language.float8e4nv: torch.float8_e4m3fn,
        language.float8e5: torch.float8_e5m2,
        language.bfloat16: torch.bfloat16,
        language.float16: torch.float16,
        language.float32: torch.float32,
        language.float64: torch.float64,
    }

    def convert(bits: Any, source: Any, target: Any, rounding: Any) -> Any:
        """Numbers of one float type → the bits of another, rounded to nearest even; float8 stops at its largest."""
        wide = widen(bits, source)
        if target in (language.float8e4nv, language.float8e5):
            largest = torch.finfo(types[target]).max
            wide = wide.clamp(-largest, largest)
        width = target.primitive_bitwidth // 8
        return wide.to(types[target]).view(getattr(torch, f"uint{width * 8}")).numpy().reshape(bits.shape)

    def widen(bits: Any, source: Any) -> torch.Tensor:
        flat = torch.from_numpy(np.ascontiguousarray(bits).reshape(-1).view(np.uint8))
        wide = flat.view(types[source])
        return wide if source == language.float64 else wide.float()

    def operand(handle: Any) -> Any:
        if handle.dtype in (language.bfloat16, language.float8e4nv, language.float8e5):
            return widen(handle.data, handle.dtype).numpy().reshape(handle.data.shape)
        return handle.data

    def dot(self: Any, a: Any, b: Any, acc: Any, precision: Any, imprecise: Any) -> Any:
        left, right = operand(a), operand(b)
        if left.dtype.kind == "f":  # not by BLAS, whose rows depend on their place
            product = np.einsum("...mk,...kn->...mn", left, right, dtype=acc.data.dtype)
        else:
            product = np.matmul(left, right, dtype=acc.data.dtype)
        return interpreter.TensorHandle(product + acc.data, acc.dtype.scalar)

    plain_cast = interpreter.InterpreterBuilder.cast_impl

    def cast(self: Any, source: Any, target: Any) -> Any:
        of = source.dtype.scalar
        if language.bfloat16 in (of, target.scalar) and of.is_floating() != target.scalar.is_floating():
            source = plain_cast(self, source, language.float32)
        return plain_cast(self, source, target)

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpreterBuilder.cast_impl = cast


def _repair_patches() -> None:
    """The language is patched once a launch, not at every call of a function, which takes most of the time."""
    from triton import language
    from triton.runtime import interpreter

    patch_for = interpreter._patch_lang

    class Patches(list[Any]):
        def restore(self) -> None:
            for scope in reversed(self):
                scope.restore()

    def patch(kernel: Any) -> Patches:
        """For a launch: what the kernel sees, and what functions of the library see that it calls."""
        return Patches([patch_for(kernel), patch_for(language.standard.zeros.fn)])

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    interpreter._patch_lang = patch
    interpreter.InterpretedFunction.__call__ = call
