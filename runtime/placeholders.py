"""Keeps users' text apart from the template's while a chat template is rendered.

A template mixes what it was given with what it writes itself, and the result is one text. So control strings in users'
text are replaced by private-use characters before, which templates pass through like any letter; after, they show
where the users' text lies, and become the strings again, as plain segments.

Knows nothing of tokens or of templates' syntax.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ..errors import InvalidParameter
from ..types import Segment
from .text_patterns import any_of

_FIRST, _LAST = 0xF0000, 0x10FFFD
_PRIVATE = re.compile("[\U000f0000-\U0010fffd]")
_ESCAPED_PRIVATE = re.compile(r"\\udb[89a-f][0-9a-f]\\ud[c-f][0-9a-f]{2}")


class ControlStrings:
    """A set of control strings, and their beginnings and ends."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(texts)
        # Characters that stand for replaced text must not come from a user either.
        self.pattern = re.compile(f"{any_of(self.texts)}|{_PRIVATE.pattern}")
        self._beginnings = frozenset(text[:n] for text in self.texts for n in range(1, len(text)))
        self._ends = frozenset(text[n:] for text in self.texts for n in range(1, len(text)))
        self._longest = max(map(len, self.texts), default=1) - 1

    def begun_at_end(self, text: str) -> int:
        """Length of the longest beginning of a control string that `text` ends in."""
        return next((n for n in range(min(self._longest, len(text)), 0, -1) if text[-n:] in self._beginnings), 0)

    def ended_at_start(self, text: str) -> int:
        """Length of the longest end of a control string that `text` begins with."""
        return next((n for n in range(min(self._longest, len(text)), 0, -1) if text[:n] in self._ends), 0)


class Placeholders:
    """The placeholders of one rendering. `avoid`: the template's source, whose own characters are left alone."""

    def __init__(self, avoid: str) -> None:
        taken = frozenset(_PRIVATE.findall(avoid))
        self._free = (chr(code) for code in range(_FIRST, _LAST + 1) if chr(code) not in taken)
        self._character_of: dict[str, str] = {}
        self._text_of: dict[str, str] = {}

    def reserve(self) -> str:
        """A character that neither the template nor any protected text has."""
        character = next(self._free, None)
        if character is None:
            raise InvalidParameter("messages: too many different control strings", "messages")
        return character

    def protect_inside(self, text: str, controls: ControlStrings) -> str:
        """`text` without control strings."""
        return controls.pattern.sub(lambda match: self._hidden(match[0]), text)

    def protect(self, text: str, controls: ControlStrings) -> str:
        """`text` without control strings. Nor does it end in the beginning of one, or begin with the end of one, with
        or without blanks around: the template, or another text of the user, could complete it."""
        text = self.protect_inside(text, controls)
        for stripped in (str, str.rstrip):
            candidate = stripped(text)
            if n := controls.begun_at_end(candidate):
                end = len(candidate)
                text = text[: end - n] + self._hidden(candidate[-n:]) + text[end:]
        for stripped in (str, str.lstrip):
            candidate = stripped(text)
            if n := controls.ended_at_start(candidate):
                start = len(text) - len(candidate)
                text = text[:start] + self._hidden(candidate[:n]) + text[start + n :]
        return text

    def protect_whole(self, text: str, controls: ControlStrings) -> str:
        """As `protect`, and hides a text that could stand in the middle of a control string."""
        if text and any(text in control for control in controls.texts):
            return self._hidden(text)
        return self.protect(text, controls)

    def rewrite_json(self, text: str, ascii_only: bool) -> str:
        """What became of placeholders in JSON: each now stands for its text as JSON writes it."""
        if ascii_only:
            text = _ESCAPED_PRIVATE.sub(lambda match: str(json.loads(f'"{match[0]}"')), text)
        return _PRIVATE.sub(lambda match: self._in_json(match[0], ascii_only), text)

    def segments(self, rendered: str) -> list[Segment]:
        """The rendered text in pieces, with the users' control strings back, as plain segments."""
        segments: list[Segment] = []
        start = 0
        for match in _PRIVATE.finditer(rendered):
            text = self._text_of.get(match[0])
            if text is None:  # the template's own character
                continue
            if match.start() > start:
                segments.append(Segment(rendered[start : match.start()], True))
            if segments and not segments[-1].control:
                text = segments.pop().text + text
            segments.append(Segment(text, False))
            start = match.end()
        if start < len(rendered):
            segments.append(Segment(rendered[start:], True))
        return segments

    def _hidden(self, text: str) -> str:
        character = self._character_of.get(text)
        if character is None:
            character = self._character_of[text] = self.reserve()
            self._text_of[character] = text
        return character

    def _in_json(self, character: str, ascii_only: bool) -> str:
        text = self._text_of.get(character)
        if text is None:
            return character
        written = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        return character if written == text else self._hidden(written)
