"""The store of transcripts: bounded, one shelf a tenant, and what is left is always a whole sequence."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.runtime.server.transcripts import OVERHEAD, VARIANTS, Link, Print, Transcripts


def put(
    store: Transcripts, key: str, parent: int | None = None, answer: Sequence[int] = (1,), tenant: str = "t"
) -> int:
    """The serial of the record."""
    store.add(tenant, [key.encode()], Link(parent, Print.of(key), [7]), answer)
    found = store.find(tenant, key.encode())
    return found[0][-1].serial if found else -1


def test_a_chain_goes_back_to_the_beginning():
    store = Transcripts(1 << 20)
    first = put(store, "a", answer=[1, 2])
    second = put(store, "b", first, [3])
    put(store, "c", second, [4])
    (chain,) = store.find("t", b"c")
    assert [list(record.answer) for record in chain] == [[1, 2], [3], [4]]
    assert store.find("t", b"d") == []


def test_a_tenant_finds_its_own_alone():
    store = Transcripts(1 << 20)
    put(store, "a", tenant="alice")
    assert store.find("bob", b"a") == []
    assert store.find("", b"a") == []
    assert len(store.find("alice", b"a")) == 1


def test_one_answer_twice_is_one_record():
    store = Transcripts(1 << 20)
    assert put(store, "a") == put(store, "a")
    assert len(store) == 1
    put(store, "a", answer=[2])
    assert [list(chain[-1].answer) for chain in store.find("t", b"a")] == [[2], [1]]


def test_variants_of_a_key_are_bounded_and_the_newest_stay():
    store = Transcripts(1 << 20)
    for answer in range(3 * VARIANTS):
        put(store, "a", answer=[answer])
    assert [chain[-1].answer[0] for chain in store.find("t", b"a")] == list(
        range(3 * VARIANTS - 1, 2 * VARIANTS - 1, -1)
    )


def test_what_was_used_last_stays():
    store = Transcripts(3 * (OVERHEAD + 8))
    for key in "abc":
        put(store, key)
    store.find("t", b"a")
    put(store, "d")
    assert [key for key in "abcd" if store.find("t", key.encode())] == ["a", "c", "d"]


def test_a_chain_is_used_as_a_whole():
    store = Transcripts(3 * (OVERHEAD + 8))
    first = put(store, "a")
    put(store, "b")
    put(store, "c", first)  # "b" is the oldest now
    store.find("t", b"c")
    put(store, "d")
    assert [key for key in "abcd" if store.find("t", key.encode())] == ["a", "c", "d"]


def test_what_has_lost_its_beginning_is_not_found():
    store = Transcripts(OVERHEAD + 20)
    first = put(store, "a")
    assert put(store, "b", first) == -1
    assert len(store) == 1


def test_the_tenant_that_holds_most_gives_way():
    store = Transcripts(10 * (OVERHEAD + 8))
    put(store, "mine", tenant="small")
    for at in range(50):
        put(store, str(at), tenant="large")
    assert len(store.find("small", b"mine")) == 1
    assert len(store) == 10


def test_what_is_larger_than_the_store_is_left_out():
    store = Transcripts(OVERHEAD + 40)
    put(store, "a", answer=range(100))
    assert len(store) == 0
    put(store, "b")
    assert len(store) == 1


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 9), st.integers(0, 9), st.integers(1, 200)), max_size=80),
    st.integers(0, 20_000),
)
@settings(max_examples=60, deadline=None)
def test_it_is_bounded_and_whole_whatever_comes(steps: list[tuple[str, int, int, int]], limit: int):
    store = Transcripts(limit)
    for tenant, key, before, size in steps:
        parents = store.find(tenant, str(before).encode())
        parent = parents[0][-1].serial if parents else None
        put(store, str(key), parent, range(size), tenant)
        assert store.size <= limit
        found = [chain for name in "xyz" for at in range(10) for chain in store.find(name, str(at).encode())]
        assert all(chain[0].parent is None for chain in found)
        assert all(b.parent == a.serial for chain in found for a, b in pairwise(chain))
    assert store.size == sum(record.size for shelf in store._shelves.values() for record in shelf.records.values())
    assert all(shelf.records for shelf in store._shelves.values())


def test_a_record_is_as_large_as_it_is_said_to_be():
    store = Transcripts(1 << 30)
    tracemalloc.start()
    try:
        for at in range(2_000):
            keys = [f"{at:016}".encode(), f"{at:017}".encode()]
            store.add("t", keys, Link(at or None, Print.of(str(at)), range(50)), range(30))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.size * 0.7 < used < store.size * 1.3


@pytest.mark.parametrize("limit", [0, 1])
def test_no_room_keeps_nothing(limit: int):
    store = Transcripts(limit)
    assert put(store, "a") == -1
    assert store.size == len(store) == 0
