"""What the measured programs are about: contents and sizes, drawn from a seed.

The programs themselves are written twice, in the language (`lang.classics`) and on a client of the OpenAI protocol
(`programs_client`), with the same names and arguments. Knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ...errors import ConfigError
from .words import text

SEED = "bosquet bench programs 1"
"""Another number when a change makes figures incomparable."""

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """`runs` runs of the program `name` begin at once. `common` is drawn once for all of them, `own` for each."""

    name: str
    about: str
    runs: int
    common: Callable[[Random], Arguments]
    own: Callable[[Random], Arguments]

    def draw(self, round: int, who: str) -> list[Arguments]:
        """The arguments of each run. Another `who` has other contents of the same sizes, so that nothing that one has
        computed is cached for the other."""
        random = Random(f"{SEED}/{self.name}/{round}/{who}")
        common = self.common(random)
        return [{**common, **self.own(random)} for _ in range(self.runs)]


def _nothing(random: Random) -> Arguments:
    return {}


def _tree(random: Random) -> Arguments:
    return {
        "problem": f"Solve this problem step by step. {text(random, 300)}",
        "hints": [f"Think of another step: {text(random, 8)}" for _ in range(3)],
        "depth": 4,
        "tokens": 24,
        "rate": "How good is this path, from 1 to 10?",
    }


def _skeleton(random: Random) -> Arguments:
    return {
        "task": f"Write a skeleton of an essay about this: {text(random, 60)}",
        "points": [f"Write point {point} of it in full." for point in range(1, 7)],
        "tokens": 48,
        "whole": "Sum up these points:",
    }


def _essay(random: Random) -> Arguments:
    return {"essay": text(random, 400)}


def _rules(random: Random) -> Arguments:
    sides = ("clarity", "depth", "evidence", "style")
    return {
        "rules": f"You judge essays by these rules. {text(random, 200)}",
        "sides": [f"Judge the {side} of this essay." for side in sides],
        "tokens": 48,
        "verdict": "Give the grade that follows from these judgements:",
    }


def _examples(random: Random) -> Arguments:
    return {
        "examples": f"Here are solved examples. {text(random, 600)}",
        "chains": 5,
        "tokens": 64,
        "agree": "What do most of these say?",
    }


def _question(random: Random) -> Arguments:
    return {"question": text(random, 60)}


def _traces(random: Random) -> Arguments:
    return {"examples": f"Answer with thoughts and actions, as in these traces. {text(random, 600)}", "tokens": 32}


def _found(random: Random) -> Arguments:
    return {
        "question": text(random, 40),
        "found": [f"Observation: {text(random, 60)}" for _ in range(5)],
        "waits": [random.uniform(0.1, 0.5) for _ in range(5)],
    }


def _conversation(random: Random) -> Arguments:
    return {
        "system": text(random, 20),
        "questions": [text(random, random.randint(40, 100)) for _ in range(4)],
        "tokens": 64,
    }


CASES = (
    Case("tree_of_thought", "1 problem of 300 words, 3 thoughts of 24 tokens from each, 4 deep", 1, _nothing, _tree),
    Case("skeleton_of_thought", "4 essays, a skeleton and 6 points of 48 tokens", 4, _nothing, _skeleton),
    Case("judge", "8 essays of 400 words, 4 judgements of 48 tokens, then a verdict", 8, _rules, _essay),
    Case("vote", "8 questions on one prompt of 600 words, 5 chains of 64 tokens", 8, _examples, _question),
    Case("react", "8 agents on one prompt of 600 words, 5 tools of 0.1 to 0.5 s, 60 words each", 8, _traces, _found),
    Case("chat", "8 conversations of 4 turns, 40 to 100 words in and 64 tokens out", 8, _nothing, _conversation),
)


def chosen(names: Sequence[str], others: Sequence[str] = ()) -> list[Case]:
    """The cases of these names, in the order of `CASES`; all if there is no name. `others` are known to someone else.
    Raises `ConfigError`."""
    known = [case.name for case in CASES]
    for name in names:
        if name not in (*known, *others):
            raise ConfigError(f"no program {name!r}; there are {', '.join([*known, *others])}")
    return [case for case in CASES if not names or case.name in names]
