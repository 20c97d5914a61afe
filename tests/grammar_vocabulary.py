"""A small vocabulary with everything that is awkward in a real one, and walks over it."""

from __future__ import annotations

import random

import numpy as np

from bosquet.grammar.base import Matcher
from bosquet.grammar.vocabulary import Vocabulary

_BYTES = [bytes([b]) for b in [9, 10, 13, *range(32, 127), *range(128, 256)]]
_PIECES = [
    b'{"', b'":', b'": "', b'", "', b'"}', b'"]', b'}}', b"}}}", b"[]", b"{}", b"true", b"false", b"null", b"tru",
    b"e}", b" the", b"name", b'name"', b"age", b"ab", b"abc", b"12", b"123", b".5", b"e+", b"-1", b"20", b", ", b",\n",
    b"  ", "é".encode(), "日本".encode(), "日".encode()[:2], "😀".encode(), "😀".encode()[1:], b"\\n", b'\\"', b"\\u00",
    b"aaaaaaaa", b'"a":', b"yes", b"no", b"red", b"green", b"ye", b"T1", b"::", b"@", b"..",
]  # fmt: skip
_SPECIALS = [b"<|im_start|>", b"<|im_end|>", b"<|endoftext|>", b"<tool>", b""]

TOKENS = [*_BYTES, *_PIECES, *_SPECIALS]
HEAD = len(TOKENS) + 19  # the head is padded, and not to a multiple of 32
IM_START, IM_END, END_OF_TEXT, TOOL, EMPTY = range(len(TOKENS) - 5, len(TOKENS))
BYTE = {text: token for token, text in enumerate(TOKENS)}
OUTSIDE = [-1, -(2**31), HEAD, 2**31, 2**32 + BYTE[b"a"], 2**32 + BYTE[b"{"], 2**63, 2**64 + BYTE[b'"']]
CLOSERS = [BYTE[text] for text in (b'"', b"}", b"]", b'"}', b"}}", b'"]')]


def vocabulary() -> Vocabulary:
    return Vocabulary(TOKENS, HEAD, (IM_END, END_OF_TEXT), (IM_START, IM_END, END_OF_TEXT, TOOL))


def tokens_in(row: np.ndarray) -> list[int]:
    """Ids whose bit is set, padding bits of the last word included."""
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def mask_of(matcher: Matcher, words: int = (HEAD + 31) // 32) -> np.ndarray:
    row = np.full(words, 0x5A5A5A5A, dtype=np.int32)
    matcher.fill_mask(row)
    return row


def mismatches(matcher: Matcher, row: np.ndarray) -> list[int]:
    """Ids for which the mask and a fresh fork disagree; empty if the mask is right."""
    allowed = set(tokens_in(row))
    wrong = [token for token in range(HEAD) if (token in allowed) != (matcher.fork().try_accept([token]) == 1)]
    return wrong + [token for token in allowed if token >= HEAD]


def spell(text: str | bytes) -> list[int]:
    """A text one byte at a time."""
    return [BYTE[bytes([byte])] for byte in (text.encode() if isinstance(text, str) else text)]


def fits(matcher: Matcher, text: str | bytes) -> bool:
    """Whether the whole text is a sentence of the grammar."""
    ids = spell(text)
    fork = matcher.fork()
    return fork.try_accept(ids) == len(ids) and fork.completed


def choose(rng: random.Random, allowed: list[int], step: int) -> int:
    """A next token; the longer the walk, the more it leans to tokens that close things."""
    ends = [token for token in allowed if token in (IM_END, END_OF_TEXT)]
    if ends and rng.random() < 0.25:
        return rng.choice(ends)
    closers = [token for token in allowed if token in CLOSERS]
    if closers and rng.random() < min(0.9, step / 40):
        return rng.choice(closers)
    return rng.choice(allowed)


def text_of(ids: list[int]) -> bytes:
    return b"".join(TOKENS[token] for token in ids if token not in (IM_END, END_OF_TEXT))
