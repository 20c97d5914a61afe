"""Writes the answer of a chat, whole or in chunks: text, reasoning, tool calls, log-probabilities, token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import UNSET, UnsetType

from ...grammar.tools.base import ArgumentsDelta, CallEnd, CallStart, Event, Parsed, ReasoningDelta, TextDelta
from ...types import Request, TokenLogprob
from .answer import UsageWanted, extras
from .generation import Delta, Generation
from .logprobs import chat_logprobs
from .schemas import ChatRequest
from .services import Text
from .streaming import event
from .tool_use import ToolUse
from .wire import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)


class ChatWriter:
    """One answer."""

    def __init__(self, body: ChatRequest, text: Text, request: Request, model: str, tools: ToolUse) -> None:
        self._tokenizer = text.tokenizer
        self._request = request
        self._model = model
        self._created = int(time.time())
        self._ids = bool(body.return_token_ids)
        self._usage = UsageWanted(body.stream_options)
        self._may_call = bool(tools.usable)
        self._choices = [_Choice(named=tools.choice.mode == "named") for _ in range(request.sampling.n)]

    async def whole(self, generation: Generation) -> ChatCompletion:
        """The deltas folded into one answer."""
        async with aclosing(generation.deltas()) as flow:
            async for deltas in flow:
                for delta in deltas:
                    self._choices[delta.choice].fold(delta)
        return ChatCompletion(
            id=self._request.id,
            created=self._created,
            model=self._model,
            choices=[self._choice(index, choice) for index, choice in enumerate(self._choices)],
            usage=generation.usage,
            prompt_token_ids=self._request.ids if self._ids else UNSET,
            x_bosquet=extras(generation),
        )

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The deltas as chunks: the role of every choice first, in order; the usage, if wanted, last. Where calls may
        come, the content begins as null, so that what clients add up stays null without any text."""
        start = None if self._may_call else ""
        for index in range(self._request.sampling.n):
            chunk = self._chunk(generation, [ChatChunkChoice(index, ChatDelta(role="assistant", content=start))])
            if index == 0:
                chunk.x_bosquet = extras(generation)
                chunk.prompt_token_ids = self._request.ids if self._ids else UNSET
            yield event(chunk)
        async with aclosing(generation.deltas()) as flow:
            async for deltas in flow:
                for delta in deltas:
                    piece = self._piece(delta)
                    if piece is not None:
                        yield event(self._chunk(generation, [piece]))
        if self._usage.last:
            chunk = self._chunk(generation, [])
            chunk.usage = generation.usage
            yield event(chunk)

    def _chunk(self, generation: Generation, choices: list[ChatChunkChoice]) -> ChatChunk:
        usage = self._usage.of_chunk(generation)
        return ChatChunk(id=self._request.id, created=self._created, model=self._model, choices=choices, usage=usage)

    def _piece(self, delta: Delta) -> ChatChunkChoice | None:
        """None where a step has nothing to say yet."""
        choice = self._choices[delta.choice]
        said = _chat_delta(delta.events)
        silent = said == ChatDelta()
        choice.note(delta.events)
        if delta.finish and self._may_call and not (choice.spoke or choice.calls):
            said.content = ""
        if silent and not (delta.finish or delta.logprobs or (self._ids and delta.tokens)):
            return None
        return ChatChunkChoice(
            index=delta.choice,
            delta=said,
            logprobs=None if not delta.logprobs else chat_logprobs(delta.logprobs, self._tokenizer),
            finish_reason=choice.reason(delta),
            stop_reason=UNSET if delta.stop_reason is None else delta.stop_reason,
            token_ids=delta.tokens if self._ids else UNSET,
        )

    def _choice(self, index: int, choice: _Choice) -> ChatChoice:
        assert choice.finish is not None, "the engine ended a stream before its choices"
        parsed = choice.parsed
        return ChatChoice(
            index=index,
            message=ChatMessage(
                content=parsed.content if parsed.content or not parsed.calls else None,
                reasoning_content=parsed.reasoning or UNSET,
                tool_calls=[ToolCall(call.id, FunctionCall(call.name, call.arguments)) for call in parsed.calls]
                or UNSET,
            ),
            finish_reason=choice.finish,
            logprobs=None
            if self._request.sampling.logprobs is None
            else chat_logprobs(choice.logprobs, self._tokenizer),
            stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
            token_ids=choice.tokens if self._ids else UNSET,
        )


class _Choice:
    """One choice under way. `named`: the caller said which tool is called."""

    def __init__(self, *, named: bool) -> None:
        self._named = named
        self._broken = False
        self.calls = 0
        self.spoke = False
        self.parsed = Parsed()
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: str | None = None
        self.stop_reason: str | int | None = None

    def note(self, events: list[Event]) -> None:
        """What the end of the choice depends on."""
        for each in events:
            match each:
                case TextDelta():
                    self.spoke = True
                case CallStart():
                    self.calls += 1
                case CallEnd(_, complete):
                    self._broken = not complete

    def fold(self, delta: Delta) -> None:
        """Add the delta to the whole message."""
        self.note(delta.events)
        self.parsed.add(delta.events)
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs or ()
        self.finish = self.reason(delta)
        self.stop_reason = delta.stop_reason

    def reason(self, delta: Delta) -> str | None:
        """Why the choice ended, by the protocol's rules: `length` outranks calls; a call that the caller named is no
        decision of the model's, and one that a stop token cut is none to be made."""
        calls = self.calls and not self._broken and not self._named
        return "tool_calls" if delta.finish == "stop" and calls else delta.finish


def _chat_delta(events: list[Event]) -> ChatDelta:
    """Each call's events in one entry; the first has the id and the name."""
    delta = ChatDelta()
    calls: dict[int, ToolCallDelta] = {}
    for each in events:
        match each:
            case TextDelta(text):
                delta.content = _plus(delta.content, text)
            case ReasoningDelta(text):
                delta.reasoning_content = _plus(delta.reasoning_content, text)
            case CallStart(index, id, name):
                calls[index] = ToolCallDelta(index, FunctionDelta("", name), id, "function")
            case ArgumentsDelta(index, text):
                calls.setdefault(index, ToolCallDelta(index, FunctionDelta(""))).function.arguments += text
    if calls:
        delta.tool_calls = list(calls.values())
    return delta


def _plus(before: str | UnsetType | None, text: str) -> str:
    return before + text if isinstance(before, str) else text
