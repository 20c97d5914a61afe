"""What an OpenAI-compatible server said: its answer, whole or as server-sent events, as text, counts and times.

Knows nothing of how it was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from .http_client import Reply

DATA = b"data:"
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's outcome. `sent` is in seconds since the pass began, the others since it was sent.

    `first` and `last` are the times of the first and last event with text, for streamed answers. `cached_tokens` is
    None where the server does not tell. `asked` is how many tokens were asked for, 0 where nobody said. With an `error`
    only `sent` and `seconds` mean anything.
    """

    sent: float
    seconds: float
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    first: float | None = None
    last: float | None = None
    error: str | None = None
    asked: int = 0

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first, for streamed answers of two or more tokens."""
        if self.first is None or self.last is None or self.completion_tokens < 2:
            return None
        return (self.last - self.first) / (self.completion_tokens - 1)


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        part = self.message or self.delta
        return (part.content if part is not None else self.text) or ""


class _Fault(Struct):
    message: str = "an error without a message"


class _Body(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Fault | None = None
    detail: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Body)


def read(reply: Reply, began: float, streamed: bool) -> Answer:
    """The answer in a reply. What is wrong with it is in `error`."""
    sent, seconds = reply.sent - began, reply.done - reply.sent
    try:
        if reply.status != 200:
            return Answer(sent, seconds, error=f"{reply.status}: {_reason(reply)}")
        return _streamed(reply, sent, seconds) if streamed else _whole(reply, sent, seconds)
    except msgspec.MsgspecError as error:
        return Answer(sent, seconds, error=f"the answer does not follow the protocol: {error}")


def _reason(reply: Reply) -> str:
    try:
        body = _DECODER.decode(reply.body)
    except msgspec.MsgspecError:
        return reply.body[:200].decode(errors="replace")
    return body.error.message if body.error is not None else bytes(body.detail)[:200].decode(errors="replace")


def _whole(reply: Reply, sent: float, seconds: float) -> Answer:
    body = _DECODER.decode(reply.body)
    if not body.choices:
        return Answer(sent, seconds, error="the answer has no choices")
    return _answer(sent, seconds, body.choices[0].content, body.usage, None, None)


def _streamed(reply: Reply, sent: float, seconds: float) -> Answer:
    text: list[str] = []
    usage: _Usage | None = None
    first = last = None
    ended = False
    for at, data in _events(reply):
        if data == DONE:
            ended = True
            break
        body = _DECODER.decode(data)
        if body.error is not None:
            return Answer(sent, seconds, error=body.error.message)
        usage = body.usage or usage
        for choice in body.choices[:1]:
            if choice.content:
                text.append(choice.content)
                last = at - reply.sent
                first = last if first is None else first
            elif choice.finish_reason is not None and first is not None:
                last = at - reply.sent  # the last tokens had no text of their own
    if not ended:
        return Answer(sent, seconds, error="the stream ended without [DONE]")
    return _answer(sent, seconds, "".join(text), usage, first, last)


def _answer(
    sent: float, seconds: float, text: str, usage: _Usage | None, first: float | None, last: float | None
) -> Answer:
    if usage is None:
        return Answer(sent, seconds, error="the answer has no usage")
    details = usage.prompt_tokens_details
    return Answer(
        sent,
        seconds,
        text,
        usage.prompt_tokens,
        usage.completion_tokens,
        details.cached_tokens if details is not None else None,
        first,
        last,
    )


def _events(reply: Reply) -> Iterator[tuple[float, bytes]]:
    """The data of each event, with the time at which its line was complete."""
    rest = b""
    for at, part in reply.parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                yield at, line[len(DATA) :].strip()
