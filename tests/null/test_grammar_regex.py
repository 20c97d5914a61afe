"""The regex layer against Python's `re`."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bosquet.errors import GrammarInvalid
from bosquet.grammar import char_sets as cs
from bosquet.grammar.regex import JSON_SAFE, Regex, excluding


def python_form(written: str) -> str:
    """What we write uses \\u{hex}; Python spells it \\Uxxxxxxxx."""
    return re.sub(r"\\u\{([0-9a-f]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", written)


def matches(written: str | None, text: str) -> bool:
    return written is not None and re.fullmatch(python_form(written), text) is not None


ATOMS = [
    "a",
    "b",
    "[ab]",
    "[^a]",
    ".",
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    "[a-c1]",
    r"[^\w]",
    r"[\s\d]",
    "é",
    r"\.",
    r"\x41",
]
regexes = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}?"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=6,
)
anchored = st.tuples(st.sampled_from(["", "^"]), regexes, st.sampled_from(["", "$"])).map("".join)
texts = st.text(alphabet="ab1A.é٣ \n\u00a0\u2028_c", max_size=6)


@settings(max_examples=120, deadline=None)
@given(anchored, st.lists(texts, min_size=3, max_size=12))
def test_what_is_written_matches_only_what_both_dialects_match(pattern, candidates):
    whole, search = Regex.whole(pattern).write(), Regex.search(pattern).write()
    for text in candidates:
        for flags in (0, re.ASCII):
            if matches(whole, text):
                assert re.fullmatch(pattern, text, flags)
            if matches(search, text):
                assert re.search(pattern, text, flags)


plain = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "c"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map(lambda p: f"({p[0]}){p[1]}"),
    ),
    max_leaves=6,
)
top = st.lists(
    st.tuples(st.sampled_from(["", "^"]), plain, st.sampled_from(["", "$"])).map("".join), min_size=1, max_size=3
).map("|".join)


@settings(max_examples=120, deadline=None)
@given(top, st.lists(st.text(alphabet="abc", max_size=7), min_size=3, max_size=12))
def test_without_ambiguous_classes_the_language_is_exactly_the_same(pattern, candidates):
    regex = Regex.search(pattern)
    written = regex.write()
    low, high = regex.lengths
    for text in candidates:
        found = re.search(pattern, text) is not None
        assert matches(written, text) == found
        if found:
            assert low <= len(text)
            assert high is None or len(text) <= high


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^a|b$", ["ax", "xb", "a\nb"], ["xa", "bx"]),
        ("(^a|b)c", ["ac", "xbc", "acx"], ["xac"]),
        ("^(a|b)$", ["a", "b"], ["ab", ""]),
        ("^$", [""], ["a"]),
        ("", ["", "anything\n"], []),
        ("a.c", ["xabcx"], ["a\nc", "a\u2028c"]),
        ("^[^\\s]$", ["a"], ["\u00a0", " "]),
        ("^[\\w.-]$", ["_", "-", "."], ["é", "/"]),
        ("^[\\d-x]$", ["-", "5", "x"], ["a"]),
        ("^\\/\\-\\!$", ["/-!"], ["/-"]),
        ("^\\ud83d\\ude00$", ["😀"], []),
        ("^(?<year>\\d{4})$", ["2024"], ["24"]),
    ],
)
def test_search_semantics(pattern, yes, no):
    written = Regex.search(pattern).write()
    assert [text for text in yes if not matches(written, text)] == []
    assert [text for text in no if matches(written, text)] == []


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[", "not closed at position 1"),
        ("(a", "not closed at position 2"),
        ("a)", "unmatched"),
        ("*", "nothing to repeat at position 0"),
        ("a**", "repeat of a repeat"),
        ("a++", "possessive"),
        ("(?=a)b", "look-ahead"),
        ("a(?!b)", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        ("(?>a)", "atomic"),
        ("(?i)a", "flag"),
        ("(a)\\1", "back-reference"),
        ("(?P<n>a)(?P=n)", "flag or an unknown group"),
        ("\\bword", "word boundary"),
        ("\\p{L}", "\\p"),
        ("a{3,2}", "wrong order"),
        ("a{,3}", "lower bound"),
        ("[b-a]", "wrong order"),
        ("[]a]", "begins with"),
        ("a^b", "anchor"),
        ("a$b", "anchor"),
        ("(a$)*", "anchor"),
        ("^*", "repeated anchor"),
        ("\\", "backslash"),
        ("\\u12", "malformed"),
        ("\\ud800", "surrogate"),
        ("(((a{100}){100}){100})", "multiply"),
        ("(" * 101 + ")" * 101, "deep"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(pattern, message):
    with pytest.raises(GrammarInvalid, match=re.escape(message)):
        Regex.search(pattern)


def test_only_characters_that_need_no_escape_are_written_for_json():
    written = Regex.search('^[a"\\\\\n]+$').write(JSON_SAFE)
    assert written == "a+"
    assert Regex.search('^"').write(JSON_SAFE) is None
    assert Regex.search('^(?:"|b)$').write(JSON_SAFE) is not None


def test_half_open_classes_that_match_nothing_are_nothing():
    assert Regex.whole("[^\\s\\S]").write() is None
    assert matches(Regex.whole("a|[^\\s\\S]").write(), "a")


@settings(deadline=None)
@given(st.lists(st.text(alphabet='ab"é', max_size=9), max_size=5), st.text(alphabet="abé", max_size=10))
def test_excluding_names_never_matches_one_and_misses_only_near_ones(names, text):
    found = matches(excluding(names), text)
    assert not (found and text in names)
    if not any(name[:6] == text[:6] for name in names):
        assert found


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=6)


@settings(deadline=None)
@given(ranges, ranges)
def test_char_sets_are_sets(first, second):
    a, b = cs.make(first), cs.make(second)
    left = {code for low, high in first for code in range(low, high + 1)}
    right = {code for low, high in second for code in range(low, high + 1)}

    def members(chars):
        return {code for low, high in chars for code in range(low, min(high, 100) + 1)}

    assert members(a) == left
    assert members(cs.union(a, b)) == left | right
    assert members(cs.intersect(a, b)) == left & right
    assert members(cs.complement(a)) == set(range(101)) - left
    assert all(low > before + 1 for (_, before), (low, _) in pairwise(a))


def test_bounds_on_classes_hold_for_all_of_unicode():
    """The outer sets lie around what Python's Unicode classes hold."""
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    digits, words, spaces = (set(map(ord, re.findall(name, everything))) for name in (r"\d", r"\w", r"\s"))
    assert {code for low, high in cs.any_digit() for code in range(low, high + 1)} == digits
    assert not [c for low, high in cs.complement(cs.ANY_WORD) for c in range(low, high + 1) if c in words]
    assert spaces <= {c for low, high in cs.ANY_SPACE for c in range(low, high + 1)}
