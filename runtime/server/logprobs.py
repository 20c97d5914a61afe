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
        raw = tokenizer.token_bytes(entry.token)
        top = []
        for token, logprob in entry.top:
            other = tokenizer.token_bytes(token)
            top.append(TopLogprob(other.decode("utf-8", "replace"), logprob, list(other)))
        content.append(TokenEntry(raw.decode("utf-8", "replace"), entry.logprob, list(raw), top))
    return ChatLogprobs(content)


class TextLogprobWriter:
    """Builds the legacy shape piece by piece; keeps the place of each token in the text so far.

    Special tokens are listed and take no place. Keys of `top_logprobs` are unique: a token that is not valid UTF-8 by
    itself is written as `bytes:` and its bytes in hexadecimal.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def first(self, token: int) -> TextLogprobs:
        """The first token of a prompt, which nothing comes before."""
        return TextLogprobs([self._place(token)], [self._name(token)], [None], [None])

    def write(self, entries: Sequence[TokenLogprob]) -> TextLogprobs:
        return TextLogprobs(
            text_offset=[self._place(entry.token) for entry in entries],
            tokens=[self._name(entry.token) for entry in entries],
            token_logprobs=[entry.logprob for entry in entries],
            top_logprobs=[self._top(entry) for entry in entries],
        )

    def skip(self, tokens: Sequence[int]) -> None:
        """Tokens that are in the text, but not listed."""
        for token in tokens:
            self._place(token)

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        top = {self._name(token): logprob for token, logprob in entry.top}
        top.setdefault(self._name(entry.token), entry.logprob)
        return top

    def _place(self, token: int) -> int:
        offset = self._offset
        if token not in self._tokenizer.special_ids:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return offset

    def _name(self, token: int) -> str:
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def joined(left: TextLogprobs | None, right: TextLogprobs | None) -> TextLogprobs | None:
    """Two pieces of the legacy shape in a row."""
    if left is None or right is None:
        return left or right
    return TextLogprobs(
        left.text_offset + right.text_offset,
        left.tokens + right.tokens,
        left.token_logprobs + right.token_logprobs,
        left.top_logprobs + right.top_logprobs,
    )
