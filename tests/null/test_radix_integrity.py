"""The integrity check finds every kind of damage: each test breaks one thing by hand."""

import pytest

from bosquet.errors import CacheCorrupt
from bosquet.radix_cache import Namespace, PagePool, RadixCache


class Harness:
    def __init__(self):
        self.pool = PagePool(64)
        self.cache = RadixCache(self.pool)

    def put(self, ids):
        own = self.pool.take(-(-len(ids) // 16))
        insertion = self.cache.insert(Namespace(), ids, own)
        self.pool.give(insertion.duplicates)
        return insertion, own


def run(first, n):
    return list(range(first, first + n))


def damage_lock(h, node):
    node.locks += 1


def damage_child_lock(h, node):
    next(iter(node.children)).locks += 1


def damage_page(h, node):
    node.pages[0] = node.pages[-1]


def damage_index(h, node):
    node.children.ordered.reverse()


def damage_start(h, node):
    next(iter(node.children)).start += 1


def damage_run(h, node):
    node.run = node.run[:-4]


def damage_leak(h, node):
    h.pool.take(1)


def damage_double(h, node):
    h.pool._stack.append(node.pages[0])


def damage_evictable(h, node):
    h.cache._evictable += 1


def damage_candidate(h, node):
    next(iter(node.children)).ticket = 0


@pytest.mark.parametrize(
    "damage",
    [
        damage_lock, damage_child_lock, damage_page, damage_index, damage_start, damage_run, damage_leak, damage_double,
        damage_evictable, damage_candidate,
    ],
)  # fmt: skip
def test_integrity_finds_damage(damage):
    h = Harness()
    h.put(run(0, 64))
    h.put(run(0, 32) + run(400, 20))
    (upper,) = h.cache.roots()[0].children
    h.cache.check_integrity([])
    damage(h, upper)
    with pytest.raises(CacheCorrupt):
        h.cache.check_integrity([])


def test_integrity_counts_the_running_pages():
    h = Harness()
    _, own = h.put(run(0, 20))
    held = h.pool.take(3)
    h.cache.check_integrity(held)
    for wrong in (held[:2], held + own[:1], held + held[:1], []):
        with pytest.raises(CacheCorrupt, match="64 in all"):
            h.cache.check_integrity(wrong)
