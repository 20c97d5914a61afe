"""Reads a text that comes in pieces, as if it were whole: scripts are generators that wait where the text runs out.

A script asks for a character, a literal, a run, and yields while the answer still depends on what comes. So it decides
by the characters alone, never by where the text was cut: that is what makes streamed and whole parses equal.

Knows nothing of tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

_T = TypeVar("_T")
Script = Generator[None, None, _T]

BLANKS = " \t\r\n"
BLANK = re.compile(r"[ \t\r\n]")
_BLANKS = re.compile(r"[ \t\r\n]*")


class Reader:
    """A text, as far as it has come, and a position in it."""

    __slots__ = ("_closed", "_marks", "_position", "_text", "cut")

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._closed = False
        self._marks: list[int] = []
        self.cut = False  # closed, and the text would have gone on

    def feed(self, text: str) -> None:
        """More text. What lies before the position and every mark is dropped."""
        assert not self._closed, "text after the end"
        drop = min([self._position, *self._marks])
        if drop:
            self._text = self._text[drop:]
            self._position -= drop
            self._marks = [mark - drop for mark in self._marks]
        self._text += text

    def close(self, *, cut: bool = False) -> None:
        """No more text. With `cut` it was broken off: what a script was still undecided about is left out then, since
        what waits for its end has not become anything."""
        self._closed = True
        self.cut = cut

    @property
    def waiting(self) -> int:
        """Characters that have come, and of which nothing is decided."""
        return len(self._text) - min([self._position, *self._marks])

    def mark(self) -> None:
        """Remembers the position, until `rewind` or `release`; marks nest."""
        self._marks.append(self._position)

    def rewind(self) -> None:
        """To the last mark; in a text that was cut, where it was the end that decided, to the end."""
        mark = self._marks.pop()
        self._position = len(self._text) if self.cut else mark

    def release(self) -> None:
        self._marks.pop()

    def taken(self) -> str:
        """The text between the last mark and the position."""
        return self._text[self._marks[-1] : self._position]

    def peek(self) -> Script[str]:
        """The character at the position, not consumed; empty at the end of the text."""
        while self._position >= len(self._text):
            if self._closed:
                return ""
            yield
        return self._text[self._position]

    def skip(self, count: int = 1) -> None:
        """Over characters that `peek` or `startswith` has seen."""
        self._position += count

    def accept(self, literal: str, *, halves: bool = True) -> Script[bool]:
        """Consumes the literal, or nothing. Where the text ends inside it, `halves` says whether that half is text
        like any other, or dropped; where it was cut, it always is."""
        while True:
            have = self._text[self._position : self._position + len(literal)]
            if have == literal:
                self._position += len(literal)
                return True
            if not literal.startswith(have):
                return False
            if self._closed:
                self._position += 0 if halves and not self.cut else len(have)
                return False
            yield

    def expect(self, literal: str) -> Script[bool]:
        """Like `accept`, but a text that ends inside the literal (or before it) counts as one that has it: for layout
        of which nothing depends any more."""
        if (yield from self.accept(literal)):
            return True
        rest = self._text[self._position :]
        if self._closed and literal.startswith(rest):
            self._position = len(self._text)
            return True
        return False

    def blanks(self) -> Script[None]:
        """Over white space, as JSON has it."""
        while True:
            found = _BLANKS.match(self._text, self._position)
            assert found is not None
            self._position = found.end()
            if self._position < len(self._text) or self._closed:
                return
            yield

    def run(self, inside: re.Pattern[str]) -> Script[str]:
        """Consumes and gives the longest run of characters that `inside`, a pattern for one character, matches."""
        found = ""
        while (char := (yield from self.peek())) and inside.match(char):
            found += char
            self._position += 1
        return found

    def pieces(self, inside: re.Pattern[str], write: Callable[[str], None]) -> Script[None]:
        """Like `run`, for long runs: `inside` matches a run (perhaps empty), and each piece is written as it comes."""
        while True:
            found = inside.match(self._text, self._position)
            assert found is not None
            if found.end() > self._position:
                write(found.group())
                self._position = found.end()
            if self._position < len(self._text) or self._closed:
                return
            yield

    def until(self, markers: Sequence[str], write: Callable[[str], None], *, halves: bool = True) -> Script[str]:
        """Writes what comes before the first of the markers, and gives that marker, not consumed; empty: the text
        ended, and `halves` says whether what may be half a marker there is written too, or dropped; where it was
        cut, it always is. No marker may be inside another."""
        pattern = re.compile("|".join(map(re.escape, markers)))
        while True:
            found = pattern.search(self._text, self._position)
            held = 0 if found or (self._closed and halves and not self.cut) else self._begun(markers)
            end = found.start() if found else len(self._text) - held
            if end > self._position:
                write(self._text[self._position : end])
                self._position = end
            if found:
                return found.group()
            if self._closed:
                self._position = len(self._text)
                return ""
            yield

    def rest(self, write: Callable[[str], None]) -> Script[None]:
        """Writes all that is left."""
        while True:
            if self._position < len(self._text):
                write(self._text[self._position :])
                self._position = len(self._text)
            if self._closed:
                return
            yield

    def _begun(self, markers: Sequence[str]) -> int:
        """How many characters at the end may begin a marker."""
        longest = 0
        for marker in markers:
            for size in range(min(len(marker) - 1, len(self._text) - self._position), longest, -1):
                if self._text.endswith(marker[:size]):
                    longest = size
                    break
        return longest
