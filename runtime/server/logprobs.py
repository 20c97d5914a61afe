"""Log-probabilities in the two shapes of the protocol. Knows nothing of requests."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ...types import TokenLogprob
from .services import Tokenizer
from .wire import ChatLogprobs, TextLogprobs, TokenEntry, TopLogprob


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    """`bytes` are exact; `token` shows U+FFFD where a token holds only a part of a character."""
    content = []
    for entry in entries:
        raw = tokenizer.bytes_of(entry.token)
        top = []
        for token, logprob in entry.top:
            other = tokenizer.bytes_of(token)
            top.append(TopLogprob(other.decode("utf-8", "replace"), logprob, list(other)))
        content.append(TokenEntry(raw.decode("utf-8", "replace"), entry.logprob, list(raw), top))
    return ChatLogprobs(content)


class TextLogprobWriter:
    """Builds the legacy shape piece by piece; keeps the place of each token in the text so far.

    Special tokens are listed; they take up room only where the text shows them. Keys of `top_logprobs` are unique: a
    token that is not valid UTF-8 by itself is written as `bytes:` and its bytes in hexadecimal.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def first(self, token: int, echoed: str) -> TextLogprobs:
        """The first token of a prompt, which nothing comes before."""
        return TextLogprobs([self._place(token, echoed)], [self._name(token)], [None], [None])

    def write(self, entries: Sequence[TokenLogprob], echoed: str = "") -> TextLogprobs:
        """The next tokens; `echoed` is the prompt's text while they are the prompt's."""
        return TextLogprobs(
            text_offset=[self._place(entry.token, echoed) for entry in entries],
            tokens=[self._name(entry.token) for entry in entries],
            token_logprobs=[entry.logprob for entry in entries],
            top_logprobs=[self._top(entry) for entry in entries],
        )

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        top = {self._name(token): logprob for token, logprob in entry.top}
        top.setdefault(self._name(entry.token), entry.logprob)
        return top

    def _place(self, token: int, echoed: str) -> int:
        offset = self._offset
        if token not in self._tokenizer.special_ids:
            self._offset += len(self._decoder.decode(self._tokenizer.bytes_of(token)))
        elif echoed.startswith(name := self._name(token), offset):
            self._offset += len(name)
        return offset

    def _name(self, token: int) -> str:
        raw = self._tokenizer.bytes_of(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def joined(*pieces: TextLogprobs | None) -> TextLogprobs | None:
    """Pieces of the legacy shape in a row; None when there is none."""
    there = [piece for piece in pieces if piece is not None]
    if len(there) <= 1:
        return there[0] if there else None
    whole = TextLogprobs([], [], [], [])
    for piece in there:
        whole.text_offset += piece.text_offset
        whole.tokens += piece.tokens
        whole.token_logprobs += piece.token_logprobs
        whole.top_logprobs += piece.top_logprobs
    return whole
