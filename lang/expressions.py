"""What a program appends to its state: text, `gen` and `select`.

Plain data: nothing here runs. Expressions join with `+`, so `"Answer: " + gen("answer")` is one too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, Unpack, cast, get_args

from ..types import SamplingParams
from . import arguments
from .typed import FREE, Shape, checked_choices, shape

SelectMethod = Literal["mean", "greedy", "unconditional"]


class Sampling(TypedDict, total=False):
    """How tokens are chosen and when to stop. What is left out falls back to the program's own defaults, then to those
    of `SamplingParams` (temperature 1, 128 tokens)."""

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

    def pieces(self) -> tuple[Piece, ...]:
        return (self,)


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """A choice by log-probability; made by `select`."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod = "mean"
    timeout: float | None = None

    def pieces(self) -> tuple[Piece, ...]:
        return (self,)


Piece = str | Gen | Select


def gen(
    name: str | None = None,
    *,
    schema: Any = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    lark: str | None = None,
    strict: bool = False,
    timeout: float | None = None,
    **sampling: Unpack[Sampling],
) -> Gen:
    """Generate, and keep the value under `name`.

    The output can be held to one of: `schema` (a pydantic model or any type that pydantic knows, then the value is of
    that type; or a JSON schema as a dict, then it is what the JSON says), `regex`, `choices`, `grammar` (EBNF), `lark`
    (a grammar in Lark's notation). With `strict`, a schema that cannot be enforced in full is refused; without, what is
    not enforced stands in the `relaxed` of the value's `Meta`. `timeout` is in seconds from the moment that the call is
    sent. The rest is `Sampling`.
    """
    wanted = shape("gen", schema=schema, regex=regex, choices=choices, grammar=grammar, lark=lark, strict=strict)
    return Gen(
        arguments.name("gen: name", name),
        wanted,
        arguments.seconds("gen: timeout", timeout),
        checked(sampling, "gen"),
    )


def select(
    name: str | None,
    choices: Sequence[str],
    method: SelectMethod = "mean",
    *,
    timeout: float | None = None,
) -> Select:
    """Choose the likeliest of `choices` as the next text, and keep it under `name`. Nothing is sampled.

    `mean` takes the best mean log-probability of a token; `greedy` decides token by token, as greedy decoding held to
    the choices would; `unconditional` takes the choice whose likelihood gains most from the text before it, which
    corrects for choices that are common in themselves.
    """
    if method not in get_args(SelectMethod):
        raise ValueError(f"select: method must be one of {', '.join(get_args(SelectMethod))}, not {method!r}")
    return Select(
        arguments.name("select: name", name),
        tuple(checked_choices("select: choices", choices)),
        method,
        arguments.seconds("select: timeout", timeout),
    )


def pieces_of(content: str | Expression) -> tuple[Piece, ...]:
    """The parts of whatever may be appended."""
    if isinstance(content, str):
        return (content,)
    if isinstance(content, Expression):
        return content.pieces()
    raise TypeError(f"a state takes text, gen(...) or select(...), not {type(content).__name__}")


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
    return SamplingParams(
        stop=tuple(text.encode() for text in merged.pop("stop", ())),
        stop_token_ids=tuple(merged.pop("stop_token_ids", ())),
        logit_bias=dict(merged.pop("logit_bias", {})),
        **merged,
    )
