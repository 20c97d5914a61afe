"""One `gen` or `select`, from a transcript to the transcript after it. Awaited on the language's loop.

Knows nothing of branches or of the order of calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from ..errors import BosquetError, DeadlineExceeded, Unavailable
from ..types import Call, Chunk, GrammarSpec, Origin, Relaxed, SamplingParams, Segment, TokenLogprob, ToolCall, ToolUse
from .choose import Chosen, by_gain, by_mean, greedily
from .expressions import Gen, Sampling, Select, sampling_params
from .run import Run
from .tokens import encode, keep_before_stop
from .transcript import Transcript
from .typed import Parse
from .values import Meta

_ALWAYS = {"max_tokens", "temperature", "top_p", "stop"}


class Answer(NamedTuple):
    """`wrong` says why the text of a call that went well has no value."""

    transcript: Transcript
    meta: Meta
    value: Any = None
    wrong: Exception | None = None


class Made(NamedTuple):
    """What one generation has come to. `content` is its text without the calls."""

    transcript: Transcript
    meta: Meta
    content: str
    calls: tuple[ToolCall, ...]


def require(run: Run, piece: Gen | Select) -> None:
    """Raises `Unsupported` if the run's backend cannot do what the piece asks for."""
    if isinstance(piece, Select):
        run.require("select")
        return
    if piece.shape.grammar is not None:
        run.require(piece.shape.grammar.kind)
    require_sampling(run, piece.sampling)


def require_sampling(run: Run, sampling: Sampling) -> None:
    """Raises `Unsupported` for a way of sampling that the run's backend does not have."""
    params = sampling_params(run.defaults, sampling)
    for name in SamplingParams.__struct_fields__:
        changed = getattr(params, name) != getattr(SamplingParams(), name)
        if changed and name not in _ALWAYS:
            run.require(name)
    if params.logprobs:
        run.require("top_logprobs")


async def ask(run: Run, transcript: Transcript, piece: Gen | Select, origin: Origin) -> Answer:
    """Carry it out. Raises what the backend raises, and `DeadlineExceeded`."""
    if isinstance(piece, Select):
        transcript = await _encoded(run, transcript)
        async with _deadline(piece.timeout):
            return await _select(run, transcript, piece, origin)
    made = await generate(
        run, transcript, origin, piece.sampling, grammar=piece.shape.grammar, timeout=piece.timeout
    )  # fmt: skip
    if piece.shape.parse is None:
        return Answer(made.transcript, made.meta, made.content)
    return parsed(made, piece.shape.parse, sampling_params(run.defaults, piece.sampling).max_tokens)


async def _encoded(run: Run, transcript: Transcript) -> Transcript:
    if run.layout is not None:
        transcript = await encode(transcript, run.tokens, run.layout)
        if not transcript.ids:
            raise BosquetError("there is no text to go on from")
    return transcript


@asynccontextmanager
async def _deadline(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlineExceeded(f"no answer within {seconds:g} s") from error


async def generate(
    run: Run,
    transcript: Transcript,
    origin: Origin,
    sampling: Sampling,
    *,
    grammar: GrammarSpec | None = None,
    tools: ToolUse | None = None,
    timeout: float | None = None,
) -> Made:
    """Let the model go on from the transcript, for at most `timeout` seconds. Raises as `ask`."""
    transcript = await _encoded(run, transcript)
    began = time.perf_counter()
    call = Call(
        sampling=sampling_params(run.defaults, sampling),
        origin=origin,
        grammar=grammar,
        ids=transcript.ids,
        messages=() if run.carries_tokens else transcript.messages,
        tools=tools,
    )
    async with _deadline(timeout):
        made = await _collect(run, call, lambda text: run.hear(origin.branch, origin.step, text))
    assert made.finish is not None
    kept = tuple(made.ids)
    if isinstance(made.stop, int):
        kept = kept[:-1]  # the template's own text ends the turn, so the end token is carried once
    elif isinstance(made.stop, str) and run.carries_tokens:
        kept = tuple(await keep_before_stop(kept, made.text, made.stop, run.tokens))
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
        seconds=time.perf_counter() - began,
    )
    return Made(after, meta, content, calls)


def parsed(made: Made, parse: Parse, limit: int = 0) -> Answer:
    """The text as a value, or why it is none."""
    after, meta = made.transcript, made.meta
    try:
        return Answer(after, meta, parse(meta.text))
    except ValueError as error:  # pydantic's ValidationError and json's JSONDecodeError are ValueErrors
        if meta.finish != "length":
            return Answer(after, meta, wrong=error)
        cut = BosquetError(f"the output was cut at max_tokens={limit}, before it was complete: {meta.text[-80:]!r}")
        cut.__cause__ = error
        return Answer(after, meta, wrong=cut)


async def _collect(run: Run, call: Call, hear: Callable[[str], None]) -> Chunk:
    """All chunks as one: texts, ids and log-probabilities in a row, of everything else the newest word."""
    texts: list[str] = []
    contents: list[str] | None = None
    ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    relaxed: list[Relaxed] = []
    calls: list[ToolCall] = []
    newest: dict[str, Any] = {}
    async with aclosing(run.backend.generate(call)) as chunks:
        async for chunk in chunks:
            texts.append(chunk.text)
            if chunk.content is not None:
                contents = contents or []
                contents.append(chunk.content)
            if said := chunk.text if chunk.content is None else chunk.content:
                hear(said)
            ids += chunk.ids
            logprobs += chunk.logprobs or ()
            relaxed += chunk.relaxed
            calls += chunk.calls
            for name in ("finish", "stop", "prompt_tokens", "completion_tokens", "cached_tokens"):
                if (word := getattr(chunk, name)) is not None:
                    newest[name] = word
    if newest.get("finish") not in ("stop", "length"):
        raise Unavailable(f"the generation ended early ({newest.get('finish', 'no finish reason')})")
    content = None if contents is None else "".join(contents)
    text = "".join(texts)
    return Chunk(text, tuple(ids), logprobs=logprobs, relaxed=relaxed, content=content, calls=calls, **newest)


async def _select(run: Run, transcript: Transcript, piece: Select, origin: Origin) -> Answer:
    began = time.perf_counter()
    backend = run.tokens
    ids = await asyncio.gather(*(backend.encode([Segment(choice, False)]) for choice in piece.choices))
    scores = await backend.score(transcript.ids, ids, origin)
    if piece.method == "greedy":
        chosen = greedily(ids, scores)
    elif piece.method == "mean":
        chosen = by_mean(scores)
    else:
        chosen = await _by_gain(run, ids, scores, origin)
    text = piece.choices[chosen.winner]
    run.hear(origin.branch, origin.step, text)
    meta = Meta(
        text=text,
        ids=tuple(ids[chosen.winner]),
        scores=dict(zip(piece.choices, chosen.scores, strict=True)),
        seconds=time.perf_counter() - began,
    )
    return Answer(transcript.generated(text, ids[chosen.winner]), meta, text)


async def _by_gain(run: Run, ids: list[list[int]], scores: list[list[float]], origin: Origin) -> Chosen:
    # A first token needs a predecessor; a model without a begin-of-text token gets a line break.
    alone = await run.tokens.text_start() or await run.tokens.encode([Segment("\n", False)])
    return by_gain(scores, await run.tokens.score(alone, ids, origin))
