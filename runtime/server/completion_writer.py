"""Writes the answer of a completion, whole or in chunks: echo, legacy log-probabilities, token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from msgspec import UNSET, UnsetType

from ...grammar.tools import ReasoningDelta
from ...types import Request, TokenLogprob
from .answer import UsageWanted, extras
from .completion_tools import CallFolder, WrittenReader
from .generation import Delta, Generation
from .logprobs import TextLogprobWriter, joined
from .prompts import Prompt
from .schemas import CompletionRequest
from .services import Text
from .streaming import event
from .wire import TextChoice, TextCompletion, Usage

T = TypeVar("T")


class CompletionWriter:
    """One answer. Choices count over all prompts: prompt number · n + choice."""

    def __init__(
        self,
        body: CompletionRequest,
        text: Text,
        prompts: Sequence[Prompt],
        requests: Sequence[Request],
        model: str,
        written: Sequence[WrittenReader] = (),
    ) -> None:
        """`written`: where there are tools, or reasoning is told apart, what keeps the text of each choice as it was
        generated."""
        self._model = model
        self._created = int(time.time())
        self._id = requests[0].id if len(requests) == 1 else requests[0].id.rpartition("-")[0]
        self._ids = bool(body.return_token_ids)
        self._usage = UsageWanted(body.stream_options)
        self._choices = [
            _ChoiceWriter(
                index, body, text, prompts[index // request.sampling.n], request, written[index] if written else None
            )
            for index, request in enumerate(request for request in requests for _ in range(request.sampling.n))
        ]

    async def whole(self, generation: Generation) -> TextCompletion:
        """All pieces folded into one answer."""
        folded = [Folded() for _ in self._choices]
        async with aclosing(self._pieces(generation)) as flow:
            async for piece in flow:
                folded[piece.index].add(piece)
        answer = self._answer([entry.choice() for entry in folded], generation.usage)
        answer.x_bosquet = extras(generation)
        return answer

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The chunks as events."""
        async with aclosing(self.chunks(generation)) as flow:
            async for chunk in flow:
                yield event(chunk)

    async def chunks(self, generation: Generation) -> AsyncGenerator[TextCompletion, None]:
        """Each piece as a chunk; the usage, if wanted, last."""
        more = extras(generation)
        async with aclosing(self._pieces(generation)) as flow:
            async for piece in flow:
                chunk = self._answer([piece], self._usage.of_chunk(generation))
                chunk.x_bosquet, more = more, UNSET
                yield chunk
        if self._usage.last:
            yield self._answer([], generation.usage)

    async def _pieces(self, generation: Generation) -> AsyncGenerator[TextChoice, None]:
        """What there is to send, in order. A choice waits until the scores of its prompt, if wanted, are there; it may
        have ended by then, since a choice that need not score the prompt may take more of it from the cache."""
        async with aclosing(generation.deltas()) as flow:
            async for deltas in flow:
                for delta in deltas:
                    if delta.prompt_logprobs is not None:
                        start = delta.choice - delta.choice % generation.n
                        for choice in self._choices[start : start + generation.n]:
                            for piece in choice.score(delta.prompt_logprobs):
                                yield piece
                for delta in deltas:
                    for piece in self._choices[delta.choice].write(delta):
                        yield piece

    def _answer(self, choices: list[TextChoice], usage: Usage | UnsetType | None) -> TextCompletion:
        return TextCompletion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)


class _ChoiceWriter:
    """Turns the deltas of one choice into pieces."""

    def __init__(
        self,
        index: int,
        body: CompletionRequest,
        text: Text,
        prompt: Prompt,
        request: Request,
        written: WrittenReader | None,
    ) -> None:
        self._written = written
        self._calls = CallFolder()
        self._prompt_scores: list[TokenLogprob] | None = None
        self._index = index
        self._echo = bool(body.echo)
        self._ids = bool(body.return_token_ids)
        self._from = body.prompt_logprobs_from
        self._tokenizer = text.tokenizer
        self._prompt = prompt
        self._scored = request.sampling.prompt_logprobs is not None
        self._logprobs = TextLogprobWriter(text.tokenizer)
        self._held: list[Delta] | None = []  # None once something was written

    def write(self, delta: Delta) -> list[TextChoice]:
        """The pieces that can be sent now."""
        if self._held is None:
            return self._piece(delta)
        self._held.append(delta)
        return [] if self._scored and self._prompt_scores is None else self._release()

    def score(self, scores: list[TokenLogprob]) -> list[TextChoice]:
        """Take the scores of the prompt; the pieces that waited for them."""
        self._prompt_scores = scores
        return self._release() if self._held else []

    def _release(self) -> list[TextChoice]:
        """What was held back, after what comes before it."""
        held, self._held = self._held or [], None
        pieces = [self._echoed()] if self._echo else []
        for entry in held:
            pieces += self._piece(entry)
        if self._ids:
            if not pieces:
                pieces.append(TextChoice(self._index, ""))
            pieces[0].prompt_token_ids = self._prompt.ids
        return pieces

    def _echoed(self) -> TextChoice:
        ids = self._prompt.ids
        if self._from is not None:
            text = self._tokenizer.decode(ids[self._from :])
        elif self._prompt.text is not None:
            text = self._prompt.text
        else:
            text = self._tokenizer.decode(ids)
        logprobs = None
        if self._prompt_scores is not None:
            first = self._logprobs.first(ids[0], text) if self._from is None else None
            logprobs = joined(first, self._logprobs.write(self._prompt_scores, text))
        return TextChoice(self._index, text, logprobs)

    def _piece(self, delta: Delta) -> list[TextChoice]:
        calls = self._calls.add(delta.events) if self._written is not None else []
        thought = "".join(event.text for event in delta.events if isinstance(event, ReasoningDelta))
        if not (delta.text or delta.finish or delta.logprobs or (self._ids and delta.tokens) or calls or thought):
            return []
        piece = TextChoice(self._index, delta.text, finish_reason=delta.finish)
        if self._written is not None:
            piece.text, piece.content = self._written.take(), delta.text
            piece.tool_calls = calls or UNSET
            piece.reasoning = thought or UNSET
        if delta.logprobs is not None:
            piece.logprobs = self._logprobs.write(delta.logprobs)
        if delta.stop_reason is not None:
            piece.stop_reason = delta.stop_reason
        if self._ids:
            piece.token_ids = delta.tokens
        return [piece]


class Folded:
    """The pieces of one choice added up."""

    def __init__(self) -> None:
        self._pieces: list[TextChoice] = []

    def add(self, piece: TextChoice) -> None:
        self._pieces.append(piece)

    def choice(self) -> TextChoice:
        first, last = self._pieces[0], self._pieces[-1]
        assert last.finish_reason is not None, "the engine ended a stream before its choices"
        return TextChoice(
            index=first.index,
            text="".join(piece.text for piece in self._pieces),
            logprobs=joined(*(piece.logprobs for piece in self._pieces)),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            token_ids=_chained([piece.token_ids for piece in self._pieces]),
            prompt_token_ids=first.prompt_token_ids,
            content=_together([piece.content for piece in self._pieces]),
            reasoning=_together([piece.reasoning for piece in self._pieces]),
            tool_calls=_chained([piece.tool_calls for piece in self._pieces]),
        )


def _together(parts: Sequence[str | UnsetType]) -> str | UnsetType:
    """All in a row; UNSET when no part has any text at all."""
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if texts else UNSET


def _chained(parts: Sequence[list[T] | UnsetType]) -> list[T] | UnsetType:
    """All in a row; UNSET when no part has any list at all."""
    lists = [part for part in parts if isinstance(part, list)]
    return [entry for part in lists for entry in part] if lists else UNSET
