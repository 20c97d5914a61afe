"""The incremental matcher against `bytes.find` over everything that was pushed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.errors import InvalidParameter
from bosquet.runtime.stop_strings import StopMatcher
from bosquet.types import StopMatch

_STOPS = st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), max_size=4)
_PIECES = st.lists(st.text("abc", max_size=4).map(str.encode), max_size=20)


def _naive(before: bytes, piece: bytes, stops: list[bytes]) -> StopMatch | None:
    """Looks at every place of the whole for a match that ends within `piece`."""
    whole = before + piece
    ends = range(len(before) + 1, len(whole) + 1)
    found = [(end, end - len(stop), stop) for end in ends for stop in stops if whole[:end].endswith(stop)]
    if not found:
        return None
    _, start, stop = min(found)
    return StopMatch(text=stop.decode(), trim=len(whole) - start)


@settings(deadline=None)
@given(_STOPS, _PIECES)
def test_every_push_reports_what_a_search_of_the_whole_finds(stops: list[bytes], pieces: list[bytes]) -> None:
    matcher = StopMatcher(stops)
    before = b""
    for piece in pieces:
        assert matcher.push(piece) == _naive(before, piece, stops)
        before += piece


@settings(deadline=None)
@given(_STOPS, _PIECES, _PIECES)
def test_a_fork_goes_its_own_way(stops: list[bytes], shared: list[bytes], own: list[bytes]) -> None:
    first, alone = StopMatcher(stops), StopMatcher(stops)
    for piece in shared:
        first.push(piece)
        alone.push(piece)
    second = first.fork()
    first.push(b"abba")
    assert [second.push(piece) for piece in own] == [alone.push(piece) for piece in own]


def test_of_matches_that_end_together_the_longest_counts() -> None:
    assert StopMatcher([b"b", b"aab", b"ab"]).push(b"xaab") == StopMatch(text="aab", trim=3)


def test_trim_covers_what_follows_in_the_same_token() -> None:
    matcher = StopMatcher([b"END"])
    assert matcher.push(b"the E") is None
    assert matcher.push(b"ND. And more") == StopMatch(text="END", trim=3 + len(". And more"))


def test_a_stop_string_may_begin_inside_a_character_of_a_token() -> None:
    euro = "€".encode()
    matcher = StopMatcher([euro])
    assert matcher.push(b"1 " + euro[:1]) is None
    assert matcher.push(euro[1:]) == StopMatch(text="€", trim=3)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="empty") as caught:
        StopMatcher([b"a", b""])
    assert caught.value.field == "stop"
