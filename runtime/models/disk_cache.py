"""Folders on disk that are made once and are either whole or absent, and a memory of files' content hashes.

Several processes may use one cache at a time: whatever appears under its final name was renamed into place whole, and
makers take turns by a file lock, which the system releases if they die. Knows nothing of models.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SIZES = "sizes.json"
"""In each folder: name → bytes of every file that was there when it was made whole."""


def content_hash(path: Path, cache: Path) -> str:
    """SHA-256 of all of a file's bytes, in hex.

    Remembered by path, size, modification time and inode, so an unchanged file is read once.
    """
    path = path.resolve()
    stat = path.stat()
    identity = [str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    memo = cache / "hashes" / (hashlib.sha256(str(path).encode()).hexdigest()[:32] + ".json")
    known = read_json(memo)
    if isinstance(known, dict) and known.get("identity") == identity and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    replace_text(memo, json.dumps({"identity": identity, "sha256": digest}))
    return digest


def read_json(path: Path) -> Any:
    """The file's value, or None when it is absent or no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that readers see the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new-{uuid.uuid4().hex}")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


def is_whole(folder: Path, wanted: str | None = None) -> bool:
    """The folder was finished, holds `wanted` too, and its files still have the sizes that they had then."""
    sizes = read_json(folder / SIZES)
    if not isinstance(sizes, dict) or not sizes or (wanted is not None and wanted not in sizes):
        return False
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process makes `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into an empty folder, then rename it into place. Needs the lock.

    What a maker that was killed has left behind is cleared first.
    """
    for left_over in folder.parent.glob(f".{folder.name}.new-*"):
        shutil.rmtree(left_over)
    fresh = folder.with_name(f".{folder.name}.new-{uuid.uuid4().hex}")
    fresh.mkdir()
    try:
        fill(fresh)
        _sync_files(fresh)
        sizes = {path.name: path.stat().st_size for path in sorted(fresh.iterdir())}
        (fresh / SIZES).write_text(json.dumps(sizes))
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def add_file(folder: Path, name: str, write: Callable[[Path], None]) -> None:
    """Add one more file to a whole folder. Needs the lock."""
    fresh = folder / f".{name}.new"
    try:
        write(fresh)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sizes = {**read_json(folder / SIZES), name: fresh.stat().st_size}
    os.replace(fresh, folder / name)
    replace_text(folder / SIZES, json.dumps(sizes))


def _sync_files(folder: Path) -> None:
    """A rename may reach the disk before the data does; a power cut must not leave a folder that only looks whole."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
