"""What makes two texts differ that begin alike: the kinds of change that keep prompts from being reused.

Knows nothing of prompts, tokens or caches.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal

from ...prompts.shared import shared_length

Change = Literal[
    "same", "timestamp", "random_id", "whitespace", "unicode", "case", "json_layout", "reordered", "number",
    "appended", "cut", "edited", "new_text",
]  # fmt: skip

_MONTHS = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAYS = "(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[ap]m)?(?: ?(?:z|utc|gmt|[+-]\d{2}:?\d{2}))?"
_TIMES: Final = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[t ,]{{1,2}}{_TIME})?",
        rf"\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}(?:[t ,]{{1,2}}{_TIME})?",
        rf"(?:{_DAYS}[, ]+)?{_MONTHS}\.? \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?(?:[, ]+(?:at )?{_TIME})?",
        rf"(?:{_DAYS}[, ]+)?\d{{1,2}}(?:st|nd|rd|th)?\.? {_MONTHS}(?:,? \d{{4}})?(?:[, ]+(?:at )?{_TIME})?",
        rf"\b{_DAYS}\b(?=[, ])",
        _TIME,
        r"(?<!\d)1[5-9]\d{8}(?:\.\d+|\d{3}|\d{6})?(?!\d)",  # seconds, milliseconds or microseconds since 1970
    )
)
_IDS: Final = tuple(
    re.compile(form)
    for form in (
        r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
        r"(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}",
        r"(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_-]{10,}",
    )
)
_WORD: Final = re.compile(r"\w+")
_NUMBER: Final = (re.compile(r"\d[\d.,]*"),)

_FORMS: Final = {"timestamp": _TIMES, "random_id": _IDS, "number": _NUMBER}

AROUND: Final = 64
"""Characters before a difference in which what differs may begin."""

ENOUGH: Final = 12
"""Characters that must be alike before a text of which only the beginning is known is said to be the same."""


def change(ours: str, theirs: str, *, whole: bool = True) -> Change:
    """What kind of change makes one text of the other. Not `whole`: of theirs only the beginning is known."""
    at = shared_length(ours, theirs)
    if at == len(ours) == len(theirs) or (not whole and at == min(len(ours), len(theirs)) >= 1):
        return "same"
    if _both(_TIMES, ours, theirs, at):
        return "timestamp"
    if _both(_IDS, ours, theirs, at):
        return "random_id"
    forms: list[tuple[Change, Callable[[str], str]]] = [
        ("whitespace", lambda text: "".join(text.split())),
        ("unicode", lambda text: unicodedata.normalize("NFKC", text)),
        ("case", str.casefold),
    ]
    for kind, form in forms:
        if _alike(form(ours), form(theirs), whole=whole):
            return kind
    if whole and (arranged := _arranged(ours, theirs)) is not None:
        return arranged
    if _both(_NUMBER, ours, theirs, at):
        return "number"
    if whole and at == len(theirs):
        return "appended"
    if whole and at == len(ours):
        return "cut"
    return "edited" if _akin(ours[at:], theirs[at:]) else "new_text"


def _both(forms: tuple[re.Pattern[str], ...], ours: str, theirs: str, at: int) -> bool:
    """Both texts have such a thing where they part."""
    return any(_spans(form, ours, at) and _spans(form, theirs, at) for form in forms)


def _spans(form: re.Pattern[str], text: str, at: int) -> bool:
    window = text[max(0, at - AROUND) : at + AROUND]
    here = min(at, AROUND)
    return any(match.start() <= here < match.end() for match in form.finditer(window))


def start_of(kind: str, text: str, at: int) -> int:
    """Where the time, the id or the number begins that differs at this character."""
    forms = _FORMS.get(kind, ())
    before = max(0, at - AROUND)
    window = text[before : at + AROUND]
    starts = [m.start() for form in forms for m in form.finditer(window) if m.start() <= at - before < m.end()]
    return before + min(starts) if starts else at


def _alike(ours: str, theirs: str, *, whole: bool) -> bool:
    if whole:
        return ours == theirs
    size = min(len(ours), len(theirs))
    return size >= ENOUGH and ours[:size] == theirs[:size]


def _arranged(ours: str, theirs: str) -> Change | None:
    """The same things in another order."""
    if ours.lstrip()[:1] in ("{", "[") and (value := _json(ours)) is not None and value == _json(theirs):
        return "json_layout"
    mine, other = _WORD.findall(ours), _WORD.findall(theirs)
    return "reordered" if mine != other and Counter(mine) == Counter(other) else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _akin(ours: str, theirs: str) -> bool:
    """Whether what comes after the difference is for the most part the same words."""
    mine, other = ours.split()[:400], set(theirs.split()[:400])
    same = sum(word in other for word in mine)
    return 2 * same >= max(len(mine), 1) or (_tail(ours, theirs) >= 40)


def _tail(ours: str, theirs: str) -> int:
    """Characters at the end that are the same."""
    return shared_length(ours[::-1], theirs[::-1])
