"""outlines-core: regular expressions and choices as finite automata over tokens, each mask a row that is kept.

Its automata stop at the first alternative that matches and forget what could be longer. So every expression is compiled
with a sentinel after it, which one made-up token spells; the output may end where that token may come. The sentinel
is NUL, which therefore never stands in the text itself.

States are numbers; this module keeps the stack of them, so that undoing and copying cost nothing. A mask is worked out
the first time a state is met.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from outlines_core import Guide, Index  # type: ignore[import-untyped]
from outlines_core import Vocabulary as OutlinesVocabulary

from ..errors import GrammarInvalid
from .base import MaskRow
from .matcher import TextCompiled
from .regex import literal
from .vocabulary import Vocabulary

_SENTINEL = b"\x00"
_BYTES_PER_TRANSITION = 12  # of a hash map from token to state
_MAX_ROWS = 256
"""Masks kept for one grammar."""


class OutlinesEngine:
    """Compiles for one vocabulary. Calls may come from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        ids: dict[bytes | str, list[int]] = {}
        for token, text in enumerate(vocabulary.text_bytes):
            if text and _SENTINEL not in text:
                ids.setdefault(text, []).append(token)
        self._end = vocabulary.head_width  # ids of no token: the sentinel, and the end that Index insists on
        ids[_SENTINEL] = [self._end]
        self._tokens = OutlinesVocabulary(self._end + 1, ids)

    def regex(self, pattern: str) -> TextCompiled:
        """A regular expression as `Regex.write` writes it."""
        try:
            index = Index(f"(?:{pattern})\\x00", self._tokens)
        except ValueError as error:
            raise GrammarInvalid(f"regex: {str(error)[:300]}") from None
        automaton = Automaton(index, self._end, self.vocabulary.mask_words)
        size = sum(map(len, index.get_transitions().values())) * _BYTES_PER_TRANSITION
        size += _MAX_ROWS * self.vocabulary.mask_words * 4
        return TextCompiled(OutlinesCore(automaton, [automaton.start]), self.vocabulary.text, size)

    def choice(self, choices: list[str]) -> TextCompiled:
        """One of several texts, none of them empty."""
        return self.regex("|".join(map(literal, choices)))


class Automaton:
    """What all outputs of one grammar share: transitions, and the masks of states that were met."""

    def __init__(self, index: Index, sentinel: int, words: int) -> None:
        self.index = index
        self.start: int = index.get_initial_state()
        self._sentinel = sentinel
        self._words = words
        self._rows: dict[int, MaskRow] = {}
        self._via: dict[int, tuple[int, int]] = {}  # state → state before and token by which it was first met

    def next(self, state: int, token: int) -> int | None:
        found: int | None = self.index.get_next_state(state, token)
        if found is not None and found != self.start and found not in self._via:
            self._via[found] = (state, token)
        return found

    def final(self, state: int) -> bool:
        """The sentinel may come here: the text is whole."""
        after = self.index.get_next_state(state, self._sentinel)
        return after is not None and self.index.is_final_state(after)

    def row(self, state: int) -> MaskRow:
        row = self._rows.get(state)
        if row is None:
            if len(self._rows) >= _MAX_ROWS:
                del self._rows[next(iter(self._rows))]
            row = self._rows[state] = self._worked_out(state)
        return row

    def _worked_out(self, state: int) -> MaskRow:
        """By a guide, which writes a mask ten times faster than Python could set its bits, led to `state`."""
        path: list[int] = []
        while state != self.start:
            state, token = self._via[state]
            path.append(token)
        guide = Guide(self.index)
        for token in reversed(path):
            guide.advance(token, False)
        row = np.zeros((self._sentinel + 2 + 31) // 32, dtype=np.int32)  # wide enough for the made-up ids too
        guide.write_mask_into(row.ctypes.data, row.size, row.itemsize)
        return row[: self._words]


class OutlinesCore:
    """See `matcher.Core`."""

    def __init__(self, automaton: Automaton, states: Sequence[int]) -> None:
        self._automaton = automaton
        self._states = list(states)

    @property
    def completed(self) -> bool:
        return self._automaton.final(self._states[-1])

    def accept(self, token: int) -> bool:
        state = self._automaton.next(self._states[-1], token)
        if state is None:
            return False
        self._states.append(state)
        return True

    def fill(self, row: MaskRow) -> None:
        row[:] = self._automaton.row(self._states[-1])

    def forced_text(self) -> bytes:
        return b""

    def rollback(self, n: int) -> None:
        del self._states[-n:]

    def fork(self) -> OutlinesCore:
        return OutlinesCore(self._automaton, self._states)
