"""An engine in this process, asked for the same answers with drafts and without, in turn.

Both sides are requests of one engine that differ in the request's own field; every round has a program name of its own,
so that no round drafts from what an earlier one said. Answers may be dictated: the model computes and draws as always,
and what it drew is then replaced by the next token of a given text, so that a draft is right where the text says so.

Knows nothing of what is asked, nor of how figures are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from ...errors import BosquetError
from ...grammar.base import Compiled
from ...grammar.matcher import only_bit
from ...types import DRAFT_SOURCES, PAGE, Origin, Request, TokenLogprob
from ..assembly import assemble
from ..engine import Engine
from ..pass_costs import measure
from ..plan import Handle, Move, Plan, Runner, Sampled, SampleRow, ScoreRow
from ..settings import EngineConfig
from ..templates import ChatTemplate
from ..tokenizer import Tokenizer
from .speculation_cases import Ask, Speech

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of the passes that are measured before anything is asked."""


DICTATED = 1 << 40
"""Seeds above this are those of answers that are dictated."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All asks of one workload, once. `computed` counts the tokens of all passes, `cached` those of prompts that were
    in the cache; `drafted` and `right` count draft tokens that were reached, by source."""

    seconds: float
    passes: int
    computed: int
    cached: int
    preempted: int
    drafted: Mapping[str, int]
    right: Mapping[str, int]
    answers: list[list[int]] = field(repr=False)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class Pair(NamedTuple):
    """Both sides of one round."""

    off: Reading
    on: Reading

    @property
    def ratio(self) -> float:
        return self.off.seconds / self.on.seconds


class Dictation:
    """A runner between the engine and its own. `texts` are whole texts, prompt included, by the seed of the request."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.texts: dict[int, Sequence[int]] = {}

    def submit(self, plan: Plan) -> Handle:
        handle = self._runner.submit(plan)
        return _Dictated(handle, self.texts) if self.texts else handle

    def move(self, moves: Sequence[Move]) -> None:
        self._runner.move(moves)

    def profile(self) -> dict[str, float]:
        return self._runner.profile()


class _Dictated:
    def __init__(self, handle: Handle, texts: Mapping[int, Sequence[int]]) -> None:
        self._handle = handle
        self._texts = texts
        self._draws: Sequence[SampleRow] = ()

    def sample(self, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> None:
        self._draws = draws
        self._handle.sample(draws, scores)

    def result(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        sampled, scored = self._handle.result()
        return [self._said(*pair) for pair in zip(self._draws, sampled, strict=True)], scored

    def _said(self, draw: SampleRow, sampled: Sampled) -> Sampled:
        text = self._texts.get(draw.seed)
        return sampled if text is None else Sampled(text[draw.position])


@dataclass(slots=True)
class Bed:
    """The engine, and what turns text into its requests. `sources` may draft on the side that has drafts."""

    model: str
    engine: Engine
    speech: Speech
    dictation: Dictation
    mask_words: int
    pass_seconds: dict[int, float]
    sources: tuple[str, ...] = DRAFT_SOURCES
    _asked: int = 0

    def run(self, asks: Sequence[Ask], at_once: int, sources: tuple[str, ...], program: str) -> Reading:
        """Ask all of them, so many at a time. Raises `BosquetError` when one fails."""
        engine, waiting, live = self.engine, list(enumerate(asks)), 0
        names: dict[str, int] = {}
        answers: list[list[int]] = [[] for _ in asks]
        before = _counters(engine)
        began = time.perf_counter()
        while waiting or live:
            while waiting and live < at_once:
                number, ask = waiting.pop(0)
                request = self._request(ask, sources, program)
                names[request.id] = number
                engine.add(request, ask.grammar)
                live += 1
            for output in engine.step():
                answers[names[output.request]] += output.tokens
                if output.finish is not None:
                    live -= 1
                    if output.error is not None:
                        raise BosquetError(f"{program}: {output.error[1]}")
        seconds = time.perf_counter() - began
        self.dictation.texts.clear()
        grown = {name: value - before[name] for name, value in _counters(engine).items()}
        return Reading(
            seconds,
            grown["steps"],
            grown["computed"],
            grown["cached"],
            grown["preempted"],
            {source: grown[f"drafted {source}"] for source in engine.stats().drafted_tokens},
            {source: grown[f"right {source}"] for source in engine.stats().accepted_tokens},
            answers,
        )

    def _request(self, ask: Ask, sources: tuple[str, ...], program: str) -> Request:
        self._asked += 1
        sampling = ask.sampling
        if ask.dictated is not None:
            seed = DICTATED + self._asked
            sampling = replace(sampling, seed=seed, max_tokens=len(ask.dictated), ignore_eos=True)
            self.dictation.texts[seed] = [*ask.ids, *ask.dictated]
        return Request(
            id=str(self._asked),
            ids=list(ask.ids),
            sampling=sampling,
            origin=Origin(program=program),
            speculation=sources,
        )

    def compare(
        self, asks: Sequence[Ask], at_once: int, rounds: int, name: str, on_side: Callable[[], None] = lambda: None
    ) -> list[Pair]:
        """Off and on in turn, each round in the other order: a drift of the machine takes no side. A first pass that
        does not count puts all prompts into the cache, for both."""
        short = [ask._replace(sampling=replace(ask.sampling, max_tokens=1), dictated=None) for ask in asks]
        self.run(short, at_once, (), name)
        pairs = []
        for round in range(rounds):
            sides = {}
            for on in (False, True) if round % 2 == 0 else (True, False):
                sides[on] = self.run(asks, at_once, self.sources if on else (), f"{name} {round}")
                on_side()
            pairs.append(Pair(sides[False], sides[True]))
        return pairs

    def forced(self, grammar: Compiled, answer: Sequence[int]) -> tuple[int, int]:
        """How many of the answer's tokens the grammar left no choice about, and how many there are, an end token not
        counted: the only token allowed, or one whose text lies within the text that must come."""
        matcher, forced, count = grammar.matcher(), 0, 0
        mask = np.empty(self.mask_words, np.int32)
        for token in answer:
            must = matcher.forced_text().encode()
            matcher.fill_mask(mask)
            if matcher.try_accept([token]) != 1 or matcher.terminated:
                break
            piece = self.speech.tokenizer.token_bytes[token]
            forced += only_bit(mask) == token or bool(piece and must.startswith(piece))
            count += 1
        return forced, count


def _counters(engine: Engine) -> dict[str, int]:
    stats = engine.stats()
    counters = {
        "steps": stats.steps,
        "computed": stats.computed_tokens,
        "cached": stats.cached_tokens,
        "preempted": stats.preemptions,
    }
    counters |= {f"drafted {source}": count for source, count in stats.drafted_tokens.items()}
    return counters | {f"right {source}": count for source, count in stats.accepted_tokens.items()}


def open_bed(config: EngineConfig, sources: tuple[str, ...] = DRAFT_SOURCES) -> Bed:
    """Load the model. Raises `ModelLoadError` and `ConfigError`."""
    engine, info, config, make_compiler = assemble(config, lambda path: None)
    folder = Path(info.folder)
    speech = Speech(Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder), make_compiler())
    pages = config.cache_tokens // PAGE
    seconds = measure(engine.runner, [width for width in WIDTHS if width <= pages * PAGE])
    dictation = Dictation(engine.runner)
    engine.runner = dictation
    return Bed(info.name, engine, speech, dictation, -(-info.vocab_size // 32), seconds, sources)
