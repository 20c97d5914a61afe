"""The workloads: who says what, how many at once, and which figure counts.

Prompts are drawn from a seed that names the workload, the round and the pass, so that each round has fresh prompts (or
the prefix cache would answer it) and every server gets the same ones. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from ...errors import ConfigError
from ...types import Message
from .record_schema import SCHEMA
from .words import text

SEED = "bosquet bench 1"
"""Another number when a change makes figures incomparable."""

Metric = Literal["output tok/s", "prompt tok/s", "seconds", "valid/s"]


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation: how it opens, and what is said after each answer. A string opens a plain completion."""

    opening: str | tuple[Message, ...]
    replies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`about` says it in words. `in_flight` conversations run at once; each answer has `max_tokens` tokens, or with a
    schema at most so many."""

    name: str
    about: str
    scripts: Callable[[Random], list[Script]]
    in_flight: int
    max_tokens: int
    metric: Metric
    schema: dict[str, Any] | None = None

    @property
    def has_streamed_pass(self) -> bool:
        """One token has no time between tokens, and the whole answer's time is the time to the first."""
        return self.max_tokens > 1

    def draw(self, round: int, streamed: bool) -> list[Script]:
        """The conversations of one pass. Round -1 is the warm-up."""
        return self.scripts(Random(f"{SEED}/{self.name}/{round}/{'streamed' if streamed else 'whole'}"))


def _plain(count: int, words: int) -> Callable[[Random], list[Script]]:
    return lambda random: [Script(text(random, words)) for _ in range(count)]


def _agents(random: Random) -> list[Script]:
    system = text(random, 1200)
    return [
        Script(_talk(system, text(random, 40)), tuple(text(random, 60) for _ in range(5)))  # the sixth is not answered
        for _ in range(16)
    ]


def _records(random: Random) -> list[Script]:
    task = "Write one record about the text as JSON."
    system = f"{task} {text(random, 200 - len(task.split()))}"
    return [Script(_talk(system, text(random, 60))) for _ in range(48)]


def _talk(system: str, user: str) -> tuple[Message, ...]:
    return (Message(role="system", content=system), Message(role="user", content=user))


GROUPS: dict[str, tuple[Workload, ...]] = {
    "single": (
        Workload(
            name="single",
            about="3 requests in turn, 8-word prompt, 128 tokens out",
            scripts=_plain(3, 8),
            in_flight=1,
            max_tokens=128,
            metric="output tok/s",
        ),
    ),
    "prefill": (
        Workload(
            name="prefill 512",
            about="6 requests in turn, 512-word prompt, 1 token out",
            scripts=_plain(6, 512),
            in_flight=1,
            max_tokens=1,
            metric="prompt tok/s",
        ),
        Workload(
            name="prefill 4096",
            about="3 requests in turn, 4,096-word prompt, 1 token out",
            scripts=_plain(3, 4096),
            in_flight=1,
            max_tokens=1,
            metric="prompt tok/s",
        ),
    ),
    "streams": (
        Workload(
            name="streams",
            about="64 requests, 32 in flight, 100-word prompt, 128 tokens out",
            scripts=_plain(64, 100),
            in_flight=32,
            max_tokens=128,
            metric="output tok/s",
        ),
    ),
    "agents": (
        Workload(
            name="agents",
            about="16 at once, one 1,200-word system prompt, 40-word task, 6 turns of 40 tokens, 60 words after each",
            scripts=_agents,
            in_flight=16,
            max_tokens=40,
            metric="seconds",
        ),
    ),
    "json": (
        Workload(
            name="json",
            about="48 requests, 16 in flight, one 200-word system prompt, 60-word text, schema, up to 200 tokens out",
            scripts=_records,
            in_flight=16,
            max_tokens=200,
            metric="valid/s",
            schema=SCHEMA,
        ),
    ),
}


def chosen(names: Sequence[str]) -> list[Workload]:
    """The workloads of these names in the order of `GROUPS`; all if there is none. Raises `ConfigError`."""
    for name in names:
        if name not in GROUPS:
            raise ConfigError(f"no workload {name!r}; there are {', '.join(GROUPS)}")
    return [workload for name, group in GROUPS.items() if not names or name in names for workload in group]
