"""What a scheduler is told once: how large a pass may be, and what tokens mean to it."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`tokens` and `rows` of one pass; `ageing_s` a waiting sequence gains one step of priority."""

    tokens: int
    rows: int
    ageing_s: float


class Vocabulary:
    """What the scheduler needs to know of tokens: their bytes (none for special ones), and which end a generation."""

    def __init__(self, token_bytes: Items[bytes], special_ids: frozenset[int], end_ids: tuple[int, ...]) -> None:
        self._pieces = [b"" if i in special_ids else piece for i, piece in enumerate(token_bytes)]
        self.end_ids = end_ids
        self._end_set = frozenset(end_ids)

    def piece(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""

    def is_end(self, token: int) -> bool:
        return token in self._end_set
