"""Opens the disk tier of an engine: where it lies, and what its pages were made by.

A page is only good for the weights, the code and the types that made it. The folder's name and every digest hold a
fingerprint of all of these, so that what another engine has left is not even looked at.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import sys
from pathlib import Path

from ..errors import CacheFileRefused
from ..types import PAGE
from .disk_segments import VERSION, Form
from .disk_store import PageStore, WorkerThread
from .engine import Engine
from .models.disk_cache import content_hash
from .models.source import ModelFolder
from .runner import TorchRunner

FOLDER = "prefixes"
"""In the cache folder."""

log = logging.getLogger("bosquet.disk")


def use_disk(
    engine: Engine, runner: TorchRunner, folder: ModelFolder, kv_dtype: str, megabytes: int, cache: Path
) -> None:
    """Give an engine the tier, if there are `megabytes` for it. One that cannot have it says why, and runs without."""
    if not megabytes:
        return
    try:
        form = Form(fingerprint(folder, runner.model.ops.identity, kv_dtype, cache), runner.page_bytes)
        store = PageStore(cache / FOLDER, form, megabytes << 20, WorkerThread("disk writer"))
    except (CacheFileRefused, OSError) as error:
        log.warning("no disk tier: %s", error)
        return
    engine.use_disk(runner, store, WorkerThread("disk reader"))


def fingerprint(folder: ModelFolder, kernels: str, kv_dtype: str, cache: Path) -> bytes:
    """32 bytes for all that a page's bits depend on, besides its tokens. Reads new weights once, whole; raises
    `OSError`."""
    digest = hashlib.sha256()
    weights = (folder.gguf,) if folder.gguf is not None else folder.weights
    parts = [content_hash(path, cache) for path in (*weights, folder.path / "config.json")]
    parts += [importlib.metadata.version("bosquet"), kernels, kv_dtype, sys.byteorder, str(PAGE), str(VERSION)]
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part.encode())
    return digest.digest()
