"""I7: however the tokens are cut into steps, the pieces add up to the text of one step."""

import codecs
import time
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.runtime.stop_strings import StopMatcher
from bosquet.runtime.text_stream import TextStream
from bosquet.types import FinishReason, StopMatch

END = 0
SPECIAL = 1


class Vocabulary(NamedTuple):
    token_bytes: list[bytes]
    special_ids: frozenset[int]


class Run(NamedTuple):
    """What an engine says of one choice: its tokens, and why it ended."""

    vocabulary: Vocabulary
    stops: list[bytes]
    tokens: list[int]
    finish: FinishReason
    stop: StopMatch | None


_PIECES = st.one_of(
    st.text("ab€é🙂 ", min_size=1, max_size=3).map(str.encode),
    st.sampled_from([bytes([byte]) for byte in (*b"ab", *"€🙂é".encode(), 0xFF)]),
)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    table = [b"<end>", b"<special>", *draw(st.lists(_PIECES, min_size=1, max_size=8))]
    vocabulary = Vocabulary(table, frozenset((END, SPECIAL)))
    stops = [text.encode() for text in draw(st.lists(st.text("ab€🙂", min_size=1, max_size=4), max_size=3))]
    wanted = draw(st.lists(st.integers(0, len(table)), max_size=25))  # one id past the table: padding of the head
    matcher = StopMatcher(stops)
    tokens: list[int] = []
    for token in wanted:
        tokens.append(token)
        if token == END:
            return Run(vocabulary, stops, tokens, "stop", StopMatch(token=END))
        visible = token < len(table) and token != SPECIAL
        match = matcher.push(table[token] if visible else b"")
        if match is not None:
            return Run(vocabulary, stops, tokens, "stop", match)
    return Run(vocabulary, stops, tokens, "length", None)


def _expected(run: Run) -> str:
    """Join everything, cut, decode once."""
    table = run.vocabulary.token_bytes
    data = b"".join(table[token] for token in run.tokens if token not in (END, SPECIAL, len(table)))
    if run.stop is not None and run.stop.text is not None:
        data = data[: len(data) - run.stop.trim]
    return data.decode("utf-8", "replace")


@settings(deadline=None)
@given(runs(), st.data())
def test_pieces_add_up_to_the_text_of_one_step(run: Run, data: st.DataObject) -> None:
    stream = TextStream(run.vocabulary, run.stops)
    out = ""
    left = run.tokens
    while len(left) > 1 and (taken := data.draw(st.integers(0, len(left) - 1))):
        out += stream.push(left[:taken])
        assert _expected(run).startswith(out), "what is out must never be taken back"
        left = left[taken:]
    out += stream.push(left, run.finish, run.stop)
    assert out == _expected(run)


@settings(deadline=None)
@given(runs())
def test_nothing_is_held_back_without_need(run: Run) -> None:
    """After every token, what is not out yet is an unfinished character or the beginning of a stop string."""
    stream = TextStream(run.vocabulary, run.stops)
    table = run.vocabulary.token_bytes
    out, seen = "", b""
    for token in run.tokens[:-1]:
        out += stream.push([token])
        seen += table[token] if token not in (SPECIAL, len(table)) else b""
        held = next(
            n
            for n in range(len(seen), -1, -1)
            if n == 0 or any(len(stop) > n and stop.startswith(seen[len(seen) - n :]) for stop in run.stops)
        )
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        assert out == decoder.decode(seen[: len(seen) - held])


def test_a_possible_stop_string_is_held_until_it_is_ruled_out() -> None:
    stream = TextStream(Vocabulary([b"one ", b"EN", b"D", b"GLISH"], frozenset()), [b"END"])
    assert stream.push([0]) == "one "
    assert stream.push([1]) == ""
    assert stream.push([3]) == "ENGLISH"
    assert stream.push([1]) == ""
    assert stream.push([2], "stop", StopMatch(text="END", trim=3)) == ""


def test_held_text_comes_out_at_the_end() -> None:
    stream = TextStream(Vocabulary([b"EN"], frozenset()), [b"END"])
    assert stream.push([0]) == ""
    assert stream.push([], "length") == "EN"


def test_an_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    stream = TextStream(Vocabulary(["é".encode()[:1]], frozenset()))
    assert stream.push([0]) == ""
    assert stream.push([], "length") == "�"


def test_special_tokens_show_when_asked_for() -> None:
    """They do not take part in stop strings, and they are not the end token."""
    vocabulary = Vocabulary([b"a", b"<tool>", b"b", b"</s>"], frozenset((1, 3)))
    assert TextStream(vocabulary).push([0, 1, 2, 3], "stop", StopMatch(token=3)) == "ab"
    shown = TextStream(vocabulary, [b"xb"], skip_special=False)
    assert shown.push([0, 1]) == "a<tool>"
    assert shown.push([2, 3], "stop", StopMatch(token=3)) == "b"
    across = TextStream(vocabulary, [b"ab"], skip_special=False)
    assert across.push([0, 1]) == ""
    assert across.push([2], "stop", StopMatch(text="ab", trim=2)) == ""


def test_an_end_token_that_is_ordinary_text_is_left_out_too() -> None:
    stream = TextStream(Vocabulary([b"a", b"b"], frozenset()))
    assert stream.push([0, 1], "stop", StopMatch(token=1)) == "a"


def test_a_very_long_stop_string_costs_nothing_until_it_begins() -> None:
    stream = TextStream(Vocabulary([b"ab", b"x"], frozenset()), [b"x" + b"ab" * 500_000])
    start = time.thread_time()
    assert "".join(stream.push([0]) for _ in range(1000)) == "ab" * 1000
    assert stream.push([1]) == ""
    assert [stream.push([0]) for _ in range(100)] == [""] * 100
    assert stream.push([1]) == "x" + "ab" * 100
    assert time.thread_time() - start < 1.0


def test_pushing_after_the_end_is_a_bug() -> None:
    stream = TextStream(Vocabulary([b"a"], frozenset()))
    stream.push([0], "length")
    with pytest.raises(AssertionError, match="after the end"):
        stream.push([0])
