"""`select`: the likeliest of several texts goes on a branch of a program over HTTP. Knows nothing of routes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import aclosing

from msgspec import Struct
from starlette.requests import Request

from ...prompts.choose import choose
from ...types import Request as EngineRequest
from ...types import SamplingParams
from .body import ahead_of
from .generation import FieldNames
from .keys import Caller
from .places import Places
from .program_runs import OpenRun
from .program_schemas import SelectRequest
from .program_written import StepGeneration, Written
from .prompts import room_after
from .reading import PlainReader
from .record import record_of
from .sampling import check_queue
from .services import Services, Text


class Selected(Struct, kw_only=True):
    """`scores` are those of all choices, in their order; higher is better. Tokens are counted over all of them."""

    branch: str
    choice: str
    index: int
    scores: list[float]
    prompt_tokens: int
    cached_tokens: int


async def select(services: Services, request: Request, caller: Caller, run: OpenRun, body: SelectRequest) -> Selected:
    """Put the likeliest of several texts. Raises what a completion raises, and BranchBusy."""
    check_queue(len(body.choices), 1, services.text.get().info)
    branch = run.branch(body.branch)
    services.programs.check_room(run.tenant)
    with run.step(branch):
        written = Written(run, branch, body.name)
        prefix = await written.encode()
        scoring = _Scoring(services, request, caller, written, body.timeout)
        ids, chosen = await choose(prefix, body.choices, body.method or "mean", run.side, scoring.score)
        choice = body.choices[chosen.winner]
        written.put(written.prompt.generated(choice, ids[chosen.winner]), choice)
    return Selected(
        branch=branch.path,
        choice=choice,
        index=chosen.winner,
        scores=chosen.scores,
        prompt_tokens=scoring.prompt_tokens,
        cached_tokens=scoring.cached_tokens,
    )


class _Scoring:
    """Asks the engine how likely texts are, and counts the tokens."""

    def __init__(
        self, services: Services, request: Request, caller: Caller, written: Written, timeout: float | None
    ) -> None:
        self.prompt_tokens = self.cached_tokens = 0
        self._services = services
        self._request = request
        self._origin = written.origin(caller)
        self._run = written.run
        self._timeout = timeout or services.config.request_timeout_s

    async def score(self, prefix: Sequence[int], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token of each choice after the prefix."""
        text = self._services.text.get()
        room_after(text, len(prefix) + max(map(len, choices)), "choices", scoring=True)
        generation = StepGeneration(
            self._services,
            [self._asked([*prefix, *choice], len(prefix)) for choice in choices],
            FieldNames("choices", Places(None)),
            record_of(self._request.scope),
            lambda: _plain(text),
        )
        generation.belongs_to(self._run)
        scores: list[list[float]] = [[] for _ in choices]
        try:
            await generation.start()
            async with generation.deadline(), aclosing(generation.deltas()) as flow:
                async for deltas in flow:
                    for delta in deltas:
                        scores[delta.choice] += [entry.logprob for entry in delta.prompt_logprobs or ()]
        finally:
            await generation.close()
        usage = generation.usage
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.prompt_tokens_details.cached_tokens
        return scores

    def _asked(self, ids: list[int], start: int) -> EngineRequest:
        return EngineRequest(
            id=f"cmpl-{uuid.uuid4().hex}",
            ids=ids,
            sampling=SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=start),
            origin=self._origin,
            timeout_s=self._timeout,
            ahead=ahead_of(self._request),
        )


def _plain(text: Text) -> PlainReader:
    return PlainReader(text.stream((), frozenset()))
