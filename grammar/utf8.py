"""Which tokens may follow so that the bytes stay valid UTF-8 (RFC 3629: no overlong forms, no surrogates).

xgrammar's own automata let such sequences through. A state says what is still missing of a character that has begun;
state 0 is between characters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .base import MaskRow

INVALID = -1

_TAIL = range(0x80, 0xC0)
# State → (bytes, next state) pairs. 1–3: that many more bytes; 4–7: the byte after E0, ED, F0 and F4 is restricted.
_STEPS: tuple[tuple[tuple[range, int], ...], ...] = (
    (
        *((range(0x00, 0x80), 0), (range(0xC2, 0xE0), 1), (range(0xE0, 0xE1), 4), (range(0xE1, 0xED), 2)),
        *((range(0xED, 0xEE), 5), (range(0xEE, 0xF0), 2), (range(0xF0, 0xF1), 6), (range(0xF1, 0xF4), 3)),
        (range(0xF4, 0xF5), 7),
    ),
    ((_TAIL, 0),),
    ((_TAIL, 1),),
    ((_TAIL, 2),),
    ((range(0xA0, 0xC0), 1),),
    ((range(0x80, 0xA0), 1),),
    ((range(0x90, 0xC0), 2),),
    ((range(0x80, 0x90), 2),),
)
STATES = len(_STEPS)
_TABLE = [[next((to for span, to in steps if byte in span), INVALID) for byte in range(256)] for steps in _STEPS]


def advance(state: int, text: bytes) -> int:
    """The state after `text`, or `INVALID`."""
    for byte in text:
        if state == INVALID:
            return INVALID
        state = _TABLE[state][byte]
    return state


def transitions(token_bytes: Sequence[bytes]) -> npt.NDArray[np.int8]:
    """[STATES, tokens]: the state after each token; `INVALID` where it may not come, and for tokens without bytes."""
    table = np.full((STATES, len(token_bytes)), INVALID, dtype=np.int8)
    for token, text in enumerate(token_bytes):
        if text.isascii():
            if text:
                table[0, token] = 0
            continue
        for state in range(STATES):
            table[state, token] = advance(state, text)
    return table


def mask_rows(table: npt.NDArray[np.int8]) -> list[MaskRow]:
    """One mask row for each row of `table` [states, head width]: the tokens that may come there."""
    padded = np.zeros((table.shape[0], (table.shape[1] + 31) // 32 * 32), dtype=np.uint8)
    padded[:, : table.shape[1]] = table != INVALID
    rows: list[MaskRow] = [np.packbits(row, bitorder="little").view(np.int32) for row in padded]
    for row in rows:
        row.setflags(write=False)
    return rows
