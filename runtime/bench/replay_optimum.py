"""What the best cache could have reused, known after the fact: Belady's rule on pages.

The rule: whenever room is needed, what is asked for again last goes first (Belady, 1966). It is told the order in which
requests were admitted, knows all of the future and has the whole pool for what it keeps; requests are served one after
the other. So no policy reuses more whole pages that serves them in this order; parts of pages, at most 15 tokens a
request, come on top where all before them was kept. Knows nothing of traces or schedulers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...types import PAGE

Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]

TOKEN_BYTES = 4
PAGE_BYTES = PAGE * TOKEN_BYTES
NEVER = 1 << 40
GONE = -1


class Asked(NamedTuple):
    """One request. `pages` has a number for each whole page of prompt and answer; a number means the same tokens from
    position 0. The last token of a prompt is always computed: `prompt` of the pages are whole before it, and `seen`
    tokens before it were ever computed."""

    pages: Numbers
    prompt: int
    seen: int


def reused(requests: Iterable[tuple[Ids, Ids]], pages: int | None) -> list[int]:
    """For each prompt, not empty, and what was computed of its answer, in the order of admission: the tokens that are
    reused by the rule in a pool of so many pages (None: without bound, then to the token)."""
    asked = number(requests)
    return [request.seen for request in asked] if pages is None else _belady(asked, pages)


def number(requests: Iterable[tuple[Ids, Ids]]) -> list[Asked]:
    """Find equal pages, and what was seen before."""
    numbers: dict[tuple[int, bytes], int] = {}
    below: dict[int, list[bytes]] = {}  # page → the pages, and parts of pages, that have followed it
    asked = []
    for prompt, answer in requests:
        data = np.concatenate((prompt, answer)).astype(np.int32).tobytes()
        found: list[int] = []
        above, seen = 0, -1
        for at in range(0, len(data), PAGE_BYTES):
            part = data[at : at + PAGE_BYTES]
            page = numbers.get((above, part)) if len(part) == PAGE_BYTES else None
            if page is None:
                following = below.setdefault(above, [])
                if seen < 0:
                    seen = at // TOKEN_BYTES + max((_common(part, other) for other in following), default=0)
                if len(part) < PAGE_BYTES:
                    if part not in following:
                        following.append(part)
                    break
                following.append(part)
                page = numbers[above, part] = len(numbers) + 1
            found.append(page)
            above = page
        seen = len(data) // TOKEN_BYTES if seen < 0 else seen
        asked.append(Asked(np.array(found, np.int64), (len(prompt) - 1) // PAGE, min(seen, len(prompt) - 1)))
    return asked


def _common(a: bytes, b: bytes) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count : count + TOKEN_BYTES] == b[count : count + TOKEN_BYTES]:
        count += TOKEN_BYTES
    return count // TOKEN_BYTES


def _belady(asked: list[Asked], pages: int) -> list[int]:
    """Pages that are next asked for by the same request are one class: `kept` counts the pages of each, and of a class
    the deepest go first, since they are of no use without those above."""
    nexts = _next_uses(asked)
    next_use = np.full(_count(asked), GONE, np.int64)  # of each page in the cache
    kept: dict[int, int] = {}
    room = pages
    reused = []
    for at, request in enumerate(asked):
        cached = next_use[request.pages[: request.prompt]] != GONE
        hits = int(cached.argmin()) if not cached.all() else len(cached)
        reused.append(request.seen if hits * PAGE >= request.seen // PAGE * PAGE else hits * PAGE)
        held = request.pages[next_use[request.pages] != GONE]
        for when, count in _classes(next_use[held]):
            kept[when] -= count
        room += len(held)
        next_use[held] = GONE
        wanted = nexts[at] < NEVER
        next_use[request.pages[wanted]] = nexts[at][wanted]
        for when, count in _classes(nexts[at][wanted]):
            kept[when] = kept.get(when, 0) + count
            room -= count
        while room < 0:
            when = max(when for when, count in kept.items() if count)
            there = asked[when].pages[next_use[asked[when].pages] == when]
            gone = there[max(0, len(there) + room) :]
            next_use[gone] = GONE
            kept[when] -= len(gone)
            room += len(gone)
        kept.pop(at, None)
    return reused


def _next_uses(asked: list[Asked]) -> list[Numbers]:
    """For each page of each request, which request asks for it next. A page that is computed again before that, as part
    of an answer, need not be kept."""
    upcoming = np.full(_count(asked), NEVER, np.int64)
    nexts: list[Numbers] = []
    for at in reversed(range(len(asked))):
        pages, prompt, _ = asked[at]
        nexts.append(upcoming[pages])
        upcoming[pages[prompt:]] = NEVER
        upcoming[pages[:prompt]] = at
    nexts.reverse()
    return nexts


def _count(asked: list[Asked]) -> int:
    return 1 + max((int(request.pages.max()) for request in asked if len(request.pages)), default=0)


def _classes(whens: Numbers) -> list[tuple[int, int]]:
    found, counts = np.unique(whens, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
