"""Writes down what is generated, for `recall` to find when it is sent back. Sees every step of an answer, like whoever
sends it, and knows nothing of how it is sent."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from msgspec import UNSET, UnsetType

from ...grammar.reasoning import State
from ...grammar.tools.base import Event, Parsed
from ...types import Output, StopMatch
from .flat_text import encoded, flat_ids
from .recall import Recall
from .services import Tokenizer
from .transcript_keys import key_after, text_of
from .transcripts import Link
from .wire import History

_CHARACTER = 4
"""Most bytes of a character, and so most tokens that hold a part of one."""


class Scribe:
    """That of one request, all its choices. `shown` are the special tokens that its answers show as text; `state` is
    that of thinking where they begin."""

    def __init__(self, recall: Recall, shown: Set[int], state: State | None) -> None:
        self.carried = recall.carried
        self.history: History | UnsetType = UNSET
        if recall.asked.append_only:
            self.history = "append_only" if recall.kept else "template"
        self._recall = recall
        self._shown = shown
        self._state = state
        self._choices: dict[int, tuple[Parsed, list[int]]] = {}

    def see(self, choice: int, events: Sequence[Event], output: Output) -> None:
        """Takes what a step added to a choice; after the last the answer is in the store."""
        link = self._recall.link
        if link is None:
            return
        parsed, tokens = self._choices.setdefault(choice, (Parsed(), []))
        parsed.add(events)
        tokens += output.tokens
        if output.finish is None:
            return
        del self._choices[choice]
        if all(call.complete for call in parsed.calls):
            self._keep(parsed, link, kept_ids(self._recall.text.tokenizer, tokens, output.stop, self._shown))

    def _keep(self, parsed: Parsed, link: Link, ids: Sequence[int]) -> None:
        recall = self._recall
        turn = self._turn()
        if turn is None or not ids:
            return
        before, message = turn
        calls = [{"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in parsed.calls]
        message = {**message, "content": text_of(message.get("content")) + parsed.content, "tool_calls": calls}
        found = [key_after(before, message)]
        if parsed.reasoning:  # clients send it back or not
            found.append(key_after(before, {**message, "reasoning_content": parsed.reasoning}))
        recall.store.add(recall.asked.tenant, found, link, ids, self._state)

    def _turn(self) -> tuple[bytes, dict[str, Any]] | None:
        """The key of what comes before the assistant's turn, and what stands in that already. None: this is none."""
        recall = self._recall
        if recall.asked.continued:
            last = recall.messages[-1]
            before = recall.keys[-2] if len(recall.keys) > 1 else recall.root
            return None if last.get("tool_calls") else (before, dict(last))
        return (recall.keys[-1], {"role": "assistant"}) if recall.asked.opens else None


def kept_ids(tokenizer: Tokenizer, tokens: Sequence[int], stop: StopMatch | None, shown: Set[int]) -> list[int]:
    """The ids that a conversation goes on with: without the end token, which the template writes, and without the stop
    string. What is left of a token that the stop string, or the end in the middle of a character, has cut is encoded
    alone. Empty where they are no text: a special token has come that is not shown, or bytes that are not UTF-8."""
    ids = list(tokens)
    if stop is not None and stop.token is not None:
        ids.pop()
    if any(token in tokenizer.special_ids and token not in shown for token in ids):
        return []
    left = b""
    trim = _trimmed(tokenizer, ids, stop)
    if trim is None:
        return []
    while trim > 0 and ids:
        token = ids.pop()
        raw = b"" if token in tokenizer.special_ids else tokenizer.bytes_of(token)
        left = raw[: max(0, len(raw) - trim)]
        trim -= len(raw)
    for _ in range(_CHARACTER):
        if not ids or flat_ids(ids, tokenizer) is not None:
            break
        left = tokenizer.bytes_of(ids.pop()) + left
    rest = encoded(left.decode("utf-8", "replace"), tokenizer)
    if rest is None or flat_ids(ids, tokenizer) is None:
        return []
    return ids + rest


def _trimmed(tokenizer: Tokenizer, ids: Sequence[int], stop: StopMatch | None) -> int | None:
    """Bytes at the end that are not part of the answer. A reader that has found the stop string in what is said does
    not know: it is the first match that ends in the last token. None: there is no such match."""
    if stop is None or stop.text is None or not ids:
        return 0
    if stop.trim:
        return stop.trim
    wanted = stop.text.encode()
    raw = b"".join(tokenizer.bytes_of(token) for token in ids if token not in tokenizer.special_ids)
    start = raw.find(wanted, max(0, len(raw) - len(tokenizer.bytes_of(ids[-1])) - len(wanted) + 1))
    return None if start < 0 else len(raw) - start
