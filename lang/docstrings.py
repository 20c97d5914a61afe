"""Docstrings, read for what they say of a function and of its parameters: Google's, numpy's and reST's ways.

Knows nothing of functions: of what stands in a list of parameters, the names that are asked for are kept.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Final, NamedTuple

_PARAMETERS: Final = frozenset(("args", "arguments", "parameters", "params", "other parameters", "keyword args"))
_OTHERS: Final = frozenset(
    (
        *("returns", "return", "yields", "yield", "raises", "raise", "warns", "warnings", "warning", "see also"),
        *("example", "examples", "note", "notes", "references", "attributes", "methods", "todo", "receives"),
    )
)
_UNDERLINE: Final = re.compile(r"-{3,}|={3,}")
_FIELD: Final = re.compile(r":(\w+)\s*([^:]*):\s*(.*)")
_PARAMETER_FIELDS: Final = frozenset(("param", "parameter", "arg", "argument", "key", "keyword"))
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


class Described(NamedTuple):
    """What a docstring says: of the whole, and of each parameter that it describes."""

    text: str
    parameters: dict[str, str]


def described(docstring: str, names: Collection[str]) -> Described:
    """The description is what stands before the first section or field, line by line. What is said of a parameter has
    its lines joined; an empty line begins a new one."""
    lines = inspect.cleandoc(docstring).splitlines()
    said: dict[str, list[str]] = {}
    text: list[str] = []
    at = 0
    while at < len(lines):
        title, underlined = _section(lines, at)
        field = _FIELD.fullmatch(lines[at])
        if title is not None:
            at = _read_section(lines, at + 1 + underlined, title, underlined, names, said)
        elif field is not None:
            at = _read_field(lines, at, field, names, said)
        else:
            if not said:  # what follows the parameters without a title of its own belongs to nobody
                text.append(lines[at])
            at += 1
    return Described("\n".join(text).strip(), {name: _joined(words) for name, words in said.items() if _joined(words)})


def _section(lines: list[str], at: int) -> tuple[str | None, bool]:
    """The title of the section that begins here, in lower case, and whether it is underlined as numpy's are."""
    line = lines[at].strip()
    if _indent(lines[at]) or not line:
        return None, False
    known = line.rstrip(":").lower()
    if known not in _PARAMETERS and known not in _OTHERS:
        return None, False
    if at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1].strip()):
        return known, True
    following = next((later for later in lines[at + 1 :] if later.strip()), "")
    return (known, False) if line.endswith(":") and _indent(following) else (None, False)


def _read_section(
    lines: list[str], at: int, title: str, underlined: bool, names: Collection[str], said: dict[str, list[str]]
) -> int:
    """Take in the section whose body begins at `at`; where it ends."""
    depth: int | None = 0 if underlined else None  # of the entries
    taking: list[list[str]] = []  # of the entry that is being read: one list for each of its names
    while at < len(lines):
        line = lines[at]
        if line.strip():
            indent = _indent(line)
            if (indent == 0 and not underlined) or _section(lines, at)[0] or (not indent and _FIELD.fullmatch(line)):
                break
            depth = indent if depth is None else depth
            if title not in _PARAMETERS:
                taking = []
            elif indent > depth:
                for words in taking:
                    words.append(line)
            else:
                taking = _numpy_entry(line, names, said) if underlined else _google_entry(line, names, said, taking)
        else:
            for words in taking:
                words.append("")
        at += 1
    said.setdefault("", [])  # the description is over, whatever the section was about
    return at


def _google_entry(
    line: str, names: Collection[str], said: dict[str, list[str]], before: list[list[str]]
) -> list[list[str]]:
    """`name (type): words`. A line that begins with no name goes on with the entry before it."""
    entry = _ENTRY.fullmatch(line.strip())
    if entry is None:
        for words in before:
            words.append(line)
        return before
    if entry[1] not in names:
        return []
    said[entry[1]] = [entry[2]]
    return [said[entry[1]]]


def _numpy_entry(line: str, names: Collection[str], said: dict[str, list[str]]) -> list[list[str]]:
    """`x, y : type`; the words follow, indented."""
    listed = [name.strip().lstrip("*") for name in line.split(":")[0].split(",")]
    for name in listed:
        if name in names:
            said[name] = []
    return [said[name] for name in listed if name in names]


def _read_field(
    lines: list[str], at: int, field: re.Match[str], names: Collection[str], said: dict[str, list[str]]
) -> int:
    """Take in `:param type name: words` and the lines that go on with it; where they end."""
    words = [field[3]]
    at += 1
    while at < len(lines) and lines[at].strip() and _indent(lines[at]):
        words.append(lines[at])
        at += 1
    name = field[2].split()[-1].lstrip("*\\") if field[2].split() else ""
    if field[1] in _PARAMETER_FIELDS and name in names:
        said[name] = words
    said.setdefault("", [])
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: list[str]) -> str:
    """Paragraphs, each on one line."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line.strip())
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs if paragraph)
