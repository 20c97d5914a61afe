"""What a run may cost at most, and what it has cost so far.

Knows nothing of programs. A ledger is kept on the language's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, TypeVar

from . import arguments

T = TypeVar("T")

Limit = Literal["tokens", "calls", "seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that one run may take. None: no limit.

    `tokens` are those of all prompts and all that is generated, cached ones included, as `usage` counts them, and those
    of attempts that failed; `calls` are generations and selections, each attempt and each sample one; `seconds` run
    from the start of the run, and end calls and tools, not the program's own code. A call that would pass a limit, or
    passes it, fails with `BudgetExceeded`, and so do all that are under way or come later.
    """

    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.tokens is None and self.calls is None and self.seconds is None:
            raise ValueError("Budget: at least one of tokens, calls and seconds must be given")
        for name, value in (("tokens", self.tokens), ("calls", self.calls)):
            if value is not None:
                arguments.count(f"Budget: {name}", value, 2**63)
        arguments.seconds("Budget: seconds", self.seconds)


def checked_budget(where: str, value: object) -> Budget | None:
    """A `Budget`, or None."""
    if value is not None and not isinstance(value, Budget):
        raise arguments.wrong_type(where, "a Budget", value)
    return value


class Spent(Exception):
    """A limit is passed. Becomes the `BudgetExceeded` of the step that it meets."""

    def __init__(self, limit: Limit, allowed: float) -> None:
        super().__init__(f"the run's budget of {allowed:g} {limit} is spent")
        self.limit = limit


class Ledger:
    """What one run has spent. `over` is there once a limit is passed, and stays."""

    def __init__(self, budget: Budget | None) -> None:
        self.over: Spent | None = None
        self._tokens = self._calls = 0
        self._most_tokens = None if budget is None else budget.tokens
        self._most_calls = None if budget is None else budget.calls
        self._seconds = None if budget is None else budget.seconds
        self._born = time.monotonic()

    def begin(self, tokens: int) -> None:
        """One more call, whose prompt has so many tokens. Raises `Spent` if it cannot be made, or not have an answer of
        one token."""
        self._calls += 1
        if self._most_calls is not None and self._calls > self._most_calls:
            raise self._pass("calls", self._most_calls)
        self.add(tokens, at_least=1)

    def add(self, tokens: int, *, at_least: int = 0) -> None:
        """So many more tokens, and `at_least` so many to come. Raises `Spent`."""
        self._tokens += tokens
        if self._most_tokens is not None and self._tokens + at_least > self._most_tokens:
            raise self._pass("tokens", self._most_tokens)

    async def in_time(self, work: Awaitable[T]) -> T:
        """What the work comes to within the seconds that are left. Raises `Spent`."""
        if self._seconds is None:
            return await work
        left = self._born + self._seconds - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left)) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._pass("seconds", self._seconds) from None

    def _pass(self, limit: Limit, allowed: float) -> Spent:
        self.over = self.over or Spent(limit, allowed)
        return self.over
