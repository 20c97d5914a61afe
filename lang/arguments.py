"""Types and ranges of what a program's author hands to the language, checked on the line where it is written.

Each check returns the value as the rest of the language wants it, or raises a TypeError or ValueError of one sentence
that begins with `where`: the function and the argument, such as "gen: stop". Ranges are those of `types`; what depends
on the model, such as the largest token id, is left to the backend. Knows nothing of what an argument is for.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, Final, TypeVar

from ..types import DRAFT_SOURCES, LONGEST_STOP, MOST_STOPS, SAMPLING_RANGES, Range

N = TypeVar("N", int, float)

_IDS = Range(0, 2**31)


def wrong_type(where: str, wanted: str, value: object) -> TypeError:
    """The error to raise for a value that is no `wanted` at all."""
    return TypeError(f"{where} must be {wanted}, not {reprlib.repr(value)}")


def whole(where: str, value: Any) -> int:
    """A whole number that fits 64 bits, as those of all protocols must."""
    try:
        number = operator.index(value)  # numbers of other libraries too
    except TypeError:
        raise wrong_type(where, "a whole number", value) from None
    if isinstance(value, bool):
        raise wrong_type(where, "a whole number", value)
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"{where} must be a number of at most 64 bits")
    return number


def finite(where: str, value: Any) -> float:
    """A number that is neither infinite nor NaN: JSON has neither."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(where, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{where} must be a finite number, not {number}")
    return number


def within(where: str, number: N, allowed: Range) -> N:
    """The number, if it lies in the range."""
    if not allowed.holds(number):
        raise ValueError(f"{where} must be {allowed}, not {number}")
    return number


def count(where: str, value: Any, most: int = 2**31) -> int:
    """A whole number of things, at least one and at most so many."""
    return within(where, whole(where, value), Range(1, most))


def seconds(where: str, value: Any) -> float | None:
    """A time limit; None is none."""
    if value is None:
        return None
    limit = finite(where, value)
    if limit <= 0:
        raise ValueError(f"{where} must be above zero, not {limit:g}")
    return limit


def flag(where: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise wrong_type(where, "True or False", value)
    return value


def text(where: str, value: Any) -> str:
    """A string that can be encoded."""
    if not isinstance(value, str):
        raise wrong_type(where, "a string", value)
    if (fault := half_character(value)) is not None:
        raise ValueError(f"{where} {fault}")
    return value


def name(where: str, value: Any) -> str | None:
    """A string, or None."""
    return None if value is None else text(where, value)


def texts(where: str, value: Any, wanted: str = "a list of strings") -> list[str]:
    """A list of strings, none of them empty."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong_type(where, wanted, value)
    found = list(value)
    for item in found:
        if not isinstance(item, str):
            raise TypeError(f"{where} must be {wanted}, and {reprlib.repr(item)} is no string")
        if not item:
            raise ValueError(f"{where} must be {wanted} that are not empty")
        text(where, item)
    return found


def half_character(value: str) -> str | None:
    """What is wrong with a text that UTF-8 cannot say, to be put after the text's name; None for others."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"is not valid Unicode: it has half of a surrogate pair at character {error.start}"
    return None


def _stops(where: str, value: Any) -> list[str]:
    found = texts(where, [value] if isinstance(value, str) else value, "a string or a list of strings")
    if len(found) > MOST_STOPS or any(len(stop.encode()) > LONGEST_STOP for stop in found):
        raise ValueError(f"{where} must be at most {MOST_STOPS} strings of at most {LONGEST_STOP} bytes")
    return found


def _token_id(where: str, value: Any) -> int:
    return within(f"{where}: a token id", whole(f"{where}: a token id", value), _IDS)


def _token_ids(where: str, value: Any) -> list[int]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong_type(where, "a list of token ids", value)
    return [_token_id(where, token) for token in value]


def _bias(where: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise wrong_type(where, "a dict from token ids to numbers", value)
    return {_token_id(where, token): finite(f"{where}: a bias", bias) for token, bias in value.items()}


def _sources(where: str, value: Any) -> tuple[str, ...] | None:
    """Where drafts may come from; None: wherever the backend has them from."""
    if value is None:
        return None
    if value == "off":
        return ()
    wanted = f'"off" or a list of {", ".join(DRAFT_SOURCES)}'
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong_type(where, wanted, value)
    named = list(value)
    if isinstance(value, str) or not all(source in DRAFT_SOURCES for source in named):
        raise ValueError(f"{where} must be {wanted}, not {reprlib.repr(value)}")
    return tuple(dict.fromkeys(named))


def _whole_or_none(where: str, value: Any) -> int | None:
    return None if value is None else whole(where, value)


def _number(name: str, check: Callable[[str, Any], Any], allowed: Range | None = None) -> Callable[[str, Any], Any]:
    span = SAMPLING_RANGES[name] if allowed is None else allowed

    def checked(where: str, value: Any) -> Any:
        number = check(where, value)
        return None if number is None else within(where, number, span)

    return checked


SAMPLING: Final[dict[str, Callable[[str, Any], Any]]] = {
    "max_tokens": _number("max_tokens", whole, SAMPLING_RANGES["max_tokens"]._replace(low=1)),
    "min_tokens": _number("min_tokens", whole),
    "temperature": _number("temperature", finite),
    "top_k": _number("top_k", whole),
    "top_p": _number("top_p", finite),
    "min_p": _number("min_p", finite),
    "presence_penalty": _number("presence_penalty", finite),
    "frequency_penalty": _number("frequency_penalty", finite),
    "repetition_penalty": _number("repetition_penalty", finite),
    "logit_bias": _bias,
    "seed": _number("seed", _whole_or_none),
    "stop": _stops,
    "stop_token_ids": _token_ids,
    "ignore_eos": flag,
    "logprobs": _number("logprobs", _whole_or_none),
    "speculation": _sources,
}
"""The check of each field of `expressions.Sampling`. None, where it is allowed, takes a program's default back. A
generation of no tokens is none, so `max_tokens` begins at 1."""
