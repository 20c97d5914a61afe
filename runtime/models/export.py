"""Writes a model as one safetensors folder in bfloat16 that other engines read. Imports no torch."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, ModelLoadError
from .gguf_convert import WEIGHTS
from .safetensors_file import TensorIn, TensorOut, read_chunks, read_header, write_safetensors
from .source import ModelFolder, Progress, no_progress, resolve

_SMALL_FILES = ("generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                "merges.txt", "chat_template.*")  # fmt: skip


def export(model: str, out: Path, progress: Progress = no_progress) -> Path:
    """Write `model` (whatever `source.resolve` takes) to the folder `out`, which appears whole or not at all.

    Raises `ConfigError` when `out` is there and not an empty folder, `ModelLoadError` when the model cannot be read or
    the folder not be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists and is not an empty folder; nothing was written")
    source = resolve(model, progress=progress, dtype="bfloat16")
    if source.config.get("quantization_config") is not None:
        raise ModelLoadError(f"{source.path / 'config.json'}: 'quantization_config' is set, which is not supported")
    fresh = out.with_name(f".{out.name}.new-{uuid.uuid4().hex}")
    try:
        fresh.mkdir(parents=True)
        _write(source, fresh, progress)
        if out.exists():
            out.rmdir()
        fresh.rename(out)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ModelLoadError(f"{out}: cannot be written: {error}") from None
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return out


def _write(source: ModelFolder, folder: Path, progress: Progress) -> None:
    tensors = [_copy(path, tensor) for path in source.weights for tensor in read_header(path)]
    write_safetensors(
        folder / WEIGHTS, tensors, "BF16", lambda done, total: progress(f"Exporting {source.name}", done, total)
    )
    config = {key: value for key, value in source.config.items() if key not in ("torch_dtype", "dtype")}
    text = json.dumps({**config, "torch_dtype": "bfloat16"}, indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    for pattern in _SMALL_FILES:
        for path in source.path.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)


def _copy(path: Path, tensor: TensorIn) -> TensorOut:
    def chunks() -> Iterator[npt.NDArray[np.float32]]:
        return read_chunks(path, tensor)

    return TensorOut(tensor.name, tensor.shape, chunks)
