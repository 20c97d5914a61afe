"""Who goes first, how much goes, and what never goes."""

import random

import pytest

from bosquet.radix_cache import Lfu, Lru, Namespace, PagePool, RadixCache

NS = Namespace()


class Clock:
    now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def cache(pages=256, policy=None):
    return RadixCache(PagePool(pages), policy, clock=Clock())


def put(tree, ids):
    own = tree.pool.take(-(-len(ids) // 16))
    insertion = tree.insert(NS, ids, own)
    tree.pool.give(insertion.duplicates)
    return insertion.node


def use(tree, node):
    tree.pin(node, hit=True)
    tree.unpin(node)


def prompts(n, pages=1):
    return [[100 * k + 1] * 16 * pages for k in range(n)]


def order(tree, ids):
    """The indices of the one-page prompts `ids` in the order in which they are evicted."""
    gone = []
    while tree.evict(1):
        tree.check_integrity([])
        gone += [k for k, one in enumerate(ids) if k not in gone and not tree.match(NS, one).length]
    return gone


def test_lru_takes_the_least_recently_used():
    tree, ids = cache(), prompts(5)
    nodes = [put(tree, one) for one in ids]
    use(tree, nodes[1])
    put(tree, ids[0])  # inserting again is a use too
    assert order(tree, ids) == [2, 3, 4, 1, 0]


def test_lfu_takes_the_least_often_used_and_then_the_oldest():
    tree, ids = cache(policy=Lfu()), prompts(5)
    nodes = [put(tree, one) for one in ids]
    for k in (3, 0, 0, 2, 3):
        use(tree, nodes[k])
    tree.pin(nodes[4])  # a pin that is no hit
    tree.unpin(nodes[4])
    assert order(tree, ids) == [1, 4, 2, 0, 3]


def test_frequency_survives_a_split():
    tree = cache(policy=Lfu())
    stem, rare = [7] * 32, [8] * 16
    popular = put(tree, stem)
    for _ in range(3):
        use(tree, popular)
    other = put(tree, rare)
    use(tree, other)
    put(tree, stem[:16] + [9] * 16)  # splits `stem`
    tree.pin(other)
    assert tree.evict(2) == 2  # both halves that are leaves
    tree.unpin(other)
    assert tree.evict(1) == 1
    assert (tree.match(NS, rare).length, tree.match(NS, stem).length) == (0, 16)


def test_a_policy_of_ones_own():
    class Longest:
        def rank(self, node):
            return (-node.tokens,)

    tree = cache(policy=Longest())
    for k, pages in enumerate((2, 4, 3)):
        put(tree, [1000 + k] * 16 * pages)
    assert tree.evict(1) == 1
    assert tree.match(NS, [1001] * 64).length == 48
    assert tree.evict(2) == 2  # one from the tie that was offered first, then one from the other
    assert tree.match(NS, [1001] * 64).length + tree.match(NS, [1002] * 64).length == 96 - 32


@pytest.mark.parametrize("tail", [0, 5])
def test_a_leaf_is_trimmed_from_its_end_only_as_far_as_needed(tail):
    tree = cache(16)
    ids = list(range(16 * 8 + tail))
    put(tree, ids)
    kept = 8 + bool(tail)
    for n in (1, 3, 2):
        assert tree.evict(n) == n
        kept -= n
        assert (tree.cached, tree.evictable, tree.pool.free) == (kept, kept, 16 - kept)
        assert tree.match(NS, ids).length == 16 * kept
        tree.check_integrity([])
    assert tree.evict(99) == kept
    assert tree.evict(1) == 0
    assert tree.evict(0) == 0


def test_no_node_goes_before_those_below_it():
    tree = cache()
    stem = list(range(32))
    old = put(tree, stem + [500] * 16)
    young = put(tree, stem + [600] * 16)
    use(tree, old)
    assert tree.evict(1) == 1
    assert tree.match(NS, stem + [600] * 16).length == 32
    assert not young.alive
    assert tree.evict(1) == 1
    assert tree.match(NS, stem + [500] * 16).length == 32
    assert tree.evict(1) == 1
    assert tree.match(NS, stem).length == 16


def test_a_pin_protects_the_whole_path():
    tree = cache()
    stem = list(range(48))
    put(tree, stem + [500] * 32)
    deep = put(tree, stem + [600] * 32)
    tree.pin(deep)
    assert tree.evictable == 2
    assert tree.evict(99) == 2
    assert tree.match(NS, stem + [600] * 32).length == 80
    assert tree.evictable == 0
    tree.check_integrity([])
    tree.unpin(deep)
    assert tree.evict(99) == 5


def test_a_page_in_the_middle_of_a_pinned_node_stays():
    tree = cache()
    ids = list(range(64))
    put(tree, ids)
    found = tree.match(NS, ids, 21)
    tree.pin(found.node)
    assert found.tail is not None
    assert tree.evict(99) == 0
    tree.unpin(found.node)
    assert tree.evict(99) == 4


@pytest.mark.parametrize("policy", [Lru(), Lfu()])
def test_the_order_is_that_of_a_search_through_all_leaves(policy):
    """Against the obvious algorithm: look at every unpinned leaf each time."""
    rng = random.Random(7)
    tree = cache(4096, policy)
    nodes = []
    for _ in range(120):
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 4))]
        nodes.append(put(tree, [token for token in ids for _ in range(16)]))
        use(tree, rng.choice(nodes))
        nodes = [node for node in nodes if node.alive]
    pinned = rng.sample(nodes, 4)
    for node in pinned:
        tree.pin(node)
    while tree.evictable:
        leaves = [node for node in walk(tree) if not node.children and not node.locks]
        expected = min(leaves, key=policy.rank)
        page = expected.pages[-1]
        assert tree.evict(1) == 1
        assert page in tree.pool.free_pages()
        tree.check_integrity([])
    assert tree.cached == len({page for node in pinned for above in node.path() for page in above.pages})


def walk(tree):
    pending = tree.roots()
    while pending:
        node = pending.pop()
        pending += node.children
        if node.parent is not None:
            yield node


def test_the_heap_stays_small_while_nothing_is_evicted():
    tree = cache()
    nodes = [put(tree, one) for one in prompts(20)]
    for k in range(5000):
        use(tree, nodes[k % 20])
    assert len(tree._candidates._heap) <= 2 * 20 + 64
    tree.check_integrity([])


def test_what_is_worth_more_goes_later_and_the_policy_decides_among_equals():
    tree, ids = cache(), prompts(5)
    nodes = [put(tree, one) for one in ids]
    tree.value(nodes[0], 2.0)
    tree.value(nodes[1], 1.0)
    tree.value(nodes[3], 1.0)
    use(tree, nodes[1])
    assert order(tree, ids) == [2, 4, 3, 1, 0]


def test_worth_is_no_pin_and_can_be_taken_back():
    tree, ids = cache(), prompts(3)
    nodes = [put(tree, one) for one in ids]
    tree.value(nodes[0], 5.0)
    tree.value(nodes[0], 0.0)
    tree.value(nodes[2], 5.0)
    assert order(tree, ids) == [0, 1, 2]


def test_worth_given_while_pinned_counts_once_free():
    tree, ids = cache(), prompts(2)
    nodes = [put(tree, one) for one in ids]
    tree.pin(nodes[0])
    tree.value(nodes[0], 1.0)
    tree.unpin(nodes[0])
    assert order(tree, ids) == [1, 0]


def test_a_split_leaves_worth_at_the_end():
    """What is above goes only after what stands on it, so that the end's worth protects it."""
    tree = cache()
    stem = [7] * 48
    tree.value(put(tree, stem), 3.0)
    put(tree, stem[:16] + [9] * 16)
    put(tree, [5] * 32)
    assert tree.evict(3) == 3
    assert tree.match(NS, stem).length == 48
