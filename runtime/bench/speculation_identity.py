"""Whether drafts change an answer: prompts of many kinds, each answered with drafts and without.

Texts repeat themselves, so that there is much to draft. Knows nothing of how results are shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from ...speculative.arbiter import Arbiter, Costs
from ...types import GrammarSpec, SamplingParams
from .record_schema import SCHEMA
from .speculation_bed import Bed
from .speculation_cases import CHARACTER, CITY, Ask, Speech, tool_calls
from .words import WORDS, text

SEED = "bosquet bench identity 1"
TIGHT_TOKENS = 512
"""Cache of the engine in which requests push each other out."""

_SPECS = (
    GrammarSpec("json_schema", json.dumps(SCHEMA)),
    GrammarSpec("regex", CITY),
    GrammarSpec("regex", CHARACTER),
    GrammarSpec("choice", json.dumps([f"{a} and {b}" for a, b in zip(WORDS[:40], WORDS[40:80], strict=True)])),
    GrammarSpec("json_object"),
)


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts of one kind, so many in flight. `tight`: on the engine that has too little room."""

    name: str
    asks: Callable[[Speech, int], list[Ask]]
    at_once: int
    tight: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """`same` of `prompts` answers are the same; `differ` are the numbers of some that are not. `drafted` and `right`
    say what was drafted, by source."""

    group: str
    prompts: int
    same: int
    tokens: int
    preempted: int
    drafted: Mapping[str, int]
    right: Mapping[str, int]
    differ: tuple[int, ...] = ()


def _free(speech: Speech, count: int) -> list[Ask]:
    random = Random(f"{SEED}/free")
    sampling = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    return [Ask(speech.words(_twice(random)), sampling) for _ in range(count)]


def _constrained(speech: Speech, count: int) -> list[Ask]:
    random = Random(f"{SEED}/constrained")
    grammars = [speech.compiler.compile(spec) for spec in _SPECS]
    sampling = SamplingParams(temperature=0, max_tokens=64)
    return [Ask(speech.words(_twice(random)), sampling, grammars[at % len(grammars)]) for at in range(count)]


def _tools(speech: Speech, count: int) -> list[Ask]:
    return [ask._replace(sampling=SamplingParams(temperature=0, max_tokens=48)) for ask in tool_calls(speech, count)]


def _preempted(speech: Speech, count: int) -> list[Ask]:
    """Answers that grow by more pages than there are."""
    asks = _shuffled("preempted", [*_free(speech, count - count // 2), *_constrained(speech, count // 2)])
    return [ask._replace(sampling=replace(ask.sampling, max_tokens=96)) for ask in asks]


def _mixed(speech: Speech, count: int) -> list[Ask]:
    """All kinds in one batch, a third of them sampled with a seed or with penalties."""
    each = -(-count // 3)
    asks = _shuffled("mixed", [*_free(speech, each), *_constrained(speech, each), *_tools(speech, each)])[:count]
    manners = (
        SamplingParams(temperature=1, seed=7, max_tokens=40),
        SamplingParams(temperature=0.8, top_p=0.9, seed=8, max_tokens=24, frequency_penalty=0.4),
        SamplingParams(temperature=0, max_tokens=48, repetition_penalty=1.2, min_tokens=8),
    )
    return [ask if at % 3 else ask._replace(sampling=manners[at // 3 % len(manners)]) for at, ask in enumerate(asks)]


def _twice(random: Random) -> str:
    """Words that are said twice and begun again."""
    words = text(random, random.randint(6, 24))
    return f"{words}. {words}. {' '.join(words.split()[:3])}"


def _shuffled(name: str, asks: list[Ask]) -> list[Ask]:
    Random(f"{SEED}/{name}").shuffle(asks)
    return asks


GROUPS = (
    Group("free", _free, 16),
    Group("constrained", _constrained, 16),
    Group("tools", _tools, 8),
    Group("preempted", _preempted, 32, tight=True),
    Group("mixed", _mixed, 24),
)


class _Free(Costs):
    """A wider pass costs nothing more, whatever is measured."""

    def learn(self, tokens: int, seconds: float) -> None:
        return


def judge(bed: Bed, group: Group, count: int) -> Verdict:
    """Ask `count` prompts of the group twice. Whatever can be drafted is, whether it pays or not."""
    asks = group.asks(bed.speech, count)
    drafter = bed.engine.scheduler.drafter
    assert drafter is not None
    usual, drafter.arbiter = drafter.arbiter, Arbiter(_Free({1: 1.0, 8: 1.0}))
    off, on = (bed.run(asks, group.at_once, sources, f"same {group.name}") for sources in ((), bed.sources))
    drafter.arbiter = usual
    differ = [at for at, (a, b) in enumerate(zip(off.answers, on.answers, strict=True)) if a != b]
    return Verdict(
        group=group.name,
        prompts=len(asks),
        same=len(asks) - len(differ),
        tokens=off.tokens,
        preempted=off.preempted + on.preempted,
        drafted=on.drafted,
        right=on.right,
        differ=tuple(differ[:10]),
    )
