"""The part of `bench structured` that needs no running model: verdicts and times of one compiler over one vocabulary.

Knows nothing of how figures are shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import InvalidParameter
from ...grammar.compiler import GrammarCompiler
from ...grammar.vocabulary import Vocabulary
from ...types import GrammarSpec, ToolUse
from ..models.source import end_ids, resolve
from ..templates import ChatTemplate
from ..tokenizer import Tokenizer
from ..tool_calls import ToolManner
from .maskbench import Case, Compiler, Encode, Outcome, judge
from .structured_cases import SEED, fresh_schemas, many_tools

FRESH = 40
"""New schemas of 2 KB, for each mode."""

TOOLS = 128

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured. `mask_words` is the width of a mask row; `tools` gives what an answer with these tools is held
    to. The compiler keeps nothing of what it compiled."""

    name: str
    compiler: Compiler
    encode: Encode
    mask_words: int
    tools: Callable[[ToolUse], GrammarSpec]


class Times(NamedTuple):
    """Milliseconds of several readings: the median, the 99th percentile, and how many there are."""

    p50: float
    p99: float
    readings: int


@dataclass(frozen=True, slots=True)
class Timing:
    """`what` in words; `bytes` is the median size of what was compiled. `compile` ends when the grammar is there,
    `first_mask` when the first mask is."""

    what: str
    strict: bool
    bytes: int
    compile: Times
    first_mask: Times


def open_model(model: str) -> Subject:
    """The model's vocabulary, chat template and compiler; its weights are not read. Raises `ModelLoadError`."""
    folder = resolve(model, dtype="stored", weights=False)
    tokenizer = Tokenizer.from_folder(folder.path)
    width = max(tokenizer.size, _head_width(folder.config))
    vocabulary = Vocabulary(tokenizer.token_bytes, width, end_ids(folder), tokenizer.special_ids)
    manner = ToolManner(ChatTemplate.from_folder(folder.path), tokenizer)

    def encode(text: bytes) -> Sequence[int]:
        try:
            return tokenizer.encode(text.decode("utf-8", "surrogatepass"), specials=False)
        except InvalidParameter:  # half of a surrogate pair: no tokens spell it
            return [_NO_TOKEN]

    def grammar(use: ToolUse) -> GrammarSpec:
        return manner.grammar(use, ())

    compiler = GrammarCompiler(vocabulary, cache_bytes=0)
    return Subject(folder.name, compiler, encode, vocabulary.mask_words, grammar)


def _head_width(config: dict[str, Any]) -> int:
    """Of the output head: wider than the vocabulary where it is padded. Some families nest their text model's."""
    value = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return value if isinstance(value, int) else 0


def warm_up(subject: Subject) -> None:
    """What is loaded and built for the first schema should not count as that schema's."""
    for strict in (True, False):
        schema = {"type": "object", "properties": {SEED: {"type": "string", "format": "date"}}, "multipleOf": 0.5}
        _first_mask(subject, GrammarSpec("json_schema", json.dumps(schema), strict))


def some(cases: Sequence[Case], limit: int) -> list[Case]:
    """At most `limit` of the cases (0: all), spread evenly over the file, and so over its subsets."""
    if not limit or limit >= len(cases):
        return list(cases)
    return [cases[at * len(cases) // limit] for at in range(limit)]


def judged(subject: Subject, cases: Sequence[Case], *, strict: bool, on_case: Callable[[], None]) -> Iterator[Outcome]:
    """One outcome a case."""
    for case in cases:
        yield judge(case, subject.compiler, strict=strict, encode=subject.encode, mask_words=subject.mask_words)
        on_case()


def timings(subject: Subject, count: int = FRESH, tools: int = TOOLS) -> list[Timing]:
    """New schemas of 2 KB, and many tools in one request, each strict and not."""
    found = []
    for strict in (True, False):
        schemas = [json.dumps(schema) for schema in fresh_schemas(count)]
        specs = [GrammarSpec("json_schema", schema, strict) for schema in schemas]
        found.append(_timing(subject, "a new schema of 2 KB", strict, specs))
    for strict in (True, False):
        use = ToolUse(many_tools(tools, strict=strict))
        size = sum(len(tool.parameters) for tool in use.tools)
        timing = _timing(subject, f"{tools} tools in one request", strict, [subject.tools(use)] * 3)
        found.append(Timing(timing.what, strict, size, timing.compile, timing.first_mask))
    return found


def _timing(subject: Subject, what: str, strict: bool, specs: Sequence[GrammarSpec]) -> Timing:
    pairs = [_first_mask(subject, spec) for spec in specs]
    size = int(np.median([len(spec.value) for spec in specs]))
    return Timing(what, strict, size, times([pair[0] for pair in pairs]), times([pair[1] for pair in pairs]))


def _first_mask(subject: Subject, spec: GrammarSpec) -> tuple[float, float]:
    """Milliseconds until the grammar is there, and until its first mask is."""
    row = np.zeros(subject.mask_words, dtype=np.int32)
    start = time.perf_counter()
    compiled = subject.compiler.compile(spec)
    done = time.perf_counter()
    compiled.matcher().fill_mask(row)
    return (done - start) * 1e3, (time.perf_counter() - start) * 1e3


def times(values: Sequence[float]) -> Times:
    """Of at least one reading."""
    p50, p99 = np.percentile(values, (50, 99))
    return Times(float(p50), float(p99), len(values))
