"""Turns the engine's word on a miss into one that a person can act on.

Remembers the last prompts of each tenant, as ids and as what was told, so that two requests can be compared part by
part; bounded, and in memory alone. Works in the thread that keeps records.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from ...radix_cache.key import TOKEN_BYTES, common_tokens
from ...types import Request
from ..trace import Miss, Trace
from .explain_compare import Difference, compare, compare_start
from .explain_prompt import Prompt, Told, lay
from .explain_report import CacheReport, report

MOST_BYTES = 32 << 20
"""What all remembered prompts may take, about."""

OF_A_TENANT = 64
"""Prompts that are looked at for the one that a miss is nearest to."""

PER_TOKEN, PER_MESSAGE = 16, 400
"""Bytes that a remembered prompt takes: its ids and its text."""


class Bytes(Protocol):
    """What is needed of a tokenizer."""

    def bytes_of(self, token: int) -> bytes: ...

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, at_start: bool = False) -> str: ...


class Remembered(NamedTuple):
    id: str
    tenant: str
    ids: bytes  # four bytes a token
    told: Told

    @property
    def size(self) -> int:
        entries = len(self.told.messages) + len(self.told.tools) + 1
        return PER_TOKEN * len(self.ids) // TOKEN_BYTES + PER_MESSAGE * entries

    def tokens(self) -> Sequence[int]:
        return array("i", self.ids)


class Explainer:
    """`remember` each request before it is sent; `explain` it once the engine's record has come."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._size = 0
        self._all: OrderedDict[str, Remembered] = OrderedDict()
        self._of: dict[str, deque[Remembered]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._all)

    def remember(self, request: Request, told: Told) -> None:
        entry = Remembered(request.id, request.origin.tenant, array("i", request.ids).tobytes(), told)
        with self._lock:
            self._all[request.id] = entry
            self._of.setdefault(entry.tenant, deque()).append(entry)
            self._size += entry.size
            while self._size > self._most or len(self._of[entry.tenant]) > OF_A_TENANT:
                over = len(self._of[entry.tenant]) > OF_A_TENANT
                self._forget(self._of[entry.tenant][0] if over else next(iter(self._all.values())))
                if entry.tenant not in self._of:
                    break

    def _forget(self, entry: Remembered) -> None:
        del self._all[entry.id]
        theirs = self._of[entry.tenant]
        theirs.remove(entry)
        if not theirs:
            del self._of[entry.tenant]
        self._size -= entry.size

    def explain(
        self, trace: Trace, ids: Sequence[int], told: Told, text: Bytes, *, capture: bool
    ) -> CacheReport | None:
        """The report on a request of these ids; None: it never got so far. With `capture` it has texts."""
        miss = next((choice.miss for choice in trace.choices if choice.miss is not None), None)
        if miss is None:
            return None
        part, found = None, None
        if miss.cause not in ("", "limit", "disabled"):
            prompt = lay(ids, text.bytes_of, told)
            part = prompt.part_at(prompt.starts[min(miss.at, len(ids))])
            found = self._difference(trace, prompt, miss, text)
        decode = (lambda tokens: text.decode(tokens, skip_special=False)) if capture else None
        return report(trace, miss, part, found, decode)

    def _difference(self, trace: Trace, prompt: Prompt, miss: Miss, text: Bytes) -> Difference | None:
        if miss.cause != "diverged":
            return None
        at = prompt.starts[miss.at]
        nearest = self._nearest(trace, prompt.ids, miss)
        if nearest is not None:
            return compare(prompt, lay(nearest.tokens(), text.bytes_of, nearest.told), at)
        return compare_start(prompt, at, b"".join(map(text.bytes_of, miss.theirs)))

    def _nearest(self, trace: Trace, ids: Sequence[int], miss: Miss) -> Remembered | None:
        """The tenant's newest prompt that goes the way which the engine says is nearest."""
        with self._lock:
            candidates = list(self._of.get(trace.origin.tenant, ()))
        data, theirs = array("i", ids).tobytes(), array("i", miss.theirs).tobytes()
        begin = miss.at * TOKEN_BYTES
        for entry in reversed(candidates):
            if entry.id != trace.request and common_tokens(entry.ids, data) == miss.at:
                there = entry.ids[begin : begin + len(theirs)]
                if there and theirs.startswith(there):
                    return entry
        return None
