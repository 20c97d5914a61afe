"""Turns the tokens of one choice into text, piece by piece, and never takes anything back.

Held back are the bytes of an unfinished character, and bytes at the end that may turn out to begin a stop string. So
the pieces add up to the same text however the tokens are cut into steps, one step included.

Knows nothing of why the engine stops; it is told.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set
from typing import Protocol

from ..types import FinishReason, StopMatch


class Vocabulary(Protocol):
    """What is needed of a tokenizer: the bytes of every id, and the ids of special tokens."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    @property
    def special_ids(self) -> Set[int]: ...


class TextStream:
    """The text of one choice.

    `stop` are the stop strings that the engine looks for. Like the engine, this counts special tokens as no bytes when
    it looks for them. With `skip_special=False` special tokens show as their literal text; otherwise only those of
    `shown`, such as the marker of a tool call.
    """

    __slots__ = ("_decoder", "_finished", "_held", "_hidden", "_stops", "_vocabulary")

    def __init__(
        self,
        tokenizer: Vocabulary,
        stop: Sequence[bytes] = (),
        skip_special: bool = True,
        shown: Set[int] = frozenset(),
    ) -> None:
        self._vocabulary = tokenizer
        hidden = tokenizer.special_ids if skip_special else frozenset()
        self._hidden = hidden - shown if shown else hidden
        self._stops = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[tuple[bytes, bool]] = []  # bytes not yet decoded, and whether stop strings may lie in them
        self._finished = False

    def push(
        self, tokens: Sequence[int], finish: FinishReason | None = None, stop_match: StopMatch | None = None
    ) -> str:
        """The text that is safe to send after these tokens.

        With `finish`, all that is left: without the end token if `stop_match` names one (the last of `tokens`), and
        without the last `stop_match.trim` bytes. An unfinished character then becomes U+FFFD. The last call.
        """
        assert not self._finished, "text after the end"
        if finish is not None and stop_match is not None and stop_match.token is not None and tokens:
            assert tokens[-1] == stop_match.token, "the end token is not the last"
            tokens = tokens[:-1]
        table, special = self._vocabulary.token_bytes, self._vocabulary.special_ids
        size = len(table)
        # Ids past the vocabulary are padding of a wider output head.
        pieces = [(table[i], i not in special) for i in tokens if i < size and i not in self._hidden]
        if finish is None:
            if not self._stops:
                return self._decoder.decode(b"".join([piece for piece, _ in pieces]))
            self._held += pieces
            return self._decoder.decode(self._take(self._possible_start()))
        self._finished = True
        self._held += pieces
        data = self._take(stop_match.trim if stop_match is not None else 0)
        return self._decoder.decode(data, final=True)

    def _possible_start(self) -> int:
        """How many of the held bytes, at the end, may begin a stop string."""
        tail = b"".join([piece for piece, counts in self._held if counts])
        longest = 0
        for stop in self._stops:
            place = tail.find(stop[:1], max(0, len(tail) - len(stop) + 1))
            while 0 <= place < len(tail) - longest:
                if stop.startswith(tail[place:]):
                    longest = len(tail) - place
                    break
                place = tail.find(stop[:1], place + 1)
        return longest

    def _take(self, keep: int) -> bytes:
        """Removes and returns what is held, but for the last `keep` bytes that count; literal special tokens between
        those stay with them."""
        index = len(self._held)
        cut = b""
        while keep > 0:
            assert index > 0, "the stop string reaches into text that is already out"
            index -= 1
            piece, counts = self._held[index]
            if not counts:
                continue
            if len(piece) > keep:
                cut = piece[: len(piece) - keep]
                self._held[index] = (piece[len(piece) - keep :], True)
            keep -= min(keep, len(piece))
        out = b"".join([piece for piece, _ in self._held[:index]]) + cut
        del self._held[:index]
        return out
