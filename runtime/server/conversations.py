"""Which run a request of the OpenAI protocol belongs to: the one that it names, else the one whose conversation or text
it goes on with.

Only a hint: it orders the queue and the cache, never an answer, so what is taken for one run need not be one. Keeps
hashes, no text. Knows nothing of the engine.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from ...grammar.tools.base import Event, Parsed, TextDelta
from ...types import Origin, Output
from .schemas import GenerationBody
from .transcript_keys import Message, key_after, keys, root, text_of
from .wire import RunJoined

MOST = {"chat": 16_384, "text": 1_024, "ids": 1_024}
"""Ends of conversations, texts and lists of ids that are known of a tenant; the oldest go first. Texts are looked for
at every length that there is."""

NAMES = ("prompt_cache_key", "session_id", "user")
"""Fields of a body that name a run, the most telling first."""


class Listener(Protocol):
    """Sees what is answered, step by step."""

    def see(self, choice: int, events: Sequence[Event], output: Output) -> None: ...


class Joined(NamedTuple):
    """The origin with its run; `told` is what the answer says of a run that was there before. `listener` is there if
    later requests may go on from this one's answer."""

    origin: Origin
    told: RunJoined | None = None
    listener: Listener | None = None


class Ends:
    """Where those of one tenant have ended so far, and which run each is of: by length in bytes, and hash."""

    def __init__(self, most: int) -> None:
        self.lengths: Counter[int] = Counter()
        self._most = most
        self._runs: OrderedDict[tuple[int, bytes], str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, length: int, key: bytes) -> str | None:
        return self._runs.get((length, key))

    def add(self, length: int, key: bytes, run: str) -> None:
        if self._runs.pop((length, key), None) is None:
            self.lengths[length] += 1
        self._runs[length, key] = run
        if len(self._runs) > self._most:
            (oldest, _), _ = self._runs.popitem(last=False)
            self.lengths[oldest] -= 1
            if not self.lengths[oldest]:
                del self.lengths[oldest]


class Conversations:
    """Those of all tenants. Lives on the event loop."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], Ends] = {}

    def join_chat(self, origin: Origin, body: GenerationBody, messages: Sequence[Message], *, go_on: bool) -> Joined:
        """The run of a request for the next message after these, which are as templates know them; with `go_on`, for
        more of the last."""
        named = _named(origin, body)
        if named is not None:
            return named
        ends = self.ends(origin.tenant, "chat")
        *before, last = chain = [root("run"), *keys(root("run"), messages)]
        runs = (ends.find(0, key) for key in reversed(chain))
        joined = _joined(origin, next((run for run in runs if run is not None), None))
        begun = messages[-1] if go_on else {"role": "assistant", "content": ""}
        return joined._replace(listener=_ChatListener(ends, joined.origin.run, before[-1] if go_on else last, begun))

    def join_text(self, origin: Origin, body: GenerationBody, prompt: str | Sequence[int]) -> Joined:
        """The run of a request to continue a text, or ids."""
        named = _named(origin, body)
        if named is not None:
            return named
        kind = "text" if isinstance(prompt, str) else "ids"
        raw = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else array("I", prompt).tobytes()
        ends = self.ends(origin.tenant, kind)
        so_far, at, run = hashlib.blake2b(digest_size=16), 0, None
        for length in sorted(length for length in ends.lengths if length <= len(raw)):
            so_far.update(raw[at:length])
            at = length
            run = ends.find(length, so_far.digest()) or run
        so_far.update(raw[at:])
        joined = _joined(origin, run)
        listener = _TextListener if kind == "text" else _IdsListener
        return joined._replace(listener=listener(ends, joined.origin.run, so_far, len(raw)))

    def ends(self, tenant: str, kind: str) -> Ends:
        found = self._ends.get((tenant, kind))
        if found is None:
            found = self._ends[tenant, kind] = Ends(MOST[kind])
        return found


def _named(origin: Origin, body: GenerationBody) -> Joined | None:
    """What the request says itself. Values are hashed: they may be long, and they are the client's own business."""
    if origin.run:
        return Joined(origin, RunJoined(origin.run, "header"))
    for name in NAMES:
        value = getattr(body, name)
        if value:
            digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()
            run = f"{name}-{digest}"
            return Joined(replace(origin, run=run), RunJoined(run, name))
    return None


def _joined(origin: Origin, run: str | None) -> Joined:
    """With the run that the request goes on with, or else a new one."""
    if run is not None:
        return Joined(replace(origin, run=run), RunJoined(run, "prefix"))
    return Joined(replace(origin, run=f"auto-{secrets.token_hex(9)}"))


class _ChatListener:
    """Notes each answer as the assistant's message, after what is known as `before`. It may have `begun` already."""

    def __init__(self, ends: Ends, run: str, before: bytes, begun: Message) -> None:
        self._ends = ends
        self._run = run
        self._before = before
        self._begun = begun
        self._said: dict[int, Parsed] = {}

    def see(self, choice: int, events: Sequence[Event], output: Output) -> None:
        said = self._said.setdefault(choice, Parsed()).add(events)
        if output.finish is None:
            return
        calls = [{"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in said.calls]
        message = {**self._begun, "content": text_of(self._begun["content"]) + said.content, "tool_calls": calls}
        self._ends.add(0, key_after(self._before, message), self._run)
        if said.reasoning:  # clients send it back or not
            thought = {**message, "reasoning_content": said.reasoning}
            self._ends.add(0, key_after(self._before, thought), self._run)


class _TextListener:
    """Notes each answer as more of the text."""

    def __init__(self, ends: Ends, run: str, prompt: hashlib.blake2b, length: int) -> None:
        self._ends = ends
        self._run = run
        self._prompt = prompt, length
        self._so_far: dict[int, tuple[hashlib.blake2b, int]] = {}

    def see(self, choice: int, events: Sequence[Event], output: Output) -> None:
        said = "".join(event.text for event in events if isinstance(event, TextDelta))
        self._note(choice, said.encode("utf-8", "surrogatepass"), last=output.finish is not None)

    def _note(self, choice: int, raw: bytes, *, last: bool) -> None:
        so_far, length = self._so_far.get(choice) or (self._prompt[0].copy(), self._prompt[1])
        so_far.update(raw)
        length += len(raw)
        self._so_far[choice] = so_far, length
        if last:
            self._ends.add(length, so_far.digest(), self._run)


class _IdsListener(_TextListener):
    """Notes each answer as more ids: with the end token and without, as clients send it back or not."""

    def see(self, choice: int, events: Sequence[Event], output: Output) -> None:
        tokens = array("I", output.tokens)
        if output.stop is not None and output.stop.token is not None:
            end = tokens.pop()
            self._note(choice, tokens.tobytes(), last=True)
            tokens = array("I", [end])
        self._note(choice, tokens.tobytes(), last=output.finish is not None)
