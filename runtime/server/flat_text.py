"""A rendered prompt as one string that tells control tokens from text: each stands between two halves of surrogate
pairs, which no text can hold. So prompts can be searched, compared, hashed and cut, and text of a user never equals a
control token, however it looks.

Knows nothing of conversations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...types import Segment
from .services import Tokenizer

_OPEN, _CLOSE = "\ud800", "\udfff"
_CONTROL = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_HALVES = re.compile("[\ud800-\udfff]")


def control(text: str) -> str:
    """The control token with this text."""
    return f"{_OPEN}{text}{_CLOSE}"


def flat(segments: Sequence[Segment], tokenizer: Tokenizer) -> str | None:
    """None for text that is not valid Unicode."""
    if any(_HALVES.search(segment.text) for segment in segments):
        return None
    return "".join(control(text) if one else text for text, one in tokenizer.split_controls(segments))


def flat_ids(ids: Iterable[int], tokenizer: Tokenizer) -> str | None:
    """The same of token ids; None where the text between two control tokens is not valid UTF-8."""
    pieces: list[str] = []
    run = bytearray()
    controls, bytes_of = tokenizer.control_ids, tokenizer.bytes_of
    try:
        for token in ids:
            if token not in controls:
                run += bytes_of(token)
                continue
            pieces += [run.decode(), control(bytes_of(token).decode())]
            run.clear()
        pieces.append(run.decode())
    except UnicodeDecodeError:
        return None
    return "".join(pieces)


def encoded(text: str, tokenizer: Tokenizer) -> list[int] | None:
    """The ids of a piece of flat text that comes after other ids; None where they would stand for another text, as with
    tokenizers that put a space before the first word."""
    ids = tokenizer.encode_segments(_segments(text))
    return ids if not text or text.startswith(_OPEN) or flat_ids(ids, tokenizer) == text else None


def read(text: str) -> str:
    """As it is read: control tokens are their texts."""
    return _CONTROL.sub(r"\1", text)


def find_any(text: str, controls: Iterable[str], start: int, end: int | None = None) -> int | None:
    """The first place from `start` on, before `end`, where one of these control tokens is."""
    places = (text.find(control(each), start, end) for each in controls)
    return min((place for place in places if place >= 0), default=None)


def _segments(text: str) -> list[Segment]:
    parts = _CONTROL.split(text)
    return [Segment(part, at % 2 == 1) for at, part in enumerate(parts) if part]
