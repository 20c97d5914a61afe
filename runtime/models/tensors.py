"""Where a model's tensors come from: safetensors files, or a GGUF file as it lies. By name in the Hugging Face layout.

Knows nothing of what the tensors mean, or of how they are packed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import ModelLoadError
from ...kernels.table import Blocks
from .gguf import read_gguf
from .gguf_config import hf_config
from .gguf_convert import placed, values_of
from .source import ModelFolder

_FLOATS = {"F64", "F32", "F16", "BF16"}


class Tensors(Protocol):
    """The tensors of one model. What is read is a copy, so nothing refers to the files afterwards."""

    total: int
    """Bytes of all of them, for a progress bar."""

    def names(self) -> Iterable[str]: ...

    def where(self, name: str) -> Path:
        """The file that holds it."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Tensor:
        """In the type that it is stored in; what is quantized comes as float32."""

    def blocks(self, name: str) -> Blocks | None:
        """A matrix as it is stored, where that is a block format."""


class SafetensorsTensors:
    """Mapped safetensors files. Raises `ModelLoadError` when one is damaged or holds other than floats."""

    def __init__(self, paths: Iterable[Path], stack: ExitStack) -> None:
        self._files: dict[str, tuple[Path, Any]] = {}
        self.total = 0
        for path in paths:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{path}: truncated or damaged safetensors file ({error})") from None
            self._files.update(dict.fromkeys(file.keys(), (path, file)))
            self.total += path.stat().st_size

    def names(self) -> Iterable[str]:
        return self._files

    def where(self, name: str) -> Path:
        return self._files[name][0]

    def shape(self, name: str) -> tuple[int, ...]:
        path, file = self._files[name]
        part = file.get_slice(name)
        if part.get_dtype() not in _FLOATS:
            raise ModelLoadError(
                f"{path}: tensor '{name}' has the type {part.get_dtype()}, which is not supported; "
                f"expected {', '.join(sorted(_FLOATS))}"
            )
        return tuple(part.get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name][1].get_tensor(name)
        return tensor.clone()  # what comes from the file is a view of its mapping

    def blocks(self, name: str) -> Blocks | None:
        return None


class GgufTensors:
    """A mapped GGUF file."""

    def __init__(self, path: Path) -> None:
        self._file = read_gguf(path)
        self._placed = placed(self._file, hf_config(self._file))
        self.total = sum(place.tensor.size for place in self._placed.values())

    def names(self) -> Iterable[str]:
        return self._placed

    def where(self, name: str) -> Path:
        return self._file.path

    def shape(self, name: str) -> tuple[int, ...]:
        return self._placed[name].tensor.shape

    def read(self, name: str) -> Tensor:
        place = self._placed[name]
        values = np.concatenate(list(values_of(self._file, place)))
        return torch.from_numpy(values.reshape(place.tensor.shape))

    def blocks(self, name: str) -> Blocks | None:
        tensor, order, less = self._placed[name]
        if len(tensor.shape) != 2 or less:
            return None
        rows = self._file.rows(tensor)
        return Blocks(tensor.kind, rows if order is None else rows[order], tensor.shape[1])


def open_tensors(folder: ModelFolder, stack: ExitStack) -> Tensors:
    """Those of a folder. Files that must stay open are closed by `stack`."""
    if folder.gguf is not None:
        return GgufTensors(folder.gguf)
    return SafetensorsTensors(folder.weights, stack)
