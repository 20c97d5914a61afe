"""Docstrings are read as they were written, in each of three manners."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from bosquet.lang.docstrings import described

WORD = st.from_regex(r"[a-z]{2,8}", fullmatch=True).filter(lambda word: word not in ("args", "note", "returns"))
WORDS = st.lists(WORD, min_size=1, max_size=12).map(" ".join)
NAMES = st.lists(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), min_size=1, max_size=4, unique=True)


def wrapped(text: str, first: str, rest: str) -> list[str]:
    """The words on lines of three."""
    words = text.split()
    rows = [" ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
    return [(rest if i else first) + row for i, row in enumerate(rows)]


def google(said: dict[str, str], typed: bool) -> list[str]:
    lines = ["Args:"]
    for name, text in said.items():
        lines += wrapped(text, f"    {name}{' (int)' if typed else ''}: ", "        ")
    return [*lines, "", "Returns:", "    x: of no interest"]


def numpy(said: dict[str, str], typed: bool) -> list[str]:
    lines = ["Parameters", "----------"]
    for name, text in said.items():
        lines += [f"{name} : int" if typed else name, *wrapped(text, "    ", "    ")]
    return [*lines, "", "Returns", "-------", "x : int", "    of no interest"]


def rest(said: dict[str, str], typed: bool) -> list[str]:
    lines = []
    for name, text in said.items():
        lines += wrapped(text, f":param {'int ' if typed else ''}{name}: ", "    ")
    return [*lines, ":returns: of no interest", ":raises ValueError: never"]


@given(st.data(), st.sampled_from([google, numpy, rest]), st.booleans(), st.integers(0, 8))
def test_docstrings_say_what_was_written(
    data: st.DataObject, style: Callable[[dict[str, str], bool], list[str]], typed: bool, indent: int
) -> None:
    said = {name: data.draw(WORDS) for name in data.draw(NAMES)}
    summary = data.draw(WORDS)
    lines = [summary, "", *style(said, typed), ""]
    docstring = ("\n" + " " * indent).join(lines)
    kept = dict(list(said.items())[: data.draw(st.integers(0, len(said)))])  # what the function really has
    found = described(docstring, kept)
    assert found.text == summary
    assert found.parameters == kept


def test_odd_docstrings() -> None:
    assert described("", ["x"]) == ("", {})
    assert described("Args:\n    x: a\nMore.", ["x"]) == ("", {"x": "a"})
    assert described("A.\n\nArgs:\n    x: a\n    goes on", ["x"]).parameters == {"x": "a goes on"}
    assert described("Just words: with a colon.\n\n    x: code", ["x"]).parameters == {}
    assert described("A.\n\nNote:\n    Careful.\nB.", ["x"]) == ("A.", {})
    assert described("A.\n\nArgs:\n    x: a\n\n        b\n    y:\n        c", ["x", "y"]).parameters == {
        "x": "a\n\nb",
        "y": "c",
    }
    assert described("A.\n\nParameters\n----------\nx, y : int\n    Both.", ["x", "y"]).parameters == {
        "x": "Both.",
        "y": "Both.",
    }
    assert described("Args: are not a section here.\nMore.", []).text == "Args: are not a section here.\nMore."
