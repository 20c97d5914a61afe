"""A prompt made of the ids that are there already, those of the last prompt and those that were generated, and of the
encoding of what is new.

The template renders the whole conversation each time, and where its text is that of a live sequence, the ids of that
sequence stand for it. A turn that was generated may be written otherwise than it was, as far as it says the same (see
`transcript_keys`). With `append_only` the template is only asked for what comes after the last such turn, so what it
would drop or rewrite of earlier ones stays.

Why no text becomes a control token by this: ids are taken over only where the messages before are the same, for the
same tenant, and then they are what the model itself wrote there. All other text is encoded as ever.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import TemplateFailed
from ...grammar.reasoning import ReasoningParser, State
from ...grammar.tools.base import Event, Parsed, TextDelta
from ...types import Segment
from .flat_text import encoded, find_any, flat, flat_ids, read
from .services import Text
from .tool_use import ToolUse
from .transcript_keys import Meaning, keys, meaning, root, text_of
from .transcripts import Chain, Link, Print, Record, Transcripts

Messages = Sequence[Mapping[str, Any]]
Again = Callable[[Messages], list[Segment]]
"""Renders other messages in the same way."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says besides its messages. `formed`: its answer is held to a form, so calls are at its start only.
    `opens`: the prompt opens a turn of the assistant; `continued`: it ends inside one."""

    tenant: str
    tools: ToolUse
    formed: bool
    extra: Mapping[str, Any] | None
    opens: bool
    continued: bool
    append_only: bool = False


class _Found(NamedTuple):
    """A live sequence and its ids, and the text and ids that come after."""

    chain: Chain
    rest: str
    before: list[int]
    ids: list[int]


class Recall:
    """That of one request. After `prompt`: `carried` counts the ids that were taken over, `kept` says whether they are
    there whatever the template makes of them, `link` is how the prompt goes on from them, and `keys` has one a message.
    """

    def __init__(self, store: Transcripts, text: Text, asked: Asked) -> None:
        self.store = store
        self.text = text
        self.asked = asked
        self.carried = 0
        self.kept = False
        self.link: Link | None = None
        tools = [[tool.name, tool.description, tool.parameters] for tool in asked.tools.tools]
        self.root = root(text.info.name, tools, bool(asked.tools.usable), asked.extra or {})
        self.keys: list[bytes] = []
        self.messages: Messages = ()

    def prompt(self, messages: Messages, segments: Sequence[Segment], again: Again) -> list[int]:
        """The ids of `segments`, which are what the template makes of the messages."""
        tokenizer = self.text.tokenizer
        shown = flat(segments, tokenizer) if self.store.limit else None
        if shown is None:
            return tokenizer.encode_segments(segments)
        self.messages, self.keys = messages, keys(self.root, messages)
        last, chains = self._last_answer()
        found = self._after(last, chains[0], shown, again) if chains and self.asked.append_only else None
        self.kept = found is not None
        found = found or self._alike(chains, shown)
        if found is None:
            return self._anew(shown, segments)
        self.carried = len(found.before)
        self.link = Link(found.chain[-1].serial, Print.of(found.rest), found.ids)
        return found.before + found.ids

    def _anew(self, shown: str, segments: Sequence[Segment]) -> list[int]:
        ids = self.text.tokenizer.encode_segments(segments)
        self.link = Link(None, Print.of(shown), ids)
        return ids

    def _found(self, chain: Chain, rest: str | None) -> _Found | None:
        """None where the rest cannot be encoded alone, or where there is no room: the plain encoding may be shorter."""
        ids = None if rest is None or not chain else encoded(rest, self.text.tokenizer)
        if rest is None or ids is None:
            return None
        before: list[int] = []
        for record in chain:
            before += record.prompt
            before += record.answer
        fits = len(before) + len(ids) < self.text.info.context_length
        return _Found(chain, rest, before, ids) if fits else None

    def _last_answer(self) -> tuple[int, list[Chain]]:
        """The last message that was generated here, and the sequences that it may have ended."""
        for at in range(len(self.messages) - 1, -1, -1):
            if self.messages[at]["role"] == "assistant":
                chains = self.store.find(self.asked.tenant, self.keys[at])
                if chains:
                    return at, chains
        return -1, []

    # ---- the template's way ------------------------------------------------------------------------------------------

    def _alike(self, chains: Sequence[Chain], shown: str) -> _Found | None:
        """As much of the sequence that fits best as the template still shows."""
        most: tuple[Chain, int] = ((), 0)
        for chain in chains:
            fit = self._fitting(chain, shown)
            most = max(most, fit, key=lambda pair: len(pair[0]))
        chain, end = most
        return self._found(chain, shown[end:])

    def _fitting(self, chain: Chain, shown: str) -> tuple[Chain, int]:
        """The part of the chain that the text begins with, and where it ends there."""
        end = 0
        for count, record in enumerate(chain):
            after = self._turn_end(record, shown, end)
            if after is None:
                return chain[:count], end
            end = after
        return chain, end

    def _turn_end(self, record: Record, shown: str, at: int) -> int | None:
        """Where the turn that the record is of ends in the text; None if it is another text, or says something else."""
        start = at + record.text.length
        if Print.of(shown[at:start]) != record.text:
            return None
        said = flat_ids(record.answer, self.text.tokenizer)
        assert said is not None, "an answer is kept only where it is text"
        as_said = start + len(said) if shown.startswith(said, start) else None
        if as_said is not None and not self._blanks_moved(record, said):
            return as_said
        end = find_any(shown, self._ends, start)
        return end if end is not None and self._same(shown[start:end], said, record.state) else as_said

    def _blanks_moved(self, record: Record, said: str) -> bool:
        """Whether the turn came back with other white space at its end: what the template shows after the answer may
        then be the client's."""
        at = next((self.keys.index(key) for key in record.keys if key in self.keys), None)
        if at is None or self.messages[at].get("tool_calls"):
            return False
        return _blanks(text_of(self.messages[at].get("content"))) != _blanks(said)

    def _same(self, shown: str, said: str, state: State | None) -> bool:
        """Whether a turn as the template writes it is an answer as it was generated, but for layout."""
        ids = [call.get("id") for message in self.messages for call in message.get("tool_calls") or ()]
        if any(each and each in shown and each not in said for each in ids):
            return False  # the template names the call, for results to refer to; the model has not
        return self._meaning(shown, state) == self._meaning(said, state)

    def _meaning(self, shown: str, state: State | None) -> Meaning:
        events: list[Event] = [TextDelta(read(shown))]
        if state is not None and self.text.thinking is not None:
            thinking = ReasoningParser(self.text.thinking, state)
            events = [*thinking.push(read(shown)), *thinking.finish()]
        form, usable = self.text.tool_format, self.asked.tools.usable
        if usable or form.channels:
            parser = form.parser(usable, answer=self.asked.formed)
            given, events = events, []
            for event in given:
                events += parser.push(event.text) if isinstance(event, TextDelta) else [event]
            events += parser.finish()
        return meaning(Parsed().add(events))

    @property
    def _ends(self) -> list[str]:
        """Control tokens that a turn of the assistant ends with."""
        tokenizer = self.text.tokenizer
        ends = tokenizer.control_ids & set(self.text.info.end_ids)
        return [*(tokenizer.bytes_of(token).decode() for token in ends), *self.text.tool_format.stops]

    # ---- append-only -------------------------------------------------------------------------------------------------

    def _after(self, last: int, chain: Chain, shown: str, again: Again) -> _Found | None:
        """The whole sequence, and what the template writes after that turn; None if that cannot be told."""
        inside = self.asked.continued and last == len(self.messages) - 1
        return self._found(chain, "" if inside else self._rest(last, shown, again))

    def _rest(self, last: int, shown: str, again: Again) -> str | None:
        """The text from the token on that ends the turn. Two marks, in this turn and in the message after it, show
        between which places that token is: were it sought anywhere, a message could be lost."""
        here, there = (f"@@{secrets.token_hex(8)}@@" for _ in range(2))
        marked = list(self.messages)
        for mark, message in zip((here, there), marked[last : last + 2], strict=False):
            marked[last if mark is here else last + 1] = _marked(message, mark)
        try:
            text = flat(again(marked), self.text.tokenizer) or ""
        except TemplateFailed:  # which it has not for the messages as they are: it looks at what the marks are in
            return None
        turn = text.find(here)
        after = text.find(there) if last + 1 < len(marked) else len(text)
        end = find_any(text, self._ends, turn, after) if 0 <= turn < after else None
        if end is None:
            return None
        rest = text[end:].replace(here, "").replace(there, "")
        return rest if shown.endswith(rest) else None


def _marked(message: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    """With a mark in what the template shows last of the message; blanks at the end stay there, for it to trim."""
    calls, content = message.get("tool_calls"), message["content"]
    if calls:
        function = {**calls[-1]["function"], "name": calls[-1]["function"]["name"] + mark}
        return {**message, "tool_calls": [*calls[:-1], {**calls[-1], "function": function}]}
    if not isinstance(content, str):
        *parts, last = content
        return {**message, "content": [*parts, {**last, "text": _before_blanks(last["text"], mark)}]}
    return {**message, "content": _before_blanks(content, mark)}


def _before_blanks(text: str, mark: str) -> str:
    return f"{text.rstrip()}{mark}{_blanks(text)}"


def _blanks(text: str) -> str:
    """White space at the end."""
    return text[len(text.rstrip()) :]
