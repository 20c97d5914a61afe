"""Schemas with labelled instances (the form of MaskBench): what a compiler makes of them, and how fast.

A line of the file is `{"id", "schema", "tests": [{"valid", "data", "description"}]}`. A schema passes when it compiles,
every valid instance is accepted and every invalid one rejected. An instance is written compactly, in the order that
the schema declares and in its own: it counts as accepted if either is (`instance_order`). Instances are fed token by
token, as `encode` cuts them.

Knows nothing of engines, or of how figures are shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from ...errors import GrammarInvalid
from ...grammar.base import Compiled, MaskRow, Matcher
from ...grammar.vocabulary import Vocabulary
from ...types import GrammarSpec, Relaxed
from .instance_order import texts

Result = Literal["pass", "refused", "rejects valid", "accepts invalid"]
Encode = Callable[[bytes], Sequence[int]]

_MAX_MASKS = 2_000  # that are timed for one schema


class Compiler(Protocol):
    """What compiles: `grammar.compiler.GrammarCompiler`, or something like it."""

    def compile(self, spec: GrammarSpec) -> Compiled: ...


class Instance(NamedTuple):
    """A value, and whether the schema lets it through."""

    data: Any
    valid: bool
    description: str


class Case(NamedTuple):
    """One schema; `subset` is the part of `id` before `---` or the last `_`."""

    id: str
    subset: str
    schema: Any
    instances: tuple[Instance, ...]


@dataclass(slots=True)
class Outcome:
    """What became of one schema. Times in milliseconds and microseconds; None and empty where it did not come so far.

    `refusal` is the message of the refusal. `wrong_accepts` are the descriptions of invalid instances that were
    accepted, `wrong_rejects` those of valid ones that were not; `relaxed` is what the compiler reported."""

    id: str
    subset: str
    result: Result
    refusal: str = ""
    relaxed: tuple[Relaxed, ...] = ()
    wrong_accepts: list[str] = field(default_factory=list)
    wrong_rejects: list[str] = field(default_factory=list)
    compile_ms: float | None = None
    first_mask_ms: float | None = None
    mask_us: list[float] = field(default_factory=list)

    @property
    def silent(self) -> bool:
        """Whether an invalid instance was accepted and nothing that shapes values was reported as relaxed."""
        return bool(self.wrong_accepts) and not self.relaxed


def byte_vocabulary() -> Vocabulary:
    """One token a byte, and an end token: compiles are cheap, and every text can be spelt (`encode` is `list`)."""
    return Vocabulary([bytes([byte]) for byte in range(256)] + [b""], 257, (256,))


def read_cases(path: Path) -> Iterator[Case]:
    """The cases of a file, one a line. Raises `OSError`, `ValueError` or `KeyError` for what is not in the form."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            instances = (Instance(t["data"], t["valid"], t.get("description", "")) for t in row.get("tests", ()))
            yield Case(row["id"], subset_of(row["id"]), row["schema"], tuple(instances))


def subset_of(name: str) -> str:
    """`Github_easy---o1` is of `Github_easy`, `BFCL_sql_3` of `BFCL_sql`."""
    if "---" in name:
        return name.partition("---")[0]
    return name.rpartition("_")[0] or name


def run(cases: Iterable[Case], compiler: Compiler, *, strict: bool, encode: Encode = list, mask_words: int = 0
        ) -> Iterator[Outcome]:  # fmt: skip
    """One outcome a case. `mask_words` is the width of a mask row; above 0 the mask before every token of the valid
    instances is built and timed."""
    for case in cases:
        yield judge(case, compiler, strict=strict, encode=encode, mask_words=mask_words)


def judge(case: Case, compiler: Compiler, *, strict: bool, encode: Encode = list, mask_words: int = 0) -> Outcome:
    """What `compiler` makes of one case. Any exception but `GrammarInvalid` is a fault of the compiler, and raised."""
    row = np.zeros(mask_words, dtype=np.int32)
    outcome = Outcome(case.id, case.subset, "pass")
    spec = GrammarSpec("json_schema", json.dumps(case.schema, ensure_ascii=False), strict=strict)
    start = time.perf_counter()
    try:
        compiled = compiler.compile(spec)
    except GrammarInvalid as error:
        outcome.result, outcome.refusal = "refused", str(error)
        return outcome
    outcome.compile_ms = (time.perf_counter() - start) * 1e3
    outcome.relaxed = compiled.relaxed
    if mask_words:
        compiled.matcher().fill_mask(row)
        outcome.first_mask_ms = (time.perf_counter() - start) * 1e3
    for instance in case.instances:
        spellings = [encode(text) for text in texts(case.schema, instance.data)]
        accepted = [ids for ids in spellings if _accepts(compiled.matcher(), ids)]
        if accepted and not instance.valid:
            outcome.wrong_accepts.append(instance.description)
        elif instance.valid and not accepted:
            outcome.wrong_rejects.append(instance.description)
        elif instance.valid and mask_words and len(outcome.mask_us) < _MAX_MASKS:
            outcome.mask_us += _mask_times(compiled.matcher(), accepted[0], row)
    if outcome.wrong_accepts:
        outcome.result = "accepts invalid"
    elif outcome.wrong_rejects:
        outcome.result = "rejects valid"
    return outcome


def _accepts(matcher: Matcher, ids: Sequence[int]) -> bool:
    return matcher.try_accept(ids) == len(ids) and matcher.completed


def _mask_times(matcher: Matcher, ids: Sequence[int], row: MaskRow) -> list[float]:
    """Microseconds to build the mask before each token and at the end."""
    times: list[float] = []
    for at in range(len(ids) + 1):
        start = time.perf_counter()
        matcher.fill_mask(row)
        times.append((time.perf_counter() - start) * 1e6)
        matcher.try_accept(ids[at : at + 1])
    return times


class Summary(NamedTuple):
    """Counts of one subset, and percentiles over its schemas (compile, first mask) and masks; None without any."""

    subset: str
    schemas: int
    passed: int
    refused: int
    rejects: int
    accepts: int
    silent: int
    compile_ms: tuple[float, float] | None  # p50, p99
    first_mask_ms: tuple[float, float] | None
    mask_us: tuple[float, float] | None


def summarise(outcomes: Sequence[Outcome]) -> list[Summary]:
    """One row a subset, by name, and one for all."""
    subsets = sorted({outcome.subset for outcome in outcomes})
    rows = [_summary(name, [outcome for outcome in outcomes if outcome.subset == name]) for name in subsets]
    return [*rows, _summary("all", list(outcomes))]


def _summary(name: str, outcomes: list[Outcome]) -> Summary:
    def counted(result: Result) -> int:
        return sum(outcome.result == result for outcome in outcomes)

    return Summary(
        name,
        len(outcomes),
        counted("pass"),
        counted("refused"),
        counted("rejects valid"),
        counted("accepts invalid"),
        sum(outcome.silent for outcome in outcomes),
        _percentiles([outcome.compile_ms for outcome in outcomes if outcome.compile_ms is not None]),
        _percentiles([outcome.first_mask_ms for outcome in outcomes if outcome.first_mask_ms is not None]),
        _percentiles([time_us for outcome in outcomes for time_us in outcome.mask_us]),
    )


def _percentiles(values: list[float]) -> tuple[float, float] | None:
    if not values:
        return None
    p50, p99 = np.percentile(values, (50, 99))
    return float(p50), float(p99)
