"""Each rule of the tree's structure by itself. Pages are told apart by number; the state machine has their contents."""

from array import array

import numpy as np
import pytest

from bosquet.errors import CacheCorrupt
from bosquet.radix_cache import Key, Match, Namespace, PagePool, RadixCache

NS = Namespace("a", "base")


class Harness:
    """A cache, the sequences put into it, and what its listener was told."""

    def __init__(self, pages=64):
        self.time = 0.0
        self.pool = PagePool(pages)
        self.events = []
        self.cache = RadixCache(self.pool, clock=self.tick, listener=self)

    def tick(self):
        self.time += 1
        return self.time

    def inserted(self, node, pages):
        self.events.append(("inserted", node.prefix().ids(), list(pages)))

    def evicted(self, node, pages, cause):
        assert node.pages[-len(pages) :] == list(pages)
        self.events.append((cause, node.prefix().ids(), list(pages)))

    def put(self, ids, ns=NS, held=None):
        """Insert `ids` on pages of our own; returns (insertion, our pages)."""
        own = self.pool.take(-(-len(ids) // 16))
        insertion = self.cache.insert(ns, ids, own, held=held)
        self.pool.give(insertion.duplicates)
        self.cache.check_integrity([])
        return insertion, own

    def match(self, ids, limit=None, ns=NS):
        found = self.cache.match(ns, ids, limit)
        assert len(found.pages) == found.length // 16
        assert (found.tail[1] if found.tail else 0) == found.length % 16
        return found


def run(first, n):
    return list(range(first, first + n))


def test_an_empty_tree_matches_nothing():
    h = Harness()
    found = h.match(run(0, 40))
    assert (found.length, found.pages, found.tail) == (0, [], None)
    h.cache.pin(found.node)
    h.cache.check_integrity([])
    h.cache.unpin(found.node)
    assert h.cache.insert(NS, [], []).pages == []
    assert h.cache.version == 0


@pytest.mark.parametrize("n", [1, 15, 16, 17, 32, 40])
def test_a_sequence_is_found_token_exact(n):
    h = Harness()
    insertion, own = h.put(run(0, n))
    assert insertion.pages == own
    assert insertion.duplicates == []
    assert h.cache.cached == len(own)
    for length in range(n + 1):
        for query, limit in ((run(0, length), None), (run(0, length) + run(900, 30), None), (run(0, n), length)):
            found = h.match(query, limit)
            assert found.length == length
            assert found.pages == own[: length // 16]
            assert found.tail == ((own[length // 16], length % 16) if length % 16 else None)


def test_a_hit_may_be_limited_below_zero():
    h = Harness()
    h.put(run(0, 20))
    assert h.match([], -1).length == 0


def test_ids_come_in_any_form():
    h = Harness()
    ids = run(5, 37)
    h.put(ids)
    forms = [
        tuple(ids), array("i", ids), array("q", ids), np.array(ids), np.array(ids, np.int32), np.array(ids, np.uint8),
        np.array(ids + ids, np.int32).reshape(2, -1).T[:, 0], Key.of(ids), range(5, 42),
    ]  # fmt: skip
    assert [h.match(form).length for form in forms] == [37] * len(forms)
    with pytest.raises(TypeError):
        Key.of(np.array(ids, float))
    with pytest.raises(TypeError):
        Key.of(np.array([ids]))
    with pytest.raises(Exception, match="format requires"):
        Key.of([2**31])


def test_keys_are_sequences_of_tokens():
    key = Key.of([1, -2, 2**31 - 1])
    assert (len(key), key.ids(), key.prefix(2).ids()) == (3, [1, -2, 2**31 - 1], [1, -2])
    assert key.plus([7]) == Key.of([*key.ids(), 7])
    assert hash(key) == hash(Key.of(key.ids()))
    assert key != Key.of([1])


def test_nodes_split_on_page_boundaries_and_siblings_share_less_than_a_page():
    h = Harness()
    a = run(0, 64)
    b = run(0, 39) + run(500, 25)  # leaves `a` 7 tokens into its third page
    _, own = h.put(a)
    insertion, mine = h.put(b)
    (upper,) = h.cache.roots()[0].children
    assert (upper.tokens, len(upper.children)) == (32, 2)
    assert {child.start for child in upper.children} == {32}
    assert insertion.pages == own[:2] + mine[2:]
    assert insertion.duplicates == mine[:2]
    assert h.match(a).pages == own
    assert h.match(b).pages == insertion.pages
    assert h.match([*run(0, 35), 7]).tail[1] == 3


def test_match_takes_the_sibling_that_shares_most():
    h = Harness()
    stem = run(0, 16)
    tails = {k: stem + run(100, k) + [900 + k] * (16 - k) for k in range(16)}
    pages = {k: h.put(ids)[0].pages[1] for k, ids in tails.items()}
    for k in range(1, 16):
        found = h.match(stem + run(100, k) + [5000])
        # whoever shares k tokens or more will do: any of tails k, k + 1, …
        assert found.length == 16 + k
        assert found.tail[0] in {pages[j] for j in range(k, 16)}


def test_a_leaf_may_end_inside_a_page_and_a_longer_sequence_supersedes_it():
    h = Harness()
    _, own = h.put(run(0, 20))
    h.events.clear()
    insertion, mine = h.put(run(0, 50))
    assert insertion.pages == own[:1] + mine[1:]
    assert insertion.duplicates == mine[:1]
    assert h.events == [
        ("superseded", run(0, 20), [own[1]]),
        ("inserted", run(0, 50), mine[1:]),
    ]
    assert h.cache.cached == 4
    assert len(insertion.node.path()) == 1  # the leaf grew


def test_a_short_leaf_beside_others_is_superseded():
    h = Harness()
    h.put(run(0, 16) + run(300, 20))
    _, short = h.put([*run(0, 16), 7, 8, 9])
    _, shorter = h.put([*run(0, 16), 6])
    h.events.clear()
    h.put([*run(0, 16), 7, 8, 9, 10])
    assert [event[0] for event in h.events] == ["superseded", "inserted"]
    assert h.events[0][2] == short[1:]
    assert h.match([*run(0, 16), 6]).tail == (shorter[1], 1)


def test_several_pinned_prefixes_are_superseded_once_they_are_free():
    h = Harness()
    stem = run(0, 16)
    h.put(stem + run(300, 16))
    pins = []
    for n in (1, 2, 3):
        node = h.put(stem + run(50, n))[0].node
        h.cache.pin(node)
        pins.append(node)
    assert h.cache.cached == 5
    for node in pins:
        h.cache.unpin(node)
    h.events.clear()
    h.put(stem + run(50, 16) + [1])
    assert [event[0] for event in h.events] == ["superseded"] * 3 + ["inserted"]
    assert h.cache.cached == 4


@pytest.mark.parametrize("n", [5, 20])
def test_a_pinned_tail_is_not_superseded(n):
    h = Harness()
    insertion, own = h.put(run(0, n))
    h.cache.pin(insertion.node)
    h.put(run(0, 40))
    assert h.cache.cached == len(own) + 3 - n // 16
    assert set(own).isdisjoint(h.pool.free_pages())
    assert insertion.node.pages == own[-1:]  # the handle still holds the tail, on its own now
    h.cache.unpin(insertion.node)
    h.cache.check_integrity([])


def test_the_holder_of_the_only_pin_may_supersede_its_tail():
    h = Harness()
    first, own = h.put(run(0, 20))
    h.cache.pin(first.node)
    second, mine = h.put(run(0, 50), held=first.node)
    h.cache.repin(first.node, second.node)
    assert second.pages == own[:1] + mine[1:]
    assert (h.cache.cached, h.cache.evictable) == (4, 0)
    h.cache.pin(second.node)  # somebody else too, who may not have copied the tail yet
    third, _ = h.put(run(0, 64), held=second.node)
    assert h.cache.cached == 5
    assert h.match(run(0, 64)).pages == third.pages
    assert second.node.pages == mine[3:]
    h.cache.unpin(second.node)
    h.cache.unpin(second.node)
    h.cache.check_integrity([])


def test_a_tail_that_is_a_prefix_of_a_page_is_a_duplicate():
    h = Harness()
    _, own = h.put(run(0, 64))
    version = h.cache.version
    for n in (5, 16, 23, 48, 63, 64):
        insertion, mine = h.put(run(0, n))
        assert insertion.pages == own[: len(mine)]
        assert insertion.duplicates == mine
        assert insertion.node.end >= n
    assert h.cache.version == version
    assert h.cache.cached == 4
    branch, _ = h.put(run(0, 32) + run(700, 30))
    again, mine = h.put(run(0, 32) + run(700, 5))  # a prefix of a sibling's first page
    assert again.pages == branch.pages[:3]
    assert again.duplicates == mine
    assert again.node is branch.node


def test_inserting_page_by_page_keeps_one_node():
    h = Harness()
    ids, pages, node = run(0, 320), [], None
    for whole in range(16, 321, 16):
        pages += h.pool.take(1)
        insertion = h.cache.insert(NS, ids[:whole], pages)
        h.cache.pin(insertion.node)
        if node is not None:
            h.cache.unpin(node)
        node = insertion.node
        assert (insertion.pages, insertion.duplicates) == (pages, [])
        assert h.cache.evictable == 0
        h.cache.check_integrity([])
    assert len(node.path()) == 1
    h.cache.unpin(node)
    assert h.cache.evictable == 20


def test_a_leaf_that_others_hold_does_not_grow():
    h = Harness()
    base = h.put(run(0, 16))[0].node
    h.cache.pin(base)
    h.cache.pin(base)
    insertion, _ = h.put(run(0, 48))
    assert insertion.node.path() == [base, insertion.node]
    assert h.cache.evictable == 2


def test_pins_survive_a_split():
    h = Harness()
    first = h.put(run(0, 64))[0].node
    h.cache.pin(first)
    h.cache.pin(first)
    second = h.put(run(0, 20) + run(800, 30))[0].node
    assert [node.locks for node in first.path()] == [2, 2]
    assert [node.pins for node in first.path()] == [0, 2]
    assert h.cache.evict(99) == 3
    assert not second.alive
    h.cache.unpin(first)
    h.cache.unpin(first)
    h.cache.check_integrity([])
    assert h.cache.evict(99) == 4
    h.cache.check_integrity([])


def test_namespaces_never_see_each_other():
    h = Harness()
    h.put(run(0, 40))
    for other in (Namespace("b", "base"), Namespace("a", "lora"), Namespace()):
        assert h.match(run(0, 40), ns=other).length == 0
        insertion, own = h.put(run(0, 40), ns=other)
        assert insertion.pages == own
    assert h.cache.cached == 12


def test_a_node_that_left_cannot_be_pinned_nor_unpinned():
    h = Harness()
    node = h.put(run(0, 40))[0].node
    with pytest.raises(CacheCorrupt, match="0 pins"):
        h.cache.unpin(node)
    h.cache.evict(99)
    with pytest.raises(CacheCorrupt, match="has left"):
        h.cache.pin(node)
    h.cache.check_integrity([])


def test_insert_refuses_pages_that_do_not_fit():
    h = Harness()
    _, own = h.put(run(0, 32))
    version = h.cache.version
    fresh = h.pool.take(2)
    for ids, pages in [
        (run(0, 33), own),  # too few
        (run(0, 32), own + fresh),  # too many
        (run(700, 32), own),  # the tree's, elsewhere
        (run(0, 32), own[::-1]),
        (run(700, 32), fresh[:1] * 2),
        (run(0, 16) + run(700, 16), [fresh[0], fresh[0]]),
    ]:
        with pytest.raises(CacheCorrupt, match="insert"):
            h.cache.insert(NS, ids, pages)
        h.cache.check_integrity(fresh)
    assert h.cache.version == version


def test_version_changes_with_the_answer():
    h = Harness()
    seen = [h.cache.version]
    for step in (lambda: h.put(run(0, 40)), lambda: h.put(run(0, 60)), lambda: h.cache.evict(1), h.cache.reset):
        step()
        seen.append(h.cache.version)
    assert len(set(seen)) == len(seen)
    h.match(run(0, 60))
    assert h.cache.version == seen[-1]


def test_reset_keeps_what_is_pinned():
    h = Harness()
    kept = h.put(run(0, 40))[0].node
    h.put(run(0, 16) + run(600, 40))
    h.put(run(0, 40), ns=Namespace("b"))
    h.cache.pin(kept)
    assert h.cache.reset() == 3 + 3
    assert h.match(run(0, 40)).length == 40
    assert [root.namespace for root in h.cache.roots()] == [NS]
    assert {event[0] for event in h.events} == {"inserted", "reset"}
    h.cache.unpin(kept)
    assert h.cache.reset() == 3
    assert (h.cache.roots(), h.cache.cached, h.pool.free) == ([], 0, 64)


def test_matching_changes_nothing():
    h = Harness()
    h.put(run(0, 40))
    h.put(run(0, 20) + run(100, 20))
    before = [(n.tokens, n.last_access, n.hits, n.locks) for n in h.cache.roots()[0].children]
    for n in range(45):
        h.match(run(0, n))
    assert before == [(n.tokens, n.last_access, n.hits, n.locks) for n in h.cache.roots()[0].children]
    found = h.match(run(0, 40))
    found.pages.append(-1)
    assert isinstance(found, Match)
    assert -1 not in h.match(run(0, 40)).pages
