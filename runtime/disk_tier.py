"""The second storey of the prefix cache: pages that are evicted go to disk, and come back to whom they save time.

A page's key is a hash of the namespace and of all tokens up to the page's end, so what is found under it is right
whatever else has happened, and tenants never meet. Both ways are taken only where they pay: computing the prefix again,
at the pace that passes have shown, must cost more than reading it, at the rate that reads have shown.

A sequence that could be admitted, and whose prefix goes on on disk, waits while a thread reads; others go before it. It
waits no longer than computing would take: what has come by then is used. Whatever the disk does, answers stay the same.

Knows nodes, sequences and page numbers; of tensors only that pages can be read and written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from typing import Protocol

import numpy as np

from ..radix_cache.key import PAGE_BYTES, common_tokens
from ..radix_cache.tree import EvictionCause, Match, Namespace, Node, RadixCache
from ..types import PAGE, Stats
from .disk_segments import KEY_BYTES, Bytes
from .disk_store import PageStore, Worker
from .runs import Runs
from .sequence import Sequence

LOADED_BYTES = 256 << 20
"""What may be read and not yet be in the tree."""

HANDOVER_S = 0.005
"""What a read costs besides reading: the loop looks again that often."""

LEAST_WAIT_S = 0.05
"""A read may take so long even where computing takes less, since both are only guessed."""

TRIES_AGAIN_S = 60.0
"""Where reading has not paid for so long, it is tried: the disk may be faster now."""


class PageStorage(Protocol):
    """Keys and values of all pages, as bytes."""

    @property
    def page_bytes(self) -> int:
        """Of one page."""

    def read_pages(self, pages: Items[int]) -> Bytes:
        """A copy of what these pages hold, [n, page_bytes]. Every pass that writes to them has run."""

    def write_pages(self, pages: Items[int], data: Bytes) -> None:
        """What `read_pages` gave into other pages, before the next pass."""


class Load:
    """Pages on their way into memory. The reading thread appends, then says `done`; everything else is the loop's."""

    def __init__(self, first: int, keys: list[bytes], deadline: float) -> None:
        self.first = first  # number of the first page in its prefix
        self.keys = keys
        self.deadline = deadline
        self.users = 0
        self.pages: list[Bytes] = []
        self.done = False
        self.dropped = False  # nobody needs it any more

    def read(self, store: PageStore) -> None:
        for key in self.keys:
            page = None if self.dropped else store.read(key)
            if page is None:
                break
            self.pages.append(page)
        self.done = True

    def after(self, keys: list[bytes], first: int) -> list[Bytes]:
        """What has come of the pages `keys[first:]` without a gap."""
        found: list[Bytes] = []
        if first >= self.first:
            for number, page in list(enumerate(self.pages, self.first))[first - self.first :]:
                if keys[number : number + 1] != [self.keys[number - self.first]]:
                    break
                found.append(page)
        return found


class Ask:
    """A sequence that waits."""

    __slots__ = ("failed", "keys", "load")

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys  # of all pages that a hit may have
        self.load: Load | None = None
        self.failed = False


class DiskTier:
    """Listens to the tree, and is asked by the scheduler before it admits a sequence. Needs passes that have run when
    the next is planned (lag 0). `make_room` evicts so many pages, or fewer if there are fewer."""

    def __init__(
        self,
        cache: RadixCache,
        storage: PageStorage,
        store: PageStore,
        reader: Worker,
        runs: Runs,
        clock: Callable[[], float],
        make_room: Callable[[int], int],
    ) -> None:
        self._cache = cache
        self._storage = storage
        self._store = store
        self._reader = reader
        self._runs = runs
        self._clock = clock
        self._make_room = make_room
        self._asks: dict[int, Ask] = {}  # by the sequence's order
        self._loads: dict[bytes, Load] = {}  # by their first key; those that somebody waits for
        self._reading: list[Load] = []  # the reader is not through with them
        self._began_s = clock()  # when a read last began
        self._chain = Chain()
        self._pages_read = self._pages_refused = 0

    # ---- out ---------------------------------------------------------------------------------------------------------

    def inserted(self, node: Node, pages: Items[int]) -> None:
        """Nothing is written before it is evicted."""

    def evicted(self, node: Node, pages: Items[int], cause: EvictionCause) -> None:
        """Copy whole pages that are worth it, before they are used again."""
        if cause == "evicted":
            self._keep(node, -(-node.end // PAGE) - len(pages), pages)

    def save(self, seconds: float) -> None:
        """Write what the tree holds, the most recently used first, for at most so long; then nothing any more. For an
        engine that ends."""
        until = time.monotonic() + seconds
        nodes = [node for root in self._cache.roots() for child in root.children for node in _subtree(child)]
        for node in sorted(nodes, key=lambda node: (-node.last_access, node.start)):  # what is above was used as late
            first, pages = node.start // PAGE, node.pages
            while pages and time.monotonic() < until:
                if room := self._store.room:
                    self._keep(node, first, pages[:room])
                    first, pages = first + room, pages[room:]
                else:
                    time.sleep(0.005)
        self._store.close()

    def _keep(self, node: Node, first: int, pages: Items[int]) -> None:
        """Have these pages of a node written, where they are whole; `first` is the number of the first one."""
        whole = min(node.end // PAGE, first + len(pages))
        if whole <= first or not self._worth:
            return
        keys = self._chain.keys(node.namespace, node.prefix().data)[first:whole]
        new = [(key, page) for key, page in zip(keys, pages, strict=False) if not self._store.keeps(key)]
        taken = new[: self._store.room]
        self._pages_refused += len(new) - len(taken)
        if taken:
            data = self._storage.read_pages([page for _, page in taken])
            for (key, _), row in zip(taken, data, strict=True):
                self._store.put(key, row)

    # ---- in ----------------------------------------------------------------------------------------------------------

    def extend(self, sequence: Sequence, match: Match) -> Match | None:
        """A longer match, if the disk has more; None while it is being read, and the sequence has to wait. `match` is
        pinned, and so is what is returned; with None the pin is gone."""
        ask = self._asks.get(sequence.order)
        if ask is None:
            data = sequence.key.data[: sequence.match_limit * (PAGE_BYTES // PAGE)]
            ask = self._asks[sequence.order] = Ask(chain_keys(sequence.namespace, data))
        if (load := ask.load) is not None:
            if not load.done and self._clock() < load.deadline:
                self._cache.unpin(match.node)
                return None
            found = load.after(ask.keys, len(match.pages))
            ask.failed = len(load.pages) < len(load.keys) or len(match.pages) < load.first
            self._leave(ask)
            if found:
                before = len(match.pages)
                match = self._install(sequence, match, found)
                ask.failed |= len(match.pages) == before
        if not ask.failed and self._begin(ask, len(match.pages)):
            self._cache.unpin(match.node)
            return None
        return match

    def forget(self, sequence: Sequence) -> None:
        """It waits no more: it has been admitted, or is over."""
        ask = self._asks.pop(sequence.order, None)
        if ask is not None and ask.load is not None:
            self._leave(ask)

    def _begin(self, ask: Ask, first: int) -> bool:
        """Read what the disk has from page `first` on, if it pays."""
        if first >= len(ask.keys) or not self._store.has(ask.keys[first]):
            return False
        load = self._loads.get(ask.keys[first])
        if load is None:
            load = self._start(ask.keys, first)
        if load is not None:
            load.users += 1
            ask.load = load
        return load is not None

    def _start(self, keys: list[bytes], first: int) -> Load | None:
        now = self._clock()
        self._reading = [load for load in self._reading if not load.done]
        if any(now > load.deadline for load in self._reading):
            return None  # the disk does not answer
        room = LOADED_BYTES // self._store.form.payload - sum(len(load.keys) for load in self._loads.values())
        wanted: list[bytes] = []
        for key in keys[first : first + max(0, room)]:
            if not self._store.has(key):
                break
            wanted.append(key)
        before = sum(len(load.keys) - len(load.pages) for load in self._reading if not load.dropped)
        if not wanted or not (self._pays(len(wanted), before) or now - self._began_s > TRIES_AGAIN_S):
            return None
        self._began_s = now
        deadline = now + max(LEAST_WAIT_S, len(wanted) * PAGE * self._runs.pace)
        load = self._loads[wanted[0]] = Load(first, wanted, deadline)
        self._reading.append(load)
        self._reader.put(lambda: load.read(self._store))
        return load

    def _leave(self, ask: Ask) -> None:
        load, ask.load = ask.load, None
        assert load is not None
        load.users -= 1
        if not load.users:
            load.dropped = True
            del self._loads[load.keys[0]]

    def _install(self, sequence: Sequence, match: Match, found: list[Bytes]) -> Match:
        """Put pages that were read into the tree, after those of the match; the match that they make. It holds no page
        besides its own, so who had room before has it now."""
        cache = self._cache
        if len(found) > cache.pool.free:
            self._make_room(len(found) - cache.pool.free)
        found = found[: cache.pool.free]
        pages = cache.pool.take(len(found))
        if pages:
            self._storage.write_pages(pages, np.stack(found))
            self._pages_read += len(pages)
            table = match.pages + pages
            length = len(table) * PAGE
            insertion = cache.insert(sequence.namespace, sequence.key.prefix(length), table)
            cache.pool.give(insertion.duplicates)
            cache.pin(insertion.node)
            cache.unpin(match.node)
            match = Match(insertion.node, length, insertion.pages, None)
        return match

    # ---- what it is worth --------------------------------------------------------------------------------------------

    @property
    def _worth(self) -> bool:
        """A page is computed more slowly than it is read. How many there are does not matter: the first pages of a
        prefix are the last that are evicted, and without them the others are lost."""
        return PAGE * self._runs.pace > self._store.page_seconds

    def _pays(self, pages: int, before: int = 0) -> bool:
        """Reading so many pages, after `before` others, costs less than computing them."""
        reading = HANDOVER_S + (pages + before) * self._store.page_seconds
        return pages * PAGE * self._runs.pace > reading

    def count(self, stats: Stats) -> None:
        """Say what there is and what was done."""
        stats.disk_pages = len(self._store)
        stats.disk_pages_read = self._pages_read
        stats.disk_pages_written = self._store.written
        stats.disk_pages_refused = self._pages_refused + self._store.refused


def _subtree(node: Node) -> Iterator[Node]:
    """No recursion: a path may be longer than Python's stack."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending += node.children


def chain_keys(namespace: Namespace, data: bytes, known: Items[bytes] = ()) -> list[bytes]:
    """The keys of all whole pages of these tokens, each a hash of the key before it and of the page's tokens; `known`
    are the first ones."""
    keys = list(known)
    if keys:
        last = keys[-1]
    else:
        names = [name.encode("utf-8", "surrogatepass") for name in namespace]
        last = _hash(b"".join(len(name).to_bytes(4, "little") + name for name in names))
    for at in range(len(keys) * PAGE_BYTES, len(data) - PAGE_BYTES + 1, PAGE_BYTES):
        last = _hash(last + data[at : at + PAGE_BYTES])
        keys.append(last)
    return keys


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()


class Chain:
    """Remembers the keys that were last asked for: a long leaf is evicted a few pages at a time."""

    def __init__(self) -> None:
        self._namespace = Namespace()
        self._data = b""
        self._keys: list[bytes] = []

    def keys(self, namespace: Namespace, data: bytes) -> list[bytes]:
        """At least the keys of all whole pages of these tokens; more where these begin those of the call before."""
        shared = common_tokens(self._data, data) // PAGE if namespace == self._namespace else 0
        if shared < len(data) // PAGE_BYTES:
            self._keys = chain_keys(namespace, data, self._keys[:shared])
            self._namespace, self._data = namespace, data
        return self._keys
