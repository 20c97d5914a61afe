"""Random life of a cache against a naive model, with simulated page contents.

The model is a table from each prefix that ends with a page to that page. What sequences compute is written into the
pages, token by token, so every match is verified by reading the pages and every eviction of something still needed
shows as a page with the wrong tokens.
"""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bosquet.errors import OutOfPages
from bosquet.radix_cache import Key, Lfu, Lru, Namespace, PagePool, RadixCache

PAGES = 26
SPACES = [Namespace("a"), Namespace("a", "lora"), Namespace("b")]
spaces = st.sampled_from(SPACES)
# Sequences of few different pieces, so that long prefixes are shared and branches leave at every place in a page.
pieces = st.tuples(st.integers(0, 1), st.integers(1, 23))


def spell(found):
    return tuple(100 * which + i for which, size in found for i in range(size))


sequences = st.lists(pieces, min_size=1, max_size=5).map(spell)
picks = st.integers(0, 99)


def common(a, b):
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


class Sequence:
    """A running sequence: [0, shared) of its table is the tree's, the rest its own."""

    def __init__(self, ns, ids, found, own):
        self.ns, self.ids, self.node = ns, ids, found.node
        self.shared = len(found.pages)
        self.table = found.pages + own
        self.copy = (found.tail[0], own[0], found.tail[1]) if found.tail else None
        self.computed = found.length


class CacheMachine(RuleBasedStateMachine):
    policy = Lru

    def __init__(self):
        super().__init__()
        self.pool = PagePool(PAGES)
        self.time = 0
        self.cache = RadixCache(self.pool, self.policy(), clock=self.tick, listener=self)
        self.model = {ns: {} for ns in SPACES}  # prefix that ends with a page → page
        self.contents = [[None] * 16 for _ in range(PAGES)]
        self.running = []
        self.incoming = None  # what is being inserted
        self.version = None

    def tick(self):
        self.time += 1
        return float(self.time // 2)  # with ties

    # The model

    def prefixes(self, ids):
        return [ids[: min(end, len(ids))] for end in range(16, len(ids) + 16, 16)]

    def expected_length(self, ns, ids):
        return max((common(prefix, ids) for prefix in self.model[ns]), default=0)

    def needed(self):
        pages = {page for sequence in self.running for page in sequence.table}
        return pages | {sequence.copy[0] for sequence in self.running if sequence.copy}

    def inserted(self, node, pages):
        ns, ids = self.incoming
        assert node.namespace == ns
        assert node.prefix().ids() == list(ids)
        assert node.pages[-len(pages) :] == list(pages)

    def evicted(self, node, pages, cause):
        entries = self.model[node.namespace]
        prefixes = self.prefixes(tuple(node.prefix().ids()))[-len(pages) :]
        assert [entries.pop(prefix) for prefix in prefixes] == list(pages)
        for prefix in prefixes:
            assert not any(longer[: len(prefix)] == prefix for longer in entries if len(prefix) % 16 == 0), "not a leaf"
        if cause == "superseded":
            (prefix,) = prefixes
            assert len(prefix) % 16
            assert self.incoming[1][: len(prefix)] == prefix != self.incoming[1]
        else:
            assert cause == self.cause
        assert self.needed().isdisjoint(pages)
        for page in pages:
            self.contents[page] = [None] * 16

    def insert(self, sequence, tokens, held):
        """Insert through the cache and into the model; both must agree on every page."""
        ns, ids = sequence.ns, sequence.ids[:tokens]
        given = sequence.table[: -(-tokens // 16)]
        entries, table, duplicates, added = self.model[ns], [], [], {}
        redundant = {p for p in entries if any(q[: len(p)] == p and q != p for q in entries)}
        for prefix, page in zip(self.prefixes(ids), given, strict=True):
            # The last part of a page may be a prefix of a page without being one.
            end = -(-len(prefix) // 16) * 16
            holders = {entries[p] for p in entries if len(p) <= end and p[: len(prefix)] == prefix}
            table.append(holders or {page})
            if holders and page not in holders:
                duplicates.append(page)
            if not holders:
                added[prefix] = page
        before = self.cache.version
        self.incoming = (ns, ids)
        result = self.cache.insert(ns, Key.of(ids), given, held=held)
        self.incoming = None
        assert len(result.pages) == len(table)
        assert all(page in allowed for page, allowed in zip(result.pages, table, strict=True))
        assert result.duplicates == duplicates
        assert (self.cache.version != before) == bool(added)
        entries.update(added)
        left = [p for p in entries if len(p) % 16 and ids[: len(p)] == p != ids]
        others = [one for one in self.running if one.ns == ns]
        assert others or set(left) <= redundant, "a free tail was not superseded"
        self.pool.give(result.duplicates)
        return result

    def read(self, table, length):
        return tuple(self.contents[table[i // 16]][i % 16] for i in range(length))

    def write(self, sequence, upto):
        for i in range(sequence.computed, upto):
            page = sequence.table[i // 16]
            assert i // 16 >= sequence.shared, "wrote into a page of the tree"
            self.contents[page][i % 16] = sequence.ids[i]
        sequence.computed = upto

    def take(self, n):
        """Pages, by eviction if need be; None if there is no room."""
        self.cause = "evicted"
        short = n - self.pool.free
        if short > 0:
            room = self.cache.evictable
            assert self.cache.evict(short) == min(short, room)
        try:
            return self.pool.take(n)
        except OutOfPages:
            assert self.cache.evictable == 0
            return None

    def run_copy(self, sequence):
        if sequence.copy:
            source, target, n = sequence.copy
            self.contents[target][:n] = self.contents[source][:n]
            sequence.copy = None

    # What may happen

    @rule(ns=spaces, ids=sequences, limit=st.one_of(st.none(), st.integers(0, 70)))
    def probe(self, ns, ids, limit):
        found = self.cache.match(ns, list(ids), limit)
        assert found.length == self.expected_length(ns, ids[:limit])
        table = found.pages + ([found.tail[0]] if found.tail else [])
        assert self.read(table, found.length) == ids[: found.length]

    @rule(ns=spaces, ids=sequences)
    def begin(self, ns, ids):
        self.start(ns, ids)

    def start(self, ns, ids):
        found = self.cache.match(ns, ids, len(ids) - 1)
        assert found.length == self.expected_length(ns, ids[:-1])
        assert found.pages == [self.model[ns][ids[:end]] for end in range(16, found.length + 1, 16)]
        self.cache.pin(found.node, hit=True)
        guard = Sequence(ns, ids, found, [-1])  # what is pinned must survive the search for room
        guard.table.pop()
        self.running.append(guard)
        own = self.take(-(-len(ids) // 16) - len(found.pages))
        self.running.pop()
        if own is None:
            self.cache.unpin(found.node)
        else:
            self.running.append(Sequence(ns, ids, found, own))

    @precondition(lambda self: any(self.model.values()))
    @rule(k=picks, back=st.integers(0, 40), extra=sequences)
    def resume(self, k, back, extra):
        """Go on from something cached, to its end or not, often from the same leaf as others."""
        known = [(ns, prefix) for ns in SPACES for prefix in self.model[ns]]
        if back > 20:
            known = [(ns, p) for ns, p in known if len(p) % 16] or known
            back = 0
        ns, prefix = known[k % len(known)]
        self.start(ns, prefix[: len(prefix) - back] + extra)

    def pick(self, k):
        return self.running[k % len(self.running)]

    @precondition(lambda self: self.running)
    @rule(k=picks, n=st.integers(1, 60))
    def compute(self, k, n):
        sequence = self.pick(k)
        self.run_copy(sequence)
        self.write(sequence, min(sequence.computed + n, len(sequence.ids)))

    @precondition(lambda self: self.running)
    @rule(k=picks, ids=sequences)
    def append(self, k, ids):
        sequence = self.pick(k)
        more = self.take(-(-(len(sequence.ids) + len(ids)) // 16) - len(sequence.table))
        if more is not None:
            sequence.ids += ids
            sequence.table += more

    @precondition(lambda self: self.running)
    @rule(k=picks, hold=st.booleans(), repin=st.booleans())
    def publish(self, k, hold, repin):
        sequence = self.pick(k)
        whole = sequence.computed // 16
        if sequence.copy or whole <= sequence.shared:
            return
        result = self.insert(sequence, whole * 16, sequence.node if hold else None)
        if repin:
            self.cache.repin(sequence.node, result.node)
        else:
            self.cache.pin(result.node)
            self.cache.unpin(sequence.node)
        sequence.node = result.node
        sequence.table[:whole] = result.pages
        sequence.shared = whole

    @precondition(lambda self: self.running)
    @rule(k=picks, hold=st.booleans(), early=st.integers(0, 20))
    def finish(self, k, hold, early):
        sequence = self.pick(k)
        self.run_copy(sequence)
        self.write(sequence, max(sequence.computed, len(sequence.ids) - early))
        used = max(sequence.shared, -(-sequence.computed // 16))
        if sequence.computed > sequence.shared * 16:
            self.insert(sequence, sequence.computed, sequence.node if hold else None)
        self.pool.give(sequence.table[used:])
        self.cache.unpin(sequence.node)
        self.running.remove(sequence)

    @precondition(lambda self: self.running)
    @rule(k=picks)
    def cancel(self, k):
        sequence = self.pick(k)
        self.pool.give(sequence.table[sequence.shared :])
        self.cache.unpin(sequence.node)
        self.running.remove(sequence)

    @precondition(lambda self: self.cache._candidates.valid())
    @rule(k=picks, worth=st.sampled_from([0.0, 1.0, 2.0]))
    def value(self, k, worth):
        valid = self.cache._candidates.valid()
        self.cache.value(valid[k % len(valid)], worth)

    @rule(n=st.integers(0, 6))
    def evict(self, n):
        self.cause = "evicted"
        room, free = self.cache.evictable, self.pool.free
        version = self.cache.version
        assert self.cache.evict(n) == min(n, room) == self.pool.free - free
        assert (self.cache.version != version) == (min(n, room) > 0)

    @rule(k=picks)
    def sometimes_reset(self, k):
        if k == 99:
            self.reset()

    def reset(self):
        self.cause = "reset"
        room = self.cache.evictable
        assert self.cache.reset() == room
        assert self.cache.evictable == 0

    # What always holds

    @invariant()
    def pages_are_conserved_and_the_structure_holds(self):
        self.cache.check_integrity([page for one in self.running for page in one.table[one.shared :]])
        assert self.cache.cached == sum(map(len, self.model.values()))
        if not self.running:
            assert self.cache.evictable == self.cache.cached

    @invariant()
    def every_page_holds_what_it_should(self):
        for one in self.running:
            known = one.shared * 16 if one.copy else one.computed
            assert self.read(one.table, known) == one.ids[:known]
            if one.copy:
                source, _, n = one.copy
                assert self.contents[source][:n] == list(one.ids[known : known + n])
        for entries in self.model.values():
            for prefix, page in entries.items():
                last = prefix[(len(prefix) - 1) // 16 * 16 :]
                assert self.contents[page][: len(last)] == list(last)

    def teardown(self):
        while self.running:
            self.cancel(0)
        self.reset()
        assert (self.pool.free, self.cache.cached, self.cache.roots()) == (PAGES, 0, [])


class LfuMachine(CacheMachine):
    policy = Lfu


TestLru = CacheMachine.TestCase
TestLfu = LfuMachine.TestCase
TestLru.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLfu.settings = settings(TestLru.settings, max_examples=20)


@pytest.mark.parametrize("policy", [Lru, Lfu])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_life(seed, policy):
    """The same moves drawn by a plain generator: longer lives than hypothesis tries, so deeper trees and more pins."""
    rng = random.Random(seed)
    machine = (CacheMachine if policy is Lru else LfuMachine)()

    def ids():
        return spell([(rng.randrange(2), rng.randint(1, 23)) for _ in range(rng.randint(1, 5))])

    def flip():
        return rng.random() < 0.5

    k = 0
    moves = {
        lambda: machine.begin(rng.choice(SPACES), ids()): 2,
        lambda: machine.resume(k, rng.randrange(41), ids()): 4,
        lambda: machine.probe(rng.choice(SPACES), ids(), None): 1,
        lambda: machine.evict(rng.randrange(4)): 1,
        lambda: machine.running and machine.compute(k, rng.randint(1, 60)): 6,
        lambda: machine.running and machine.append(k, ids()): 2,
        lambda: machine.running and machine.publish(k, flip(), flip()): 6,
        lambda: machine.running and machine.finish(k, flip(), rng.randrange(20)): 4,
        lambda: machine.running and machine.cancel(k): 1,
    }
    for step in range(1500):
        k = rng.randrange(100)
        if step % 500 == 499:
            machine.reset()
        elif any(machine.model.values()):
            rng.choices(list(moves), list(moves.values()))[0]()
        else:
            machine.begin(rng.choice(SPACES), ids())
            machine.compute(0, 99)
            machine.finish(0, False, 0)
        machine.pages_are_conserved_and_the_structure_holds()
        machine.every_page_holds_what_it_should()
    machine.teardown()
