"""`act`: the model answers or calls tools, the calls are carried out, their results are added, and it goes on.

Knows nothing of how calls are written in a prompt, which is the backend's. Awaited on the language's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from msgspec import structs

from ..prompts.transcript import Close, Op, Open, Transcript, Write
from ..types import Origin, ToolUse
from . import arguments
from .calls import Answer, Heard, Made, Span, generate, parsed, require_sampling, reseeded
from .expressions import Sampling, checked, draft_sources, sampling_params
from .retry import Retry, checked_retry, tried
from .run import Run
from .tool import Tool, checked_tools
from .tool_runs import ToolRun, Workplace
from .typed import Shape
from .values import Meta

Stopped = Literal["answer", "max_steps", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActStep:
    """One answer of the model: what it said, the calls that it made, in their order, and what the answer cost."""

    text: str
    calls: tuple[ToolRun, ...]
    meta: Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """What an `act` has come to; as a string, its final text. `value` is that text as the schema of `s.act` has it;
    None where there is no schema, or no answer.

    `stopped` is "answer" when the last step called nothing, "max_steps" when it did and no step was left (its calls
    were carried out), "length" when it was cut at `max_tokens` (its calls were not carried out).
    """

    text: str
    steps: tuple[ActStep, ...]
    stopped: Stopped
    value: Any = None

    @property
    def finished(self) -> bool:
        """The text is the model's answer, neither cut nor still to come."""
        return self.stopped == "answer"

    @property
    def calls(self) -> tuple[ToolRun, ...]:
        """Those of all steps."""
        return tuple(call for step in self.steps for call in step.calls)

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """What went wrong in the calls; the model was told of each."""
        return tuple(call.error for call in self.calls if call.error is not None)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What is asked of an `act`; made by `acting`."""

    name: str
    tools: Mapping[str, Tool[..., Any]]
    max_steps: int
    choice: str
    parallel: bool
    timeout: float | None
    retry: Retry | None
    sampling: Sampling
    answer: Shape
    place: Workplace


def acting(
    tools: Any,
    name: str,
    max_steps: int,
    tool_choice: str,
    parallel: bool,
    timeout: float | None,
    retry: int | Retry | None,
    answer: Shape,
    sampling: Sampling,
) -> Act:
    """The arguments of `s.act`, checked."""
    found = checked_tools("s.act: tools", tools)
    if arguments.whole("s.act: max_steps", max_steps) < 1:
        raise ValueError(f"s.act: max_steps must be at least 1, not {max_steps}")
    choice = arguments.text("s.act: tool_choice", tool_choice)
    if choice not in ("auto", "required", *found):
        known = ", ".join(("auto", "required", *found))
        raise ValueError(f"s.act: tool_choice must be one of {known}, not {choice!r}")
    return Act(
        name=arguments.text("s.act: name", name),
        tools=found,
        max_steps=max_steps,
        choice=choice,
        parallel=arguments.flag("s.act: parallel", parallel),
        timeout=arguments.seconds("s.act: timeout", timeout),
        retry=checked_retry("s.act: retry", retry),
        sampling=checked(sampling, "s.act"),
        answer=answer,
        place=Workplace(),
    )


def require_acting(run: Run, piece: Act, branch: str) -> None:
    """Raises `Unsupported` if the run's backend cannot do it."""
    run.require("tools", branch, piece.name)
    if piece.answer.grammar is not None:
        run.require(piece.answer.grammar.kind, branch, piece.name)
    require_sampling(run, piece.sampling, branch, piece.name)


async def act(run: Run, transcript: Transcript, piece: Act, origin: Origin) -> Answer:
    """Carry it out. Raises what the backend raises, and `DeadlineExceeded`; never what a tool raises. An answer that is
    not what the schema says, which only backends give that do not hold to it, is `wrong`."""
    specs = tuple(tool.spec for tool in piece.tools.values())
    told = transcript.with_tools(specs)
    anew, transcript = told is not transcript, told
    spans: list[Span] = []
    steps: list[ActStep] = []
    choice = piece.choice
    stopped: Stopped | None = None
    while stopped is None:
        made, step = await _step(run, transcript, piece, ToolUse(specs, choice, piece.parallel), origin)
        transcript = made.transcript
        cut = made.meta.finish == "length"
        steps.append(step)
        spans.append(made.span)
        choice = "auto"  # a model that must call again and again could never answer
        if cut:
            stopped = "length"
        elif not step.calls:
            stopped = "answer"
        elif len(steps) == piece.max_steps:
            stopped = "max_steps"
    value = wrong = None
    if stopped == "answer" and piece.answer.parse is not None:
        found = parsed(made, piece.answer.parse)
        value, wrong = found.value, found.wrong
    acted = Acted(text=steps[-1].text, steps=tuple(steps), stopped=stopped, value=value)
    return Answer(transcript, _together(acted), acted, wrong, tuple(spans), anew)


async def _step(run: Run, transcript: Transcript, piece: Act, use: ToolUse, origin: Origin) -> tuple[Made, ActStep]:
    """One answer, with the transcript after the results of its calls, and what it has come to."""
    opened = transcript.write([Open("assistant")])
    made, failures = await _answer(run, opened, piece, use, origin)
    runs = () if made.meta.finish == "length" else await piece.place.run(piece.tools, made.calls, piece.parallel)
    ops: list[Op] = [Close()]
    for done in runs:
        ops += [Open("tool", done.id, done.name), *([Write(done.text)] if done.text else []), Close()]
    meta = structs.replace(made.meta, failures=failures)
    return made._replace(transcript=made.transcript.write(ops)), ActStep(text=made.content, calls=runs, meta=meta)


class _Attempt(NamedTuple):
    made: Made
    wrong: Exception | None


async def _answer(
    run: Run, opened: Transcript, piece: Act, use: ToolUse, origin: Origin
) -> tuple[Made, tuple[Exception, ...]]:
    """What the model answers, and why earlier attempts came to nothing: tools run only once an answer is accepted."""
    params = sampling_params(run.defaults, piece.sampling)
    heard = Heard(run, origin, wait=piece.retry is not None)

    async def attempt(number: int) -> _Attempt:
        heard.forget()
        made = await generate(
            run, opened, origin, reseeded(params, number), heard.hear,
            grammar=piece.answer.grammar, tools=use, timeout=piece.timeout,
            speculation=draft_sources(run.defaults, piece.sampling),
        )  # fmt: skip
        over = not made.calls and made.meta.finish != "length" and piece.answer.parse is not None
        return _Attempt(made, parsed(made, piece.answer.parse).wrong if over and piece.answer.parse else None)

    varies = params.temperature > 0 or not run.carries_tokens
    (made, _), failures = await tried(piece.retry, attempt, varies=varies)
    heard.release()
    return made, failures


def _together(acted: Acted) -> Meta:
    """The costs of all steps, for the text of the last one."""
    metas = [step.meta for step in acted.steps]
    return Meta(
        text=acted.text,
        ids=metas[-1].ids,
        finish=metas[-1].finish,
        stop=metas[-1].stop,
        prompt_tokens=sum(meta.prompt_tokens for meta in metas),
        cached_tokens=sum(meta.cached_tokens for meta in metas),
        completion_tokens=sum(meta.completion_tokens for meta in metas),
        logprobs=metas[-1].logprobs,
        relaxed=tuple(dict.fromkeys(relaxed for meta in metas for relaxed in meta.relaxed)),
        reasoning=metas[-1].reasoning,
        failures=tuple(failure for meta in metas for failure in meta.failures),
        seconds=sum(meta.seconds for meta in metas),
    )
