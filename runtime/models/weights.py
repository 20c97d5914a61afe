"""Takes tensors by name out of safetensors files, checked and converted, one at a time.

Knows nothing of layers. The files are mapped; what is taken is a copy, so nothing refers to them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import ModelLoadError
from ...kernels.table import Ops
from .source import ModelFolder, Progress, no_progress

_FLOATS = {"F64", "F32", "F16", "BF16"}


class Weights:
    """The tensors of one model. Use as a context manager; `finish` says whether all were understood."""

    def __init__(self, folder: ModelFolder, dtype: torch.dtype, ops: Ops, progress: Progress = no_progress) -> None:
        self.folder = folder
        self.dtype = dtype
        self.ops = ops
        self._progress = progress
        self._stack = ExitStack()
        self._files: dict[str, tuple[Path, Any, str]] = {}  # name → file, open file, name in the file
        self._left: set[str] = set()
        self._total = sum(path.stat().st_size for path in folder.weights)
        self._done = 0

    def __enter__(self) -> Self:
        for path in self.folder.weights:
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise ModelLoadError(f"{path}: truncated or damaged safetensors file ({error})") from None
            self._files.update({name: (path, file, name) for name in file.keys()})  # noqa: SIM118
        self._left = set(self._files)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._files.clear()
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def rename_start(self, old: str, new: str) -> None:
        """Give every tensor whose name begins with `old` a name that begins with `new` instead."""
        self._files = {
            new + name.removeprefix(old) if name.startswith(old) else name: entry for name, entry in self._files.items()
        }
        self._left = set(self._files)

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor in `dtype`, or else the model's type. Raises `ModelLoadError`: missing, wrong shape or type."""
        return self.take_stacked([name], [shape], dtype)

    def take_stacked(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]], dtype: torch.dtype | None = None
    ) -> Tensor:
        """Several tensors as one, along the first axis."""
        stacked = torch.empty((sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype=dtype or self.dtype)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            stacked[start : start + shape[0]] = self._read(name, shape)
            start += shape[0]
        return stacked

    def linear(self, names: Sequence[str], outs: Sequence[int], width: int, bias: bool = False) -> Any:
        """The weights `name.weight` [out, width], stacked and packed for `ops.linear`; with `bias` the biases too."""
        weight = self.take_stacked([f"{name}.weight" for name in names], [(out, width) for out in outs])
        biases = self.take_stacked([f"{name}.bias" for name in names], [(out,) for out in outs]) if bias else None
        return self.ops.pack_linear(weight, biases)

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """Refuse tensors that were not taken: the model has a part that this family does not compute.

        `ignored` are beginnings of names. Rotary tables, which old checkpoints carry, are always ignored.
        """
        self._progress(f"Loading {self.folder.name}", self._total, self._total)
        extra = {n for n in self._left if not n.endswith("rotary_emb.inv_freq") and not n.startswith(tuple(ignored))}
        if extra:
            path = self._files[min(extra)][0]
            kind = self.folder.config.get("model_type")
            raise ModelLoadError(f"{path}: tensor '{min(extra)}' is not part of a {kind} model as it is known here")

    def _read(self, name: str, shape: Sequence[int]) -> Tensor:
        if name not in self._files:
            raise ModelLoadError(f"{self.folder.path}: tensor '{name}' is missing")
        path, file, stored = self._files[name]
        part = file.get_slice(stored)
        if part.get_dtype() not in _FLOATS:
            raise ModelLoadError(
                f"{path}: tensor '{name}' has the type {part.get_dtype()}, which is not supported; "
                f"expected {', '.join(sorted(_FLOATS))}"
            )
        if part.get_shape() != list(shape):
            raise ModelLoadError(f"{path}: tensor '{name}' has the shape {part.get_shape()}; expected {list(shape)}")
        self._left.discard(name)
        tensor: Tensor = file.get_tensor(stored)
        self._done += tensor.nbytes
        self._progress(f"Loading {self.folder.name}", self._done, self._total)
        return tensor
