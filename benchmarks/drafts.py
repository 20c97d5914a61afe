"""Records of one JSON schema with drafts and without, in turn, on the embedded model in this process.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/drafts.py [--records 8] [--at-once 1] [--rounds 3]

Every round asks for the same records, so from the second on what was said before is known: the first shows new texts,
the others what repeats. All answers are compared; a difference ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bosquet.grammar.base import Compiled
from bosquet.runtime.assembly import assemble
from bosquet.runtime.bench.record_schema import SCHEMA
from bosquet.runtime.bench.words import text
from bosquet.runtime.engine import Engine
from bosquet.runtime.settings import EngineConfig
from bosquet.runtime.templates import ChatTemplate
from bosquet.runtime.tokenizer import Tokenizer
from bosquet.types import GrammarSpec, Message, Origin, Request, SamplingParams

SOURCES: dict[str, tuple[str, ...]] = {"off": (), "forced": ("forced",), "both": ("forced", "suffix")}
TASK = "Write one record about the text as JSON."


class Answers(NamedTuple):
    seconds: float
    passes: int
    tokens: list[list[int]]


def answer(
    engine: Engine, prompts: list[list[int]], grammar: Compiled, sources: tuple[str, ...], at_once: int, name: str
) -> Answers:
    """All prompts, so many at a time."""
    said: dict[str, list[int]] = {}
    waiting, live, before = list(enumerate(prompts)), 0, engine.stats().steps
    sampling = SamplingParams(temperature=0, max_tokens=200)
    began = time.perf_counter()
    while waiting or live:
        while waiting and live < at_once:
            number, ids = waiting.pop(0)
            key = f"{name}-{number}"
            said[key] = []
            origin = Origin(program="records")
            engine.add(Request(id=key, ids=ids, sampling=sampling, origin=origin, speculation=sources), grammar)
            live += 1
        for output in engine.step():
            said[output.request] += output.tokens
            live -= output.finish is not None
    seconds = time.perf_counter() - began
    return Answers(seconds, engine.stats().steps - before, list(said.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description="JSON records with drafts and without.")
    parser.add_argument("--records", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    engine, info, _, make_compiler = assemble(EngineConfig(cache_tokens=16_384), lambda path: None)
    tokenizer, template = Tokenizer.from_folder(Path(info.folder)), ChatTemplate.from_folder(Path(info.folder))
    grammar = make_compiler().compile(GrammarSpec("json_schema", json.dumps(SCHEMA)))
    rng = random.Random(1)
    system = Message(role="system", content=f"{TASK} {text(rng, 190)}")
    prompts = [
        tokenizer.encode_segments(
            template.render([system, Message(role="user", content=text(rng, 60))], add_generation_prompt=True)
        )
        for _ in range(options.records)
    ]
    answer(engine, prompts, grammar, (), options.at_once, "warm")  # prompts are cached from here on
    for turn in range(options.rounds):
        found = {
            name: answer(engine, prompts, grammar, sources, options.at_once, f"{name}-{turn}")
            for name, sources in SOURCES.items()
        }
        off = found["off"]
        for name, answers in found.items():
            if answers.tokens != off.tokens:
                print(f"{name}: the answers differ", file=sys.stderr)
                return 1
            gain = off.seconds / answers.seconds
            tokens = sum(map(len, answers.tokens))
            print(
                f"{turn + 1} {name:7}{tokens:5} tokens {answers.passes:5} passes {answers.seconds:6.2f} s {gain:5.2f} x"
            )
    stats = engine.stats()
    for source, drafted in stats.drafted_tokens.items():
        print(f"{source:7} {stats.accepted_tokens[source]} of {drafted} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
