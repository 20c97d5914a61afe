"""A grammar after a marker, against a model that looks at the whole list of ids each time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from grammar_vocabulary import (
    BYTE,
    EMPTY,
    END_OF_TEXT,
    HEAD,
    IM_END,
    IM_START,
    OUTSIDE,
    TOKENS,
    TOOL,
    mask_of,
    mismatches,
    spell,
    tokens_in,
    vocabulary,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import MAX_MARKER, GrammarCompiler
from bosquet.types import GrammarSpec

A, B = BYTE[b"a"], BYTE[b"b"]
COMPILER = GrammarCompiler(vocabulary())
MARKERS = [(A,), (A, B), (A, A, B), (A, B, A, B, B), (A, A, A), (TOOL,), (IM_START, A)]


def after(marker, value="[ab]{2}c?"):
    return COMPILER.compile(GrammarSpec("regex", value, after=marker))


def split(ids, marker):
    """(free part with the marker, part of the grammar); the second is None while the marker is not there."""
    for end in range(len(marker), len(ids) + 1):
        if tuple(ids[end - len(marker) : end]) == marker:
            return ids[:end], ids[end:]
    return ids, None


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(MARKERS),
    st.lists(st.tuples(st.sampled_from(["take"] * 6 + ["undo", "fork"]), st.sampled_from([A, A, B, B, BYTE[b"c"], TOOL,
             IM_START, IM_END, END_OF_TEXT, EMPTY, *OUTSIDE]), st.integers(0, 6)), max_size=30),
)  # fmt: skip
def test_it_is_the_grammar_of_what_follows_the_marker(marker, actions):
    inner = COMPILER.compile(GrammarSpec("regex", "[ab]{2}c?"))
    matcher, ids = after(marker).matcher(), []
    for action, token, count in actions:
        if action == "take":
            _, rest = split(ids, marker)
            if rest is None:
                wanted = 0 <= token < len(TOKENS) and token not in (IM_END, END_OF_TEXT)
            else:
                model = inner.matcher()
                assert model.try_accept(rest) == len(rest)
                wanted = model.try_accept([token]) == 1
            assert (matcher.try_accept([token]) == 1) == wanted
            ids += [token] * wanted
        elif action == "undo":
            count = min(count, len(ids))
            matcher.rollback(count)
            ids = ids[: len(ids) - count]
        else:
            left, matcher = matcher, matcher.fork()
            left.try_accept([B, A])
        _, rest = split(ids, marker)
        model = inner.matcher()
        model.try_accept(rest or [])
        assert matcher.terminated == (rest is not None and model.terminated)
        assert matcher.completed == (rest is not None and model.completed)
        assert matcher.forced_tokens() == ([] if rest is None or model.terminated else model.forced_tokens())
        if rest is not None and not model.terminated:
            assert np.array_equal(mask_of(matcher), mask_of(model))
    replayed = after(marker).matcher()
    assert replayed.try_accept(ids) == len(ids)
    if not matcher.terminated:
        assert np.array_equal(mask_of(matcher), mask_of(replayed))


def test_before_the_marker_all_may_come_but_the_end_and_padding():
    matcher = after((A, B)).matcher()
    allowed = tokens_in(mask_of(matcher))
    assert set(allowed) == set(range(len(TOKENS))) - {IM_END, END_OF_TEXT}
    assert mismatches(matcher, mask_of(matcher)) == []
    assert not matcher.completed
    assert matcher.try_accept([HEAD - 1]) == 0
    with pytest.raises(ValueError, match="mask row"):
        matcher.fill_mask(np.zeros(3, dtype=np.int32))


def test_one_call_goes_across_the_switch_in_both_ways():
    matcher = after((A, B), "xy").matcher()
    assert matcher.try_accept([A, A, B, *spell("xy"), IM_END, A]) == 6
    assert matcher.terminated
    matcher.rollback(4)
    assert not matcher.completed
    assert IM_END not in tokens_in(mask_of(matcher))
    assert matcher.try_accept([A]) == 1  # free again
    matcher.rollback(1)
    assert matcher.try_accept([B, *spell("xz")]) == 2
    assert matcher.forced_tokens() == spell("y")
    matcher.rollback(4)
    with pytest.raises(ValueError, match="cannot be undone"):
        matcher.rollback(1)


def test_tokens_that_hold_more_than_the_marker_are_not_the_marker():
    """It is a sequence of ids: the same bytes as another token do not switch."""
    matcher = after((A, B)).matcher()
    assert matcher.try_accept([BYTE[b"ab"], *spell("zz")]) == 3


def test_the_answer_is_held_to_schemas_and_what_is_relaxed_is_still_said():
    schema = json.dumps({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    compiled = COMPILER.compile(GrammarSpec("json_schema", schema, after=(TOOL,)))
    assert [item.keyword for item in compiled.relaxed] == ["uniqueItems"]
    matcher = compiled.matcher()
    assert matcher.try_accept([*spell("[x"), TOOL, *spell("[1]")]) == 6
    assert matcher.completed
    assert compiled.size_bytes > 0


def test_markers_that_cannot_come_are_refused():
    for marker in ((IM_END,), (A, END_OF_TEXT), (HEAD,), (-1,), (len(TOKENS),), (A,) * (MAX_MARKER + 1)):
        with pytest.raises(GrammarInvalid, match="after"):
            after(marker)


def test_the_marker_is_no_part_of_what_is_cached():
    spec = GrammarSpec("regex", "cached[0-9]")
    inner = COMPILER.compile(spec)
    cached = COMPILER.cached_bytes
    for marker in MARKERS:
        found = COMPILER.find(GrammarSpec("regex", "cached[0-9]", after=marker))
        assert found is not None
        assert found.matcher().try_accept(marker) == len(marker)
    assert COMPILER.cached_bytes == cached
    assert COMPILER.find(spec) is inner
    assert COMPILER.find(GrammarSpec("regex", "never seen")) is None
