"""One `gen` or `select`, from a transcript to the transcript after it: its samples, and the attempts at each. Awaited
on the language's loop.

Knows nothing of branches or of the order of calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from ..errors import BosquetError, DeadlineExceeded, Unavailable
from ..prompts.choose import choose
from ..prompts.tokens import encode, kept_ids
from ..prompts.transcript import Transcript
from ..types import (
    SAMPLING_RANGES,
    Call,
    Chunk,
    GrammarSpec,
    Origin,
    Relaxed,
    SamplingParams,
    TokenLogprob,
    ToolCall,
    ToolUse,
)
from .expressions import Gen, Sampling, Select, draft_sources, sampling_params
from .retry import tried
from .run import Run
from .typed import Parse
from .values import Meta

T = TypeVar("T")

_ALWAYS = {"max_tokens", "temperature", "top_p", "stop"}
_PLAIN = SamplingParams()


class Span(NamedTuple):
    """One generation in a branch: at which of the branch's ids it began, the ids that came, and what was asked for."""

    step: str
    start: int
    ids: tuple[int, ...]
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    tools: ToolUse | None = None
    reasoning: bool = False


class Answer(NamedTuple):
    """`meta` is a list where the value is one of samples. `wrong` says why the text of a call that went well has no
    value. `spans` are the generations in it; where the transcript was encoded `anew`, those before it have gone."""

    transcript: Transcript
    meta: Any
    value: Any = None
    wrong: Exception | None = None
    spans: tuple[Span, ...] = ()
    anew: bool = False


class Made(NamedTuple):
    """What one generation has come to. `content` is its text without the calls."""

    transcript: Transcript
    meta: Meta
    content: str
    calls: tuple[ToolCall, ...]
    span: Span


def require(run: Run, piece: Gen | Select, branch: str) -> None:
    """Raises `Unsupported` if the run's backend cannot do what the piece asks for in this branch."""
    if isinstance(piece, Select):
        run.require("select", branch, piece.name)
        return
    if piece.shape.grammar is not None:
        run.require(piece.shape.grammar.kind, branch, piece.name)
    if piece.reasoning:
        run.require("reasoning", branch, piece.name)
    require_sampling(run, piece.sampling, branch, piece.name)


def require_sampling(run: Run, sampling: Sampling, branch: str, step: str | None) -> None:
    """Raises `Unsupported` for a way of sampling that the run's backend does not have."""
    wanted = {*run.defaults, *sampling} - _ALWAYS
    wanted |= {"top_logprobs"} if "logprobs" in wanted else set()
    if not (lacking := wanted - run.backend.capabilities):
        return
    params = sampling_params(run.defaults, sampling)
    if "speculation" in lacking and draft_sources(run.defaults, sampling) is not None:
        run.refuse("speculation", branch, step)
    for name in sorted(lacking - {"top_logprobs", "speculation"}):
        if getattr(params, name) != getattr(_PLAIN, name):
            run.refuse(name, branch, step)
    if params.logprobs:
        run.require("top_logprobs", branch, step)


async def ask(run: Run, transcript: Transcript, piece: Gen | Select, origin: Origin) -> Answer:
    """Carry it out. Raises what the backend raises, `DeadlineExceeded` and `Spent`."""
    transcript = await _encoded(run, transcript)
    if isinstance(piece, Select):
        return await _choice(run, transcript, piece, origin)
    if piece.n is None:
        return await _sample(run, transcript, piece, origin, 0)
    samples = await together([_sample(run, transcript, piece, origin, i) for i in range(piece.n)])
    return Answer(
        samples[0].transcript,
        [sample.meta for sample in samples],
        [sample.value for sample in samples],
        next((sample.wrong for sample in samples if sample.wrong is not None), None),
        tuple(span for sample in samples for span in sample.spans),
    )


async def _sample(run: Run, transcript: Transcript, piece: Gen, origin: Origin, place: int) -> Answer:
    """The sample at one place of those that are wanted; only the first is heard, since it is the one to go on with."""
    params = sampling_params(run.defaults, piece.sampling)
    heard = Heard(run, origin, wait=piece.retry is not None, mute=place > 0)

    async def attempt(number: int) -> Answer:
        heard.forget()
        made = await generate(
            run, transcript, origin, reseeded(params, number * (piece.n or 1) + place), heard.hear,
            grammar=piece.shape.grammar, reasoning=piece.reasoning, timeout=piece.timeout,
            speculation=draft_sources(run.defaults, piece.sampling),
        )  # fmt: skip
        if piece.shape.parse is None:
            return Answer(made.transcript, made.meta, made.content, spans=(made.span,))
        return parsed(made, piece.shape.parse, params.max_tokens)

    varies = params.temperature > 0 or not run.carries_tokens
    answer, failures = await tried(piece.retry, attempt, varies=varies)
    heard.release()
    return answer._replace(meta=structs.replace(answer.meta, failures=failures)) if failures else answer


async def _choice(run: Run, transcript: Transcript, piece: Select, origin: Origin) -> Answer:
    async def attempt(number: int) -> Answer:
        return await _in_time(piece.timeout, _select(run, transcript, piece, origin))

    answer, failures = await tried(piece.retry, attempt, varies=False)
    return answer._replace(meta=structs.replace(answer.meta, failures=failures)) if failures else answer


def reseeded(params: SamplingParams, further: int) -> SamplingParams:
    """With a seed of its own for each sample and attempt, if there is one at all."""
    if params.seed is None or not further:
        return params
    seed = params.seed + further
    return structs.replace(params, seed=seed if SAMPLING_RANGES["seed"].holds(seed) else seed - 2**64)


class Heard:
    """Pieces of a step's text on their way to the run's listener. With `wait` they are kept back until `release`, since
    an attempt may come to nothing; `mute`: nobody is to hear them."""

    def __init__(self, run: Run, origin: Origin, *, wait: bool = False, mute: bool = False) -> None:
        self._say = partial(run.hear, origin.branch, origin.step)
        self._kept: list[str] = []
        self._wait, self._mute = wait, mute

    def hear(self, piece: str) -> None:
        if self._wait:
            self._kept.append(piece)
        elif not self._mute:
            self._say(piece)

    def forget(self) -> None:
        self._kept.clear()

    def release(self) -> None:
        self._wait = False
        for piece in self._kept:
            self.hear(piece)


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of them come to. When one fails, the others are cancelled and over before its error is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _encoded(run: Run, transcript: Transcript) -> Transcript:
    if run.layout is not None and (transcript.pending or not transcript.ids):
        transcript = await encode(transcript, run.tokens, run.layout)
        if not transcript.ids:
            raise BosquetError("there is no text to go on from")
    return transcript


async def _in_time(seconds: float | None, work: Awaitable[T]) -> T:
    """What the work comes to. Raises `DeadlineExceeded` if it takes longer."""
    if seconds is None:
        return await work
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlineExceeded(f"no answer within {seconds:g} s") from error


async def generate(
    run: Run,
    transcript: Transcript,
    origin: Origin,
    sampling: SamplingParams,
    hear: Callable[[str], None],
    *,
    grammar: GrammarSpec | None = None,
    tools: ToolUse | None = None,
    reasoning: bool = False,
    timeout: float | None = None,
    speculation: tuple[str, ...] | None = None,
) -> Made:
    """Let the model go on from the transcript, for at most `timeout` seconds. Raises as `ask`."""
    transcript = await _encoded(run, transcript)
    began = time.perf_counter()
    asked, ahead = run.ask(origin.branch)
    call = Call(
        sampling=sampling,
        origin=origin,
        grammar=grammar,
        ids=transcript.ids,
        messages=() if run.carries_tokens else transcript.messages,
        tools=tools,
        reasoning=reasoning,
        ahead=ahead,
        speculation=speculation,
    )
    run.ledger.begin(len(transcript.ids))
    made = await _in_time(timeout, collect(run, call, hear))
    assert made.finish is not None
    run.journal.answered(asked, len(made.ids) if made.completion_tokens is None else made.completion_tokens)
    kept = await kept_ids(made.ids, made.text, made.stop, run.tokens) if run.carries_tokens else ()
    calls = tuple(made.calls)
    content = made.text if made.content is None else made.content
    after = transcript.generated(made.text, kept, made.content, () if made.finish == "length" else calls)
    meta = Meta(
        text=content,
        ids=tuple(made.ids),
        finish=made.finish,
        stop=made.stop,
        prompt_tokens=len(transcript.ids) if made.prompt_tokens is None else made.prompt_tokens,
        cached_tokens=made.cached_tokens or 0,
        completion_tokens=len(made.ids) if made.completion_tokens is None else made.completion_tokens,
        logprobs=None if call.sampling.logprobs is None else tuple(made.logprobs or ()),
        relaxed=tuple(made.relaxed),
        reasoning=made.reasoning,
        seconds=time.perf_counter() - began,
    )
    run.usage.add(meta)
    # What is counted at the end only, as where no ids come, counts all the same.
    run.ledger.add(meta.prompt_tokens + meta.completion_tokens - len(transcript.ids) - len(made.ids))
    span = Span(origin.step, len(transcript.ids), meta.ids, sampling, grammar, tools, reasoning)
    return Made(after, meta, content, calls, span)


def parsed(made: Made, parse: Parse, limit: int = 0) -> Answer:
    """The text as a value, or why it is none."""
    answer = Answer(made.transcript, made.meta, spans=(made.span,))
    text = made.meta.text
    try:
        return answer._replace(value=parse(text))
    except ValueError as error:  # pydantic's ValidationError and json's JSONDecodeError are ValueErrors
        if made.meta.finish != "length":
            return answer._replace(wrong=error)
        cut = BosquetError(f"the output was cut at max_tokens={limit}, before it was complete: {text[-80:]!r}")
        cut.__cause__ = error
        return answer._replace(wrong=cut)


async def collect(run: Run, call: Call, hear: Callable[[str], None]) -> Chunk:
    """All chunks as one: texts, ids and log-probabilities in a row, of everything else the newest word."""
    texts: list[str] = []
    contents: list[str] = []
    ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    relaxed: list[Relaxed] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    finish = stop = prompt_tokens = completion_tokens = cached_tokens = None
    async with aclosing(run.backend.generate(call)) as chunks:
        async for chunk in chunks:
            said = chunk.text
            texts.append(said)
            if chunk.content is not None:
                said = chunk.content
                contents.append(said)
            if said:
                hear(said)
            ids += chunk.ids
            run.ledger.add(len(chunk.ids))
            thoughts.append(chunk.reasoning)
            logprobs += chunk.logprobs or ()
            relaxed += chunk.relaxed
            calls += chunk.calls
            finish = finish if chunk.finish is None else chunk.finish
            stop = stop if chunk.stop is None else chunk.stop
            prompt_tokens = prompt_tokens if chunk.prompt_tokens is None else chunk.prompt_tokens
            completion_tokens = completion_tokens if chunk.completion_tokens is None else chunk.completion_tokens
            cached_tokens = cached_tokens if chunk.cached_tokens is None else chunk.cached_tokens
    if finish not in ("stop", "length"):
        raise Unavailable(f"the generation ended early ({finish or 'no finish reason'})")
    content = "".join(contents) if contents else None
    return Chunk(
        "".join(texts), tuple(ids), finish, stop, prompt_tokens, completion_tokens, cached_tokens,
        logprobs, relaxed, content, calls, "".join(thoughts),
    )  # fmt: skip


async def _select(run: Run, transcript: Transcript, piece: Select, origin: Origin) -> Answer:
    began = time.perf_counter()
    run.ledger.begin(0)
    backend = run.tokens
    asked, _ = run.ask(origin.branch)
    ids, chosen = await choose(
        transcript.ids, piece.choices, piece.method, backend, lambda prefix, ids: backend.score(prefix, ids, origin)
    )
    run.journal.answered(asked, 0)
    text = piece.choices[chosen.winner]
    run.hear(origin.branch, origin.step, text)
    meta = Meta(
        text=text,
        ids=tuple(ids[chosen.winner]),
        scores=dict(zip(piece.choices, chosen.scores, strict=True)),
        seconds=time.perf_counter() - began,
    )
    run.usage.add(meta)
    return Answer(transcript.generated(text, ids[chosen.winner]), meta, text)
