"""What a grammar has to know of a vocabulary: the bytes of each token, and which tokens may never be text.

Knows nothing of tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .base import MaskRow
from .char_sets import CharSet
from .utf8 import INVALID, mask_rows, transitions

_NOT_IN_JSON = frozenset(range(0x20)) - {ord("\n"), ord("\r")}


class Alphabet(NamedTuple):
    """Which tokens may come at all.

    `next_state` [utf8.STATES, head width] int8 is the UTF-8 state after each token of text, `utf8.INVALID` where it can
    never come, and for all that is not text; `masks` holds the mask row of the tokens that can come for each UTF-8
    state; `ends` are the end tokens and `end_mask` is the row of them.
    """

    next_state: npt.NDArray[np.int8]
    masks: list[MaskRow]
    ends: frozenset[int]
    end_mask: MaskRow


class Vocabulary:
    """Tokens by id, for a head of `head_width` outputs.

    `end_ids` end a generation; they are the one stop set that grammars and engine share. Special tokens other than
    these, tokens without bytes, and ids beyond `token_bytes` (padding of the head) never fit a grammar.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], head_width: int, end_ids: Iterable[int], special_ids: Iterable[int] = ()
    ) -> None:
        if len(token_bytes) > head_width:
            raise ValueError(f"{len(token_bytes)} tokens do not fit a head of {head_width}")
        self.head_width = head_width
        self.end_ids = tuple(sorted(set(end_ids)))
        if not self.end_ids or not 0 <= self.end_ids[0] <= self.end_ids[-1] < head_width:
            raise ValueError(f"end tokens {self.end_ids} are not in 0 … {head_width - 1}")
        self.special_ids = frozenset(special_ids) - set(self.end_ids)
        self._token_bytes = token_bytes
        self._ends = frozenset(self.end_ids)
        never = self.special_ids | set(self.end_ids)
        padding = (b"",) * (head_width - len(token_bytes))
        texts = (b"" if token in never else text for token, text in enumerate(token_bytes))
        self.text_bytes: tuple[bytes, ...] = (*texts, *padding)
        """[head_width]: bytes of tokens that may be text; empty for all others."""
        table = transitions(self.text_bytes)
        self.text = self._alphabet(table)
        """For grammars of any text."""
        table = table.copy()
        table[:, [bool(_NOT_IN_JSON & set(text)) for text in self.text_bytes]] = INVALID
        self.json = self._alphabet(table)
        """For grammars of JSON: without control characters, of which JSON has only line ends outside strings (and tabs,
        which some engine would let into strings)."""

    def _alphabet(self, table: npt.NDArray[np.int8]) -> Alphabet:
        ends = np.full((1, self.head_width), INVALID, dtype=np.int8)
        ends[0, list(self.end_ids)] = 0
        return Alphabet(table, mask_rows(table), self._ends, mask_rows(ends)[0])

    @property
    def mask_words(self) -> int:
        """int32 words of a mask row."""
        return (self.head_width + 31) // 32

    def is_free(self, token: int) -> bool:
        """The token may come where no grammar holds but the output may not end: a known one that is no end token."""
        return 0 <= token < len(self._token_bytes) and token not in self._ends

    @cached_property
    def free_mask(self) -> MaskRow:
        """The mask row of the tokens for which `is_free` holds."""
        free = np.full((1, self.head_width), INVALID, dtype=np.int8)
        free[0, : len(self._token_bytes)] = 0
        free[0, list(self.end_ids)] = INVALID
        return mask_rows(free)[0]

    def with_specials(self, ids: Iterable[int]) -> Vocabulary:
        """The same vocabulary with some of its special tokens as text. Raises `ValueError` for ids that are no special
        tokens, or have no bytes."""
        declared = frozenset(ids)
        for token in declared:
            if token not in self.special_ids or token >= len(self._token_bytes) or not self._token_bytes[token]:
                raise ValueError(f"{token} is not a special token with a text, or ends a generation")
        return Vocabulary(self._token_bytes, self.head_width, self.end_ids, self.special_ids - declared)

    def tokens_of(self, chars: CharSet) -> int:
        """How many tokens are made of nothing but such characters (beyond ASCII, roughly)."""
        allowed = np.zeros(256, dtype=np.uint8)
        for low, high in chars:
            allowed[low : min(high, 0x7F) + 1] = 1
            if high > 0x7F:
                allowed[0x80:] = 1
        bits = np.packbits(allowed, bitorder="little").view(np.uint64)
        inside = ~np.any(self._byte_sets & ~bits, axis=1)
        return int(np.count_nonzero(inside))

    @cached_property
    def _byte_sets(self) -> npt.NDArray[np.uint64]:
        """[tokens of text, 4]: the set of bytes of each, as bits."""
        present = np.zeros((len(self.text_bytes), 256), dtype=np.uint8)
        for token, text in enumerate(self.text_bytes):
            present[token, list(text)] = 1
        sets = np.packbits(present, axis=1, bitorder="little").view(np.uint64)
        return sets[sets.any(axis=1)]
