"""Intersections and differences of expressions, against Python's `re` on every short text of a small alphabet."""

from __future__ import annotations

import re
import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.grammar import regex_algebra
from bosquet.grammar.regex import Regex
from bosquet.grammar.regex_algebra import Matching, TooLarge, combined, few

ALPHABET = "ab1"
TEXTS = ["".join(letters) for length in range(6) for letters in product(ALPHABET, repeat=length)]

atoms = st.sampled_from(["a", "b", "1", "[ab]", "[^a]", "\\d", "(?:)", "."])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(patterns, min_size=1, max_size=2), st.lists(patterns, max_size=2))
def test_what_is_combined_matches_just_what_it_should(wanted, unwanted):
    try:
        done = combined([Regex.whole(pattern) for pattern in wanted], [Regex.whole(pattern) for pattern in unwanted])
    except TooLarge:
        return
    inside, outside = ([re.compile(pattern) for pattern in group] for group in (wanted, unwanted))
    expected = {
        text for text in TEXTS if all(p.fullmatch(text) for p in inside) and not any(p.fullmatch(text) for p in outside)
    }
    found = set() if done is None else {text for text in TEXTS if Matching(done)(text)}
    assert found == expected
    if done is not None:  # what is written for an engine says the same
        written = re.sub(r"\\u\{([0-9a-f]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", done.write() or "(?!)")
        assert {text for text in TEXTS if re.fullmatch(written, text)} == expected


@settings(max_examples=100, deadline=None)
@given(patterns)
def test_matching_is_that_of_re(pattern):
    matches = Matching(Regex.whole(pattern))
    assert [text for text in TEXTS if matches(text)] == [text for text in TEXTS if re.fullmatch(pattern, text)]


@settings(max_examples=150, deadline=None)
@given(patterns)
def test_the_few_texts_are_all_of_them(pattern):
    found = few(Regex.whole(pattern).node)
    if found is not None:
        assert len(found) <= regex_algebra.MAX_LISTED
        assert {text for text in found if set(text) <= set(ALPHABET) and len(text) < 6} == {
            text for text in TEXTS if re.fullmatch(pattern, text)
        }


def test_some_that_are_listed_and_some_that_are_not():
    assert few(Regex.search("^(ab|a[12]?)$").node) == ("ab", "a", "a1", "a2")
    assert few(Regex.search("^a").node) is None
    assert few(Regex.search("^[a-z]{2}$").node) is None
    assert few(Regex.search("^\\w$").node) is None


def test_dialects_differ_and_neither_side_is_wrong():
    word = Regex.whole("\\w")
    other = combined([Regex.whole("[\\s\\S]")], [word])
    assert other is not None
    assert not Matching(word)("é")  # not for ECMA-262
    assert not Matching(other)("é")  # but for Python
    assert Matching(other)("-")


def test_what_is_too_large_is_said_soon():
    start = time.process_time()
    with pytest.raises(TooLarge):
        combined([Regex.search("a.{30}b")], [Regex.search("b.{30}a")])
    assert time.process_time() - start < 1


def test_matching_takes_time_that_grows_with_the_text_only():
    start = time.process_time()
    assert not Matching(Regex.whole("(a+)+"))("a" * 2000 + "!")
    assert time.process_time() - start < 1
