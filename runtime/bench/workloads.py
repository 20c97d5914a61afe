"""The workloads: who says what, how many at once, and which figure counts.

Prompts are drawn from a seed that names the workload, the round and the pass, so that each round has fresh prompts (or
the prefix cache would answer it) and every server gets the same ones. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
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

Metric = Literal["output tok/s", "prompt tok/s", "seconds", "valid/s", "items/s"]

TOPICS = ["animal", "family", "health", "law", "music", "travel"]


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation: how it opens, and what is said after each answer. A string opens a plain completion."""

    opening: str | tuple[Message, ...]
    replies: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        return 1 + len(self.replies)


@dataclass(frozen=True, slots=True)
class Level:
    """`hints` ask for the thoughts of one level, the same number of each path; `kept` are those that go on."""

    hints: tuple[str, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of thought (Yao et al., 2023). At each level every hint is put to its path, all at once, and each thought
    is scored at the end of its path; the next level begins when all scores are known.

    Which thoughts are kept is drawn beforehand and does not follow the scores, so that all servers do the same work.
    """

    opening: tuple[Message, ...]
    levels: tuple[Level, ...]
    score: str
    score_tokens: int

    @property
    def requests(self) -> int:
        return sum(2 * len(level.hints) for level in self.levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`about` says it in words. `in_flight` conversations run at once, each with at most `branches` requests at a time;
    an answer has `max_tokens` tokens, or with a schema at most so many. `free_tokens` is how many are asked for where a
    server cannot hold answers to a schema; None: there the workload is of no use."""

    name: str
    about: str
    scripts: Callable[[Random], Sequence[Script | Tree]]
    in_flight: int
    max_tokens: int
    metric: Metric
    schema: dict[str, Any] | None = None
    free_tokens: int | None = None
    branches: int = 1

    @property
    def at_once(self) -> int:
        """Requests in flight at a time, at most."""
        return self.in_flight * self.branches

    @property
    def has_streamed_pass(self) -> bool:
        """One token has no time between tokens, and the whole answer's time is the time to the first."""
        return self.max_tokens > 1

    def draw(self, round: int, streamed: bool) -> Sequence[Script | Tree]:
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


def _chats(random: Random) -> list[Script]:
    return [
        Script(_talk(text(random, 20), text(random, 40)), tuple(text(random, 30) for _ in range(2))) for _ in range(8)
    ]


def _thoughts(random: Random) -> list[Tree]:
    levels = []
    for paths in (1, 2, 2):
        hints = tuple(f"Think of another step: {text(random, 8)}" for _ in range(4 * paths))
        levels.append(Level(hints, tuple(sorted(random.sample(range(4 * paths), 2)))))
    problem = Message(role="system", content=f"Solve this problem step by step. {text(random, 600)}")
    return [Tree((problem,), tuple(levels), "How good is this step, from 1 to 10?", 4)]


def _items(random: Random) -> list[Script]:
    task = f"Sort each text under one topic: {', '.join(TOPICS)}. Answer with the topic alone."
    shown = [f"Text: {text(random, 23)}\nTopic: {json.dumps(random.choice(TOPICS))}" for _ in range(30)]
    system = "\n\n".join([task, *shown])
    return [Script(_talk(system, f"Text: {text(random, 23)}\nTopic:")) for _ in range(64)]


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
    "tree": (
        Workload(
            name="tree",
            about="one 600-word problem, 3 levels: 4 thoughts of 60 tokens from each of 2 paths, 4 tokens to score one",
            scripts=_thoughts,
            in_flight=1,
            branches=8,
            max_tokens=60,
            metric="seconds",
        ),
    ),
    "chat": (
        Workload(
            name="chat",
            about="8 at once, 20-word system prompt, 40-word question, 3 turns of 200 tokens, 30 words after each",
            scripts=_chats,
            in_flight=8,
            max_tokens=200,
            metric="output tok/s",
        ),
    ),
    "few-shot": (
        Workload(
            name="few-shot",
            about="64 texts of 23 words, 16 in flight, one prompt of 30 examples, 800 words, one of 6 topics out",
            scripts=_items,
            in_flight=16,
            max_tokens=8,
            metric="items/s",
            schema={"type": "string", "enum": TOPICS},
            free_tokens=4,
        ),
    ),
}


def chosen(names: Sequence[str]) -> list[Workload]:
    """The workloads of these names in the order of `GROUPS`; all if there is none. Raises `ConfigError`."""
    for name in names:
        if name not in GROUPS:
            raise ConfigError(f"no workload {name!r}; there are {', '.join(GROUPS)}")
    return [workload for name, group in GROUPS.items() if not names or name in names for workload in group]
