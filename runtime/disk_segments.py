"""Files that keep computed pages: a private folder, a lock, and segments of equal entries that only grow.

Nothing that is read is trusted: not the folder, not a header, not an entry. What does not fit is refused with
`CacheFileRefused`, so damage costs a page of computing and never a wrong token. Nothing is synced: what a power cut
tears does not pass its digest.

    segment   header, then entries
    header    magic, version, bytes of a payload, fingerprint of what made the payloads, SHA-256 of all these
    entry     key, SHA-256 of fingerprint, key and payload, payload

Knows keys and bytes; nothing of tokens or of what is worth keeping.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CacheFileRefused

Bytes = npt.NDArray[np.uint8]

VERSION = 1
"""Of the files' form and of how keys are made: raise it when either changes."""

KEY_BYTES = 16
DIGEST_BYTES = 32
_MAGIC = b"BOSQUET\n"
_HEADER = struct.Struct(f"<8sIQ{DIGEST_BYTES}s")
HEADER_BYTES = _HEADER.size + DIGEST_BYTES
_ENTRY_HEAD = KEY_BYTES + DIGEST_BYTES
_NAME = re.compile(r"segment-(\d{12})")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe that somebody put there must not hold us up


class Form(NamedTuple):
    """What all entries of a store have in common."""

    fingerprint: bytes  # 32 bytes
    payload: int  # bytes

    @property
    def entry(self) -> int:
        return _ENTRY_HEAD + self.payload

    def header(self) -> bytes:
        head = _HEADER.pack(_MAGIC, VERSION, self.payload, self.fingerprint)
        return head + hashlib.sha256(head).digest()

    def digest(self, key: bytes, payload: Bytes) -> bytes:
        digest = hashlib.sha256(self.fingerprint + key)
        digest.update(payload.data)
        return digest.digest()


class Folder:
    """A folder of our own that no other process uses as long as this object lives.

    Raises `CacheFileRefused` when it is another user's, open to others, a link, or in use; `OSError` when it cannot be
    made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = self._lock = -1
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        self.fd = private_folder(path)
        self._lock = self.open("lock", os.O_RDWR | os.O_CREAT)
        if not _locked(self._lock):
            raise CacheFileRefused(f"another engine uses {path}")

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a regular file of ours. Raises `CacheFileRefused`, or `OSError`."""
        try:
            fd = os.open(name, flags | _FLAGS, 0o600, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CacheFileRefused(f"{self.path / name} is a link") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CacheFileRefused(f"{self.path / name} is no file")
            _check_ours(fd, str(self.path / name))
        except CacheFileRefused:
            os.close(fd)
            raise
        return fd

    def serials(self) -> list[int]:
        """Of what is called a segment, rising."""
        return sorted(int(match[1]) for name in os.listdir(self.fd) if (match := _NAME.fullmatch(name)))

    def remove(self, serial: int) -> None:
        """Whoever has it open may go on reading."""
        with suppress(FileNotFoundError):
            os.unlink(segment_name(serial), dir_fd=self.fd)

    def close(self) -> None:
        """Let others use it."""
        for fd in (self._lock, self.fd):
            if fd >= 0:
                os.close(fd)
        self._lock = self.fd = -1

    def __del__(self) -> None:
        self.close()


def private_folder(path: Path) -> int:
    """A descriptor of a folder. Raises `CacheFileRefused` when it is another user's, open to others, or a link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise CacheFileRefused(f"{path}: {error.strerror}; expected a folder") from None
    try:
        _check_ours(fd, str(path))
    except CacheFileRefused:
        os.close(fd)
        raise
    return fd


def _check_ours(fd: int, name: str) -> None:
    about = os.fstat(fd)
    if about.st_uid != os.geteuid():
        raise CacheFileRefused(f"{name} belongs to user {about.st_uid}")
    if about.st_mode & 0o077:
        raise CacheFileRefused(f"{name} is open to others: its mode is {about.st_mode & 0o777:o}")


def _locked(fd: int) -> bool:
    for patience in (0.1, 0.1, 0.0):  # whoever only looks what there is lets go at once
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(patience)
    return False


def segment_name(serial: int) -> str:
    return f"segment-{serial:012d}"


class Segment:
    """One file. Any thread may read what was there when it asked; one thread appends."""

    def __init__(self, folder: Folder, serial: int, form: Form, *, create: bool = False) -> None:
        """Raises `CacheFileRefused` for what this store did not write, and `OSError`."""
        self.serial = serial
        self._form = form
        self._name = segment_name(serial)
        self._fd = -1
        self._fd = folder.open(self._name, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0))
        if create:
            _write(self._fd, form.header(), 0)
        size = os.fstat(self._fd).st_size
        if os.pread(self._fd, HEADER_BYTES, 0) != form.header():
            raise CacheFileRefused(f"{self._name} was made by something else, or is damaged")
        self.entries, self.torn = divmod(size - HEADER_BYTES, form.entry)

    @property
    def size(self) -> int:
        """In bytes."""
        return HEADER_BYTES + self.entries * self._form.entry

    def keys(self) -> list[bytes]:
        """As they are written: only `read` checks them."""
        return [os.pread(self._fd, KEY_BYTES, self._offset(slot)) for slot in range(self.entries)]

    def append(self, key: bytes, payload: Bytes) -> int:
        """The slot that the entry has from now on."""
        assert (len(key), payload.nbytes) == (KEY_BYTES, self._form.payload)
        slot = self.entries
        payload = np.ascontiguousarray(payload)
        head = key + self._form.digest(key, payload)
        _write(self._fd, head, self._offset(slot))
        _write(self._fd, payload.data, self._offset(slot) + len(head))
        self.entries += 1
        return slot

    def read(self, slot: int, key: bytes) -> Bytes:
        """The payload. Raises `CacheFileRefused` unless it is what was written under this key; `OSError`."""
        head, payload = bytearray(_ENTRY_HEAD), np.empty(self._form.payload, np.uint8)
        got = os.preadv(self._fd, [head, payload.data], self._offset(slot))
        if got != self._form.entry or head != key + self._form.digest(key, payload):
            raise CacheFileRefused(f"entry {slot} of {self._name} is damaged")
        return payload

    def _offset(self, slot: int) -> int:
        return HEADER_BYTES + slot * self._form.entry

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _write(fd: int, data: bytes | memoryview, offset: int) -> None:
    """All of it, or `OSError`."""
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
