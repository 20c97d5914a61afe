import pytest
from hypothesis import given
from hypothesis import strategies as st

from bosquet.errors import CacheCorrupt, OutOfPages
from bosquet.radix_cache import PagePool


def test_takes_every_page_once():
    pool = PagePool(5)
    assert (pool.total, pool.free) == (5, 5)
    assert sorted(pool.take(2) + pool.take(0) + pool.take(3)) == [0, 1, 2, 3, 4]
    assert pool.free == 0


def test_out_of_pages_takes_nothing():
    pool = PagePool(3)
    pool.take(1)
    with pytest.raises(OutOfPages, match="3 pages wanted, 2 of 3 free"):
        pool.take(3)
    assert pool.free == 2
    assert sorted(pool.take(2)) == sorted(set(range(3)) - {0})


@pytest.mark.parametrize("pages", [[1], [0, 1], [0, 0], [0, 7], [-1]])
def test_a_wrong_give_is_caught_and_frees_nothing(pages):
    pool = PagePool(4)
    assert pool.take(3) == [0, 1, 2]
    pool.give([1])
    with pytest.raises(CacheCorrupt, match="was given back but"):
        pool.give(pages)
    assert pool.free_pages() == [1, 3]


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match="-1"):
        PagePool(4).take(-1)
    with pytest.raises(ValueError, match="-2"):
        PagePool(-2)


def test_the_page_given_last_is_taken_first():
    pool = PagePool(8)
    pool.take(8)
    pool.give([5, 2, 7])
    assert pool.take(3) == [5, 2, 7]


@given(st.lists(st.integers(-6, 6), max_size=40))
def test_agrees_with_a_set(moves):
    pool, held = PagePool(10), []
    for move in moves:
        if move > 0 and move > 10 - len(held):
            with pytest.raises(OutOfPages):
                pool.take(move)
        elif move >= 0:
            held += pool.take(move)
        else:
            back, held = held[:-move], held[-move:]
            pool.give(back)
        assert len(set(held)) == len(held)
        assert set(pool.free_pages()) == set(range(10)) - set(held)
        assert pool.free == 10 - len(held)
