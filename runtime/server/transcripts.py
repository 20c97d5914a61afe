"""The store of what was generated, so that a turn that a client sends back gets its own tokens again.

Holds token ids and hashes, no text. A record is one answer: it leads to the record that its prompt went on from, so a
conversation takes as much room as its tokens, however many turns it has. What one tenant stores no other can find, and
when room is short, the tenant that holds the most gives way first.

Knows nothing of messages or templates: keys are made in `transcript_keys`, records are used in `recall`.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...grammar.reasoning import State

OVERHEAD = 900
"""Bytes that a record takes besides its ids, measured; it bounds their number too."""

VARIANTS = 8
"""Most records of one conversation: answers that read alike, but are other tokens or other thoughts."""


class Print(NamedTuple):
    """What a text is known by."""

    length: int
    digest: bytes

    @classmethod
    def of(cls, text: str) -> Print:
        raw = text.encode("utf-8", "surrogatepass")
        return cls(len(text), hashlib.blake2b(raw, digest_size=16).digest())


class Link(NamedTuple):
    """How a prompt goes on from an earlier answer, or from nothing: by which text, and by which ids."""

    parent: int | None
    text: Print
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Record:
    """One answer. `state` is that of thinking where it began."""

    serial: int
    keys: tuple[bytes, ...]
    parent: int | None
    text: Print
    prompt: array[int]
    answer: array[int]
    state: State | None

    @property
    def size(self) -> int:
        return OVERHEAD + 4 * (len(self.prompt) + len(self.answer))


Chain = tuple[Record, ...]
"""Records that lead to one, oldest first: the prompt and answer ids of all of them, in a row, were a live sequence."""


@dataclass(slots=True)
class _Shelf:
    """One tenant's records, least recently used first."""

    records: OrderedDict[int, Record] = field(default_factory=OrderedDict)
    index: dict[bytes, list[int]] = field(default_factory=dict)
    size: int = 0

    def put(self, record: Record) -> None:
        self.records[record.serial] = record
        self.size += record.size
        for key in record.keys:
            self.index[key] = [*self.index.get(key, ()), record.serial][-VARIANTS:]

    def drop_oldest(self) -> int:
        """How many bytes that gives."""
        serial, record = self.records.popitem(last=False)
        self.size -= record.size
        for key in record.keys:
            left = [each for each in self.index.get(key, ()) if each != serial]
            if left:
                self.index[key] = left
            else:
                self.index.pop(key, None)
        return record.size

    def chain(self, serial: int) -> Chain | None:
        """None where a part has gone. The parts are used now, and a part never later than what follows from it."""
        found: list[Record] = []
        at: int | None = serial
        while at is not None:
            record = self.records.get(at)
            if record is None:
                return None
            self.records.move_to_end(at)
            found.append(record)
            at = record.parent
        return tuple(reversed(found))


class Transcripts:
    """Bounded by `limit` bytes; 0 keeps nothing. May be used from several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._shelves: dict[str, _Shelf] = {}
        self._serials = itertools.count()
        self._lock = threading.Lock()
        self._size = 0

    def __len__(self) -> int:
        return sum(len(shelf.records) for shelf in self._shelves.values())

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def add(
        self, tenant: str, keys: Sequence[bytes], link: Link, answer: Sequence[int], state: State | None = None
    ) -> None:
        """Keep an answer under these keys. One that is there already is used again."""
        prompt, ids = array("I", link.ids), array("I", answer)
        record = Record(next(self._serials), tuple(keys), link.parent, link.text, prompt, ids, state)
        with self._lock:
            if record.size > self.limit or self._again(tenant, record):
                return
            self._shelves.setdefault(tenant, _Shelf()).put(record)
            self._size += record.size
            while self._size > self.limit:
                largest = max(self._shelves, key=lambda name: self._shelves[name].size)
                self._size -= self._shelves[largest].drop_oldest()
                if not self._shelves[largest].records:
                    del self._shelves[largest]

    def find(self, tenant: str, key: bytes) -> list[Chain]:
        """What leads to the answers under this key, the newest first."""
        with self._lock:
            shelf = self._shelves.get(tenant)
            if shelf is None:
                return []
            chains = [shelf.chain(serial) for serial in shelf.index.get(key, ())]
        return [chain for chain in reversed(chains) if chain is not None]

    def _again(self, tenant: str, record: Record) -> bool:
        """Branches of a program may get one answer many times: what follows from any of them follows from the first."""
        shelf = self._shelves.get(tenant)
        if shelf is None:
            return False
        for serial in shelf.index.get(record.keys[0], ()):
            known = shelf.records[serial]
            if _what(known) == _what(record):
                shelf.chain(serial)
                return True
        return False


def _what(record: Record) -> tuple[object, ...]:
    return record.keys, record.parent, record.text, record.prompt, record.answer, record.state
