"""Takes tensors by name, checked, converted and packed, one at a time.

Knows nothing of layers, or of the files that tensors come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from ...errors import ModelLoadError
from ...kernels.table import Blocks, Ops
from .source import ModelFolder, Progress, no_progress
from .tensors import Tensors, open_tensors


class Weights:
    """The tensors of one model. Use as a context manager; `finish` says whether all were understood.

    `dtype` is the type of vectors and of what the model computes. Matrices come in it too, unless `stored`: then they
    stay in the type of the file, and in its blocks where the back end keeps blocks.
    """

    def __init__(
        self, folder: ModelFolder, dtype: torch.dtype, ops: Ops, progress: Progress = no_progress, stored: bool = False
    ) -> None:
        self.folder = folder
        self.dtype = dtype
        self.ops = ops
        self._stored = stored
        self._progress = progress
        self._stack = ExitStack()
        self._tensors: Tensors
        self._names: dict[str, str] = {}  # name here → name in the files
        self._left: set[str] = set()
        self._done = 0

    def __enter__(self) -> Self:
        try:
            self._tensors = open_tensors(self.folder, self._stack)
        except BaseException:
            self._stack.close()
            raise
        self._names = {name: name for name in self._tensors.names()}
        self._left = set(self._names)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._names.clear()
        del self._tensors
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def rename_start(self, old: str, new: str) -> None:
        """Give every tensor whose name begins with `old` a name that begins with `new` instead."""
        self._names = {
            new + name.removeprefix(old) if name.startswith(old) else name: stored
            for name, stored in self._names.items()
        }
        self._left = set(self._names)

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor in `dtype`, or else the model's type. Raises `ModelLoadError`: missing, wrong shape or type."""
        return self._read(name, shape).to(dtype or self.dtype)

    def matrix(self, name: str, shape: Sequence[int]) -> Tensor:
        """A matrix, or several of one shape, to be packed: in the model's type, or as it is stored."""
        tensor = self._read(name, shape)
        if self._stored:
            return tensor.float() if tensor.dtype == torch.float64 else tensor
        return tensor.to(self.dtype)

    def skip(self, name: str) -> None:
        """A tensor that the model has and does not need."""
        self._left.discard(name)

    def linear(self, names: Sequence[str], outs: Sequence[int], width: int, bias: bool = False) -> Any:
        """The weights `name.weight` [out, width], stacked and packed for `ops.linear`; with `bias` the biases too."""
        shapes = [(out, width) for out in outs]
        biases = None
        if bias:
            biases = torch.cat([self.take(f"{name}.bias", (out,)) for name, out in zip(names, outs, strict=True)])
        matrices = [f"{name}.weight" for name in names]
        if self._stored and self.ops.keeps_blocks:
            blocks = [self._blocks(name, shape) for name, shape in zip(matrices, shapes, strict=True)]
            kept = [part for part in blocks if part is not None]
            if len(kept) == len(blocks):
                return self.ops.pack_linear(kept, biases)
        parts = [self.matrix(name, shape) for name, shape in zip(matrices, shapes, strict=True)]
        return self.ops.pack_linear(parts[0] if len(parts) == 1 else torch.cat(parts), biases)

    def table(self, name: str, rows: int, width: int) -> Any:
        """An embedding or an output head, with a row for each token: [rows, width], packed for `ops.embedding`."""
        blocks = self._blocks(name, (rows, width)) if self._stored and self.ops.keeps_blocks else None
        return self.ops.pack_embedding(self.matrix(name, (rows, width)) if blocks is None else blocks)

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """Refuse tensors that were not taken: the model has a part that this family does not compute.

        `ignored` are beginnings of names. Rotary tables, which old checkpoints carry, are always ignored.
        """
        self._progress(f"Loading {self.folder.name}", self._tensors.total, self._tensors.total)
        extra = {n for n in self._left if not n.endswith("rotary_emb.inv_freq") and not n.startswith(tuple(ignored))}
        if extra:
            path = self._tensors.where(self._names[min(extra)])
            kind = self.folder.config.get("model_type")
            raise ModelLoadError(f"{path}: tensor '{min(extra)}' is not part of a {kind} model as it is known here")

    def _read(self, name: str, shape: Sequence[int]) -> Tensor:
        self._check(name, shape)
        tensor = self._tensors.read(self._names[name])
        self._count(tensor.nbytes)
        return tensor

    def _blocks(self, name: str, shape: Sequence[int]) -> Blocks | None:
        self._check(name, shape)
        blocks = self._tensors.blocks(self._names[name])
        if blocks is not None:
            self._count(blocks.rows.nbytes)
        return blocks

    def _check(self, name: str, shape: Sequence[int]) -> None:
        if name not in self._names:
            raise ModelLoadError(f"{self.folder.path}: tensor '{name}' is missing")
        stored = self._names[name]
        found = self._tensors.shape(stored)
        if found != tuple(shape):
            path = self._tensors.where(stored)
            raise ModelLoadError(f"{path}: tensor '{name}' has the shape {list(found)}; expected {list(shape)}")
        self._left.discard(name)

    def _count(self, read: int) -> None:
        self._done += read
        self._progress(f"Loading {self.folder.name}", self._done, self._tensors.total)
