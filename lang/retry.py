"""Another attempt at a call that failed.

Knows nothing of what a call does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar, get_args

from ..errors import DeadlineExceeded, Overloaded, Unavailable
from .arguments import count, texts, wrong_type

RetryOn = Literal["value", "timeout", "unavailable"]

_PASSING: Final[dict[RetryOn, tuple[type[Exception], ...]]] = {
    "timeout": (DeadlineExceeded,),
    "unavailable": (Overloaded, Unavailable),
}
MOST: Final = 100


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call that failed is made again, and after which failures.

    `times` counts the attempts after the first. `on` names the failures: "value", the text is not of the type that was
    asked for, or was cut before it was complete; "timeout", no answer within the call's `timeout`; "unavailable", the
    backend is overloaded, starting, gone, or broke off. Before an attempt after the last kind it waits as long as the
    backend asks for.
    """

    times: int = 1
    on: Iterable[RetryOn] = field(default=get_args(RetryOn))

    def __post_init__(self) -> None:
        count("Retry: times", self.times, MOST)
        named = texts("Retry: on", self.on)
        if not named or not set(named) <= set(get_args(RetryOn)):
            raise ValueError(f"Retry: on must be some of {', '.join(get_args(RetryOn))}, not {named}")
        object.__setattr__(self, "on", tuple(named))


def checked_retry(where: str, value: object) -> Retry | None:
    """A `Retry`, or the number of attempts after the first; 0 and None are none."""
    if value is None or isinstance(value, Retry):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(where, "a number of attempts after the first, or a Retry", value)
    return None if value == 0 else Retry(count(where, value, MOST))


class Tried(Protocol):
    """What an attempt has come to. `wrong` says why its text has no value."""

    @property
    def wrong(self) -> Exception | None: ...


T = TypeVar("T", bound=Tried)


async def tried(
    retry: Retry | None, attempt: Callable[[int], Awaitable[T]], *, varies: bool
) -> tuple[T, tuple[Exception, ...]]:
    """The first attempt that goes well, or the last one, and why those before it failed. `attempt` gets its number,
    from 0. Unless the output `varies`, a wrong value would be the same again, and is the last word. Raises what the
    last attempt raises, which then says so in its notes."""
    if retry is None:
        return await attempt(0), ()
    failed: list[Exception] = []
    while True:
        left = len(failed) < retry.times
        try:
            made = await attempt(len(failed))
        except Exception as error:
            if not left or not _passing(retry, error):
                if failed:
                    error.add_note(f"attempt {len(failed) + 1}; before it: {'; '.join(map(str, failed))}")
                raise
            failed.append(error.with_traceback(None))  # whose frames would keep the whole run
            await asyncio.sleep(_pause(error))
        else:
            if made.wrong is None or not left or not varies or "value" not in retry.on:
                return made, tuple(failed)
            failed.append(made.wrong)


def _passing(retry: Retry, error: Exception) -> bool:
    return any(isinstance(error, kinds) for name, kinds in _PASSING.items() if name in retry.on)


def _pause(error: Exception) -> float:
    if not isinstance(error, Overloaded | Unavailable):
        return 0.0
    return error.retry_after * random.uniform(1.0, 1.5)  # those that were refused together do not come back together
