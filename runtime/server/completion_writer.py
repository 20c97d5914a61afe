"""Writes the answer of a completion, whole or in chunks: echo, legacy log-probabilities, token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import UNSET

from ...types import FinishReason, Request
from .generation import Delta, Generation
from .logprobs import TextLogprobWriter, joined
from .prompts import Prompt
from .schemas import CompletionRequest
from .services import Text
from .streaming import event
from .wire import TextChoice, TextCompletion, TextLogprobs


class CompletionWriter:
    """One answer. Choices count over all prompts: prompt number · n + choice."""

    def __init__(
        self, body: CompletionRequest, text: Text, prompts: Sequence[Prompt], requests: Sequence[Request], model: str
    ) -> None:
        self._model = model
        self._created = int(time.time())
        self._id = requests[0].id if len(requests) == 1 else requests[0].id.rpartition("-")[0]
        self._ids = bool(body.return_token_ids)
        options = body.stream_options
        self._usage_last = bool(options and options.include_usage)
        self._usage_always = bool(options and options.continuous_usage_stats)
        self._choices = [
            _ChoiceWriter(index, body, text, prompts[index // request.sampling.n], request)
            for index, request in enumerate(request for request in requests for _ in range(request.sampling.n))
        ]

    async def whole(self, generation: Generation) -> TextCompletion:
        """All pieces folded into one answer."""
        folded: list[TextChoice | None] = [None] * len(self._choices)
        async with aclosing(self._pieces(generation)) as flow:
            async for piece in flow:
                before = folded[piece.index]
                folded[piece.index] = piece if before is None else _folded(before, piece)
        choices = [choice for choice in folded if choice is not None]
        assert len(choices) == len(folded), "the engine ended a stream before its choices"
        return self._answer(choices, generation, last=True)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Each piece as a chunk; the usage, if wanted, last."""
        async with aclosing(self._pieces(generation)) as flow:
            async for piece in flow:
                yield event(self._answer([piece], generation, last=False))
        if self._usage_last:
            yield event(self._answer([], generation, last=True))

    async def _pieces(self, generation: Generation) -> AsyncGenerator[TextChoice, None]:
        """What there is to send, in order. A choice waits until the scores of its prompt, if wanted, are there."""
        async with aclosing(generation.deltas()) as flow:
            async for deltas in flow:
                for delta in deltas:
                    if delta.prompt_logprobs is not None:
                        start = delta.index - delta.index % generation.n
                        for choice in self._choices[start : start + generation.n]:
                            choice.prompt_scores = delta.prompt_logprobs
                for delta in deltas:
                    for piece in self._choices[delta.index].write(delta):
                        yield piece

    def _answer(self, choices: list[TextChoice], generation: Generation, *, last: bool) -> TextCompletion:
        answer = TextCompletion(id=self._id, created=self._created, model=self._model, choices=choices)
        if last or self._usage_always:
            answer.usage = generation.usage
        elif self._usage_last:
            answer.usage = None
        return answer


class _ChoiceWriter:
    """Turns the deltas of one choice into pieces."""

    def __init__(self, index: int, body: CompletionRequest, text: Text, prompt: Prompt, request: Request) -> None:
        self.prompt_scores = None
        self._index = index
        self._body = body
        self._tokenizer = text.tokenizer
        self._prompt = prompt
        self._request = request
        self._scored = request.sampling.prompt_logprobs is not None
        self._logprobs = TextLogprobWriter(text.tokenizer)
        self._begun = False
        self._held: list[Delta] = []
