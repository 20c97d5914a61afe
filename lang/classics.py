"""Six agent programs of the literature, with the content, sizes and waits of each run as arguments.

For measurements (`bosquet bench programs`), and to learn from: a run does the same work on every model, since each
answer has a given length and nothing that is generated decides what comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from .expressions import gen
from .program import Program, program
from .state import State


@program(temperature=0, ignore_eos=True)
def tree_of_thought(s: State, problem: str, hints: Sequence[str], depth: int, tokens: int, rate: str) -> None:
    """From every thought one more for each hint, `depth` deep; the last ones are rated. Yao et al., 2023."""
    s.system(problem)
    thoughts = [s]
    for _ in range(depth):
        thoughts = [branch for thought in thoughts for branch in thought.fork(len(hints))]
        for i, thought in enumerate(thoughts):
            thought.user(hints[i % len(hints)])
            thought.assistant(gen("thought", max_tokens=tokens))
    for thought in thoughts:
        thought.user(rate)
        thought.assistant(gen("rating", max_tokens=4))


@program(temperature=0, ignore_eos=True)
def skeleton_of_thought(s: State, task: str, points: Sequence[str], tokens: int, whole: str) -> None:
    """A skeleton first, then all of its points side by side, then the whole. Ning et al., 2023."""
    s.user(task)
    s.assistant(gen("skeleton", max_tokens=tokens))
    branches = s.fork(len(points))
    for branch, point in zip(branches, points, strict=True):
        branch.user(point)
        branch.assistant(gen("text", max_tokens=tokens))
    s.join(branches)
    s.user("\n".join([whole, *s["text"]]))
    s.assistant(gen("whole", max_tokens=tokens))


@program(temperature=0, ignore_eos=True)
def judge(s: State, rules: str, essay: str, sides: Sequence[str], tokens: int, verdict: str) -> None:
    """Each side of an essay is judged apart, and then all of it. Branch, solve and merge: Saha et al., 2023."""
    s.system(rules)
    s.user(essay)
    branches = s.fork(len(sides))
    for branch, side in zip(branches, sides, strict=True):
        branch.user(side)
        branch.assistant(gen("judgement", max_tokens=tokens))
    s.join(branches)
    s.user("\n".join([verdict, *s["judgement"]]))
    s.assistant(gen("verdict", max_tokens=tokens))


@program(temperature=0.8, ignore_eos=True)
def vote(s: State, examples: str, question: str, chains: int, tokens: int, agree: str) -> None:
    """Several chains of thought, and what most of them say. Self-consistency: Wang et al., 2022."""
    s.system(examples)
    s.user(question)
    branches = s.fork(chains)
    for seed, branch in enumerate(branches):
        branch.assistant(gen("chain", max_tokens=tokens, seed=seed))
    s.join(branches)
    s.user("\n".join([agree, *s["chain"]]))
    s.assistant(gen("answer", max_tokens=8, temperature=0))


@program(temperature=0, ignore_eos=True)
async def react(
    s: State, examples: str, question: str, found: Sequence[str], waits: Sequence[float], tokens: int
) -> None:
    """A thought and an action, then what a tool has found after a while, over and over. Yao et al., 2022."""
    s.system(examples)
    s.user(question)
    for step, (observation, wait) in enumerate(zip(found, waits, strict=True)):
        s.assistant(gen(f"action_{step}", max_tokens=tokens))
        await s.get(f"action_{step}")
        await asyncio.sleep(wait)
        s.user(observation)
    s.assistant(gen("answer", max_tokens=tokens))


@program(temperature=0, ignore_eos=True)
def chat(s: State, system: str, questions: Sequence[str], tokens: int) -> None:
    """A conversation."""
    s.system(system)
    for turn, question in enumerate(questions):
        s.user(question)
        s.assistant(gen(f"answer_{turn}", max_tokens=tokens))
        s[f"answer_{turn}"]  # whoever asks has read the answer before


PROGRAMS: Mapping[str, Program[Any]] = {
    each.name: each for each in (tree_of_thought, skeleton_of_thought, judge, vote, react, chat)
}
