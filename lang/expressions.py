"""What a program appends to its state: text, `gen` and `select`.

Plain data: nothing here runs. Expressions join with `+`, so `"Answer: " + gen("answer")` is one too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, Unpack, cast, get_args

from ..errors import Unsupported
from ..prompts.choose import Method as SelectMethod
from ..types import SAMPLING_RANGES, SamplingParams
from . import arguments
from .retry import Retry, checked_retry
from .typed import FREE, Shape, checked_choices, shape

DraftSource = Literal["forced", "suffix", "model"]


class Sampling(TypedDict, total=False):
    """How tokens are chosen and when to stop. What is left out falls back to the program's own defaults, then to those
    of `SamplingParams` (temperature 1, 128 tokens). `speculation` is where draft tokens may come from, which changes
    how long it takes and never the answer."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int
    speculation: Literal["off"] | Sequence[DraftSource] | None


class Expression:
    """Something that can be appended to a state."""

    def pieces(self) -> tuple[Piece, ...]:
        """Its parts, in order."""
        raise NotImplementedError

    def __add__(self, other: str | Expression) -> Joined:
        return Joined((*self.pieces(), *pieces_of(other)))

    def __radd__(self, other: str) -> Joined:
        return Joined((*pieces_of(other), *self.pieces()))


@dataclass(frozen=True, slots=True)
class Joined(Expression):
    """Expressions side by side."""

    parts: tuple[Piece, ...]

    def pieces(self) -> tuple[Piece, ...]:
        return self.parts


@dataclass(frozen=True, slots=True)
class Gen(Expression):
    """A generation; made by `gen`."""

    name: str | None = None
    shape: Shape = FREE
    timeout: float | None = None
    sampling: Sampling = field(default_factory=Sampling)
    retry: Retry | None = None
    n: int | None = None  # None: one value, and not a list
    reasoning: bool = False

    def pieces(self) -> tuple[Piece, ...]:
        return (self,)

    def with_defaults(self, defaults: Sampling) -> Gen:
        """The same over other defaults."""
        return replace(self, sampling=Sampling(**{**defaults, **self.sampling})) if defaults else self


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """A choice by log-probability; made by `select`."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod = "mean"
    timeout: float | None = None
    retry: Retry | None = None

    def pieces(self) -> tuple[Piece, ...]:
        return (self,)


@dataclass(frozen=True, slots=True)
class Image(Expression):
    """A picture; made by `image`. No model that runs here takes any, so every state refuses it by name."""

    source: str

    def pieces(self) -> tuple[Piece, ...]:
        return (self,)


Piece = str | Gen | Select | Image


def gen(
    name: str | None = None,
    *,
    schema: Any = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    lark: str | None = None,
    strict: bool = False,
    n: int | None = None,
    reasoning: bool = False,
    retry: int | Retry | None = None,
    timeout: float | None = None,
    **sampling: Unpack[Sampling],
) -> Gen:
    """Generate, and keep the value under `name`.

    The output can be held to one of: `schema` (a pydantic model or any type that pydantic knows, then the value is of
    that type; or a JSON schema as a dict, then it is what the JSON says), `regex`, `choices`, `grammar` (EBNF), `lark`
    (a grammar in Lark's notation). With `strict`, a schema that cannot be enforced in full is refused; without, what is
    not enforced stands in the `relaxed` of the value's `Meta`.

    With `n` the value is a list of so many samples of the same prompt, and the state goes on with the first. With
    `reasoning`, what a reasoning model thinks first is in the `Meta`, and the value, its grammar and its stop strings
    are those of the answer alone. `retry` is a number of further attempts, or a `Retry`; a seed that is given is
    another one in each sample and attempt. `timeout` is in seconds from the moment that an attempt is sent. The rest is
    `Sampling`.
    """
    wanted = shape("gen", schema=schema, regex=regex, choices=choices, grammar=grammar, lark=lark, strict=strict)
    return Gen(
        arguments.name("gen: name", name),
        wanted,
        arguments.seconds("gen: timeout", timeout),
        checked(sampling, "gen"),
        checked_retry("gen: retry", retry),
        None if n is None else arguments.count("gen: n", n, int(SAMPLING_RANGES["n"].high)),
        arguments.flag("gen: reasoning", reasoning),
    )


def select(
    name: str | None,
    choices: Sequence[str],
    method: SelectMethod = "mean",
    *,
    retry: int | Retry | None = None,
    timeout: float | None = None,
) -> Select:
    """Choose the likeliest of `choices` as the next text, and keep it under `name`. Nothing is sampled.

    `mean` takes the best mean log-probability of a token; `greedy` decides token by token, as greedy decoding held to
    the choices would; `unconditional` takes the choice whose likelihood gains most from the text before it, which
    corrects for choices that are common in themselves. `retry` and `timeout` are as for `gen`.
    """
    if method not in get_args(SelectMethod):
        raise ValueError(f"select: method must be one of {', '.join(get_args(SelectMethod))}, not {method!r}")
    return Select(
        arguments.name("select: name", name),
        tuple(checked_choices("select: choices", choices)),
        method,
        arguments.seconds("select: timeout", timeout),
        checked_retry("select: retry", retry),
    )


def image(source: str) -> Image:
    """A picture for the prompt, by its path or URL. A state refuses it (`Unsupported`) until there is a backend whose
    models take pictures; it is never left out in silence."""
    return Image(arguments.text("image: source", source))


def pieces_of(content: object) -> tuple[Piece, ...]:
    """The parts of whatever may be appended."""
    if isinstance(content, str):
        return (content,)
    if isinstance(content, Expression):
        return content.pieces()
    if _is_media(content):
        raise Unsupported(
            "a state takes text, gen(...) or select(...): no backend takes pictures or sound yet", "images"
        )
    raise TypeError(f"a state takes text, gen(...) or select(...), not {type(content).__name__}")


def _is_media(content: object) -> bool:
    """Whether it is a picture, or message parts of the OpenAI protocol with one among them."""
    if isinstance(content, Mapping):
        return str(content.get("type", "text")) not in ("text", "input_text")
    if isinstance(content, list | tuple):
        return any(isinstance(part, Mapping) and _is_media(part) for part in content)
    return type(content).__module__.partition(".")[0] == "PIL"


def checked(sampling: Sampling, where: str) -> Sampling:
    """The same as plain numbers and lists, if every name is known and every value of its type."""
    for key in sampling:
        if key not in Sampling.__annotations__:
            near = get_close_matches(key, Sampling.__annotations__, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{where}() has no parameter {key!r}{hint}")
    plain = {key: arguments.SAMPLING[key](f"{where}: {key}", value) for key, value in sampling.items()}
    return cast(Sampling, plain)


def sampling_params(defaults: Sampling, own: Sampling) -> SamplingParams:
    """`own` over `defaults`, as the engine wants it."""
    merged: dict[str, Any] = {**defaults, **own}
    merged.pop("speculation", None)
    return SamplingParams(
        stop=tuple(text.encode() for text in merged.pop("stop", ())),
        stop_token_ids=tuple(merged.pop("stop_token_ids", ())),
        logit_bias=dict(merged.pop("logit_bias", {})),
        **merged,
    )


def draft_sources(defaults: Sampling, own: Sampling) -> tuple[str, ...] | None:
    """Where `own` over `defaults` lets drafts come from; None: nothing is said of it."""
    return {**defaults, **own}.get("speculation")  # type: ignore[return-value]  # `checked` has made it so
