"""Computed pages on disk, by key: what is there, in at most so many bytes.

A thread of the store's own writes; what waits for it is kept in memory, bounded, and can be read already. Segments go
whole, the oldest first; those of other stores beside this one, which no engine uses, before its own. Whoever has a page
in hand again while its copy is in the older half of a full store may put it again: so what is used stays.

Knows keys and bytes; nothing of tokens or of what is worth keeping.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from ..errors import CacheFileRefused
from .disk_segments import HEADER_BYTES, Bytes, Folder, Form, Segment, private_folder, segment_name

QUEUED_BYTES = 128 << 20
"""What may wait to be written."""

SEGMENTS = 64
"""Into so many segments the bound is divided: the part that is forgotten at once."""

SUPPOSED_RATE = 500e6
"""Bytes a second that are read and checked, before it has been measured."""

PAUSE_S = 60.0
"""After a write has failed, nothing is written for so long."""

log = logging.getLogger("bosquet.disk")


class Worker(Protocol):
    """Runs jobs one after the other, some time."""

    def put(self, job: Callable[[], None]) -> None:
        """Does not wait."""

    def close(self) -> bool:
        """No job will come any more. Waits a while for those that are there; False if they are not done then."""


class WorkerThread:
    """A thread that does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def close(self) -> bool:
        self._jobs.put(None)
        self._thread.join(10.0)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # and what it has read, before the next one comes


class Place(NamedTuple):
    segment: Segment
    slot: int


class PageStore:
    """Open one at a time for a folder. Raises `CacheFileRefused` when the folder cannot be trusted or is in use, and
    `OSError` when it cannot be made.

    `root` holds one folder for each fingerprint; `bound` is the most bytes that all of them may have.
    """

    def __init__(
        self, root: Path, form: Form, bound: int, writer: Worker, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if bound < HEADER_BYTES + form.entry:
            raise CacheFileRefused(f"{bound} bytes hold no page, which has {form.payload}")
        self.form = form
        self.refused = 0  # what was damaged, or could not be written
        self.written = 0
        self.page_seconds = form.payload / SUPPOSED_RATE  # that reading and checking one takes
        self._bound = bound
        self._segment_entries = max(1, (bound // SEGMENTS - HEADER_BYTES) // form.entry)
        self._writer = writer
        self._clock = clock
        self._lock = threading.Lock()  # of what follows, down to `_told`
        self._index: dict[bytes, Place] = {}
        self._segments: list[Segment] = []  # the oldest first; only the writer changes them
        self._waiting: dict[bytes, Bytes] = {}  # the oldest first
        self._told: set[str] = set()
        self._paused_until = 0.0
        with suppress(FileExistsError):
            root.mkdir(mode=0o700, parents=True)
        os.close(private_folder(root))
        self._folder = Folder(root / form.fingerprint.hex()[:32])
        self._others = _others(root, self._folder.path)
        self._scan()

    def _scan(self) -> None:
        """Find what an earlier engine has left."""
        self._serial = 0
        for serial in self._folder.serials():
            self._serial = serial
            try:
                segment = Segment(self._folder, serial, self.form)
                found = {key: Place(segment, slot) for slot, key in enumerate(segment.keys())}
            except (CacheFileRefused, OSError) as error:
                self._refuse("segment", error)
                with suppress(OSError):
                    self._folder.remove(serial)
                continue
            if segment.torn:
                self._refuse("segment", f"{segment_name(serial)} ends inside an entry")
            self._index |= found
            self._segments.append(segment)
        while self._bytes() > self._bound and self._forget_oldest():
            pass

    def __len__(self) -> int:
        return len(self._index)

    @property
    def room(self) -> int:
        """Pages that may be put now."""
        if self._clock() < self._paused_until:
            return 0
        return max(0, QUEUED_BYTES // self.form.payload - len(self._waiting))

    def has(self, key: bytes) -> bool:
        return key in self._waiting or key in self._index

    def keeps(self, key: bytes) -> bool:
        """It is there and does not go soon."""
        with self._lock:
            if key in self._waiting:
                return True
            place = self._index.get(key)
            if place is None:
                return False
            full = self._bytes() + self._segment_bytes > self._bound
            return not full or place.segment.serial >= self._segments[len(self._segments) // 2].serial

    def put(self, key: bytes, payload: Bytes) -> None:
        """Have it written; `payload` must not change any more."""
        with self._lock:
            self._waiting[key] = payload
        self._writer.put(self._write_oldest)

    def read(self, key: bytes) -> Bytes | None:
        """What was put under this key; None where it is gone or damaged. Waits for the disk; not for writing."""
        with self._lock:
            payload, place = self._waiting.get(key), self._index.get(key)
        if payload is not None or place is None:
            return payload
        began = self._clock()
        try:
            payload = place.segment.read(place.slot, key)
        except (CacheFileRefused, OSError) as error:
            self._refuse("entry", error)
            with self._lock:
                if self._index.get(key) is place:
                    del self._index[key]
        self.page_seconds += 0.1 * (self._clock() - began - self.page_seconds)
        return payload

    def close(self) -> None:
        """Others may use the folder, unless the disk does not answer."""
        if self._writer.close():
            self._folder.close()

    # ---- the writer's side -------------------------------------------------------------------------------------------

    def _write_oldest(self) -> None:
        with self._lock:
            key, payload = next(iter(self._waiting.items()))
        place = None
        try:
            place = self._append(key, payload)
        except (CacheFileRefused, OSError) as error:
            self._refuse("writing", error)
            self._paused_until = self._clock() + PAUSE_S
        with self._lock:
            if self._waiting.get(key) is payload:
                del self._waiting[key]
            if place is not None:
                self._index[key] = place
                self.written += 1

    def _append(self, key: bytes, payload: Bytes) -> Place:
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.entries >= self._segment_entries:
            while self._bytes() + self._segment_bytes > self._bound and self._forget_oldest():
                pass
            self._serial += 1
            segment = Segment(self._folder, self._serial, self.form, create=True)
            with self._lock:
                self._segments.append(segment)
        return Place(segment, segment.append(key, payload))

    @property
    def _segment_bytes(self) -> int:
        return HEADER_BYTES + self._segment_entries * self.form.entry

    def _bytes(self) -> int:
        return sum(segment.size for segment in self._segments) + sum(size for _, size in self._others)

    def _forget_oldest(self) -> bool:
        """False: there is none."""
        if self._others:
            path, _ = self._others.pop(0)
            path.unlink(missing_ok=True)
            return True
        if not self._segments:
            return False
        with self._lock:
            oldest = self._segments.pop(0)
            self._index = {key: place for key, place in self._index.items() if place.segment is not oldest}
        self._folder.remove(oldest.serial)
        return True

    def _refuse(self, kind: str, error: object) -> None:
        """Count it, and tell it once for each kind: a damaged disk must not fill the log."""
        with self._lock:
            self.refused += 1
            told = kind in self._told
            self._told.add(kind)
        if not told:
            log.warning("disk cache: %s; the like will not be told again", error)


def _others(root: Path, own: Path) -> list[tuple[Path, int]]:
    """Segments of other fingerprints that no engine uses now, and their bytes; the oldest first."""
    found: list[tuple[float, Path, int]] = []
    for path in sorted(root.iterdir()):
        if path == own or path.is_symlink() or not path.is_dir():
            continue
        try:
            folder = Folder(path)
            files = [path / segment_name(serial) for serial in folder.serials()]
            found += [(file.lstat().st_mtime, file, file.lstat().st_size) for file in files]
            folder.close()
        except (CacheFileRefused, OSError):
            continue
    return [(path, size) for _, path, size in sorted(found)]
