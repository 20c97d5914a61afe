"""What a grammar has to know of a vocabulary: the bytes of each token, and which tokens may never be text.

Knows nothing of tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .base import MaskRow
from .utf8 import INVALID, mask_rows, transitions

_NOT_IN_JSON = frozenset(range(0x20)) - {ord("\n"), ord("\r")}


class Alphabet(NamedTuple):
    """Which tokens may come at all.

    `next_state` [utf8.STATES, head width] int8 is the UTF-8 state after each token, `utf8.INVALID` where it can never
    come; `masks` holds the mask row of the tokens that can come for each UTF-8 state.
    """

    next_state: npt.NDArray[np.int8]
    masks: list[MaskRow]


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
        never = set(special_ids) | set(self.end_ids)
        padding = (b"",) * (head_width - len(token_bytes))
        texts = (b"" if token in never else text for token, text in enumerate(token_bytes))
        self.text_bytes: tuple[bytes, ...] = (*texts, *padding)
        """[head_width]: bytes of tokens that may be text; empty for all others."""
        table = transitions(self.text_bytes)
        table[0, list(self.end_ids)] = 0
        self.text = Alphabet(table, mask_rows(table, self.end_ids))
        """For grammars of any text."""
        table = table.copy()
        table[:, [bool(_NOT_IN_JSON & set(text)) for text in self.text_bytes]] = INVALID
        self.json = Alphabet(table, mask_rows(table, self.end_ids))
        """For grammars of JSON: without control characters, of which JSON has only line ends outside strings (and tabs,
        which some engine would let into strings)."""

    @property
    def mask_words(self) -> int:
        """int32 words of a mask row."""
        return (self.head_width + 31) // 32
