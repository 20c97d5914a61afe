"""What a draft model gives at a set share of right guesses, beside what the formula says for the measured costs.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/draft_model.py [--rights 0.6 0.8 0.9] [--tokens 256] [--rounds 5]
        [--guesses N]

Target and draft model have random weights (about 300 and 25 million of them, kept in eight bits), so their own guesses
would never be right. The draft model runs all the same, and then its logits are made to say what the target said
without drafts, or with the chance left something else. A pass with k guesses yields 1 + r + ... + r^k tokens at a share
r of right ones, and takes the time of a pass of k + 1 tokens and of k passes of the draft model, which is timed here
without an engine, in each round beside the answers. The engine chooses k by the costs that it measured, unless told N.
Answers with drafts are compared with those without; a difference ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from bosquet.kernels.registry import known_ops, load_ops
from bosquet.kernels.table import Ops
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.draft_model import DraftModel
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.guessing import Guesser
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.models.base import Model
from bosquet.runtime.models.registry import load_model
from bosquet.runtime.models.source import open_folder
from bosquet.runtime.pass_costs import measure
from bosquet.runtime.plan import Plan
from bosquet.runtime.runner import TorchRunner
from bosquet.runtime.sampler import Sampler
from bosquet.runtime.sequence import Sequence
from bosquet.speculative.arbiter import Arbiter, Costs, Worth
from bosquet.types import PAGE, Request, Row, SamplingParams

WIDTH, PAGES, PROMPT = 32_000, 64, 40
TARGET = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16}
DRAFT = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 6}


def random_model(sizes: dict[str, Any], seed: int, ops: Ops, storage: str) -> Model:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(vocab_size=WIDTH, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        model: Any = transformers.LlamaForCausalLM(config)
        model.to(torch.bfloat16).save_pretrained(folder)
        return load_model(open_folder(Path(folder), "random"), torch.float32, ops, stored=storage == "stored")


class Told(DraftModel):
    """Runs the draft model, then says what will come, rightly with chance `right`."""

    def __init__(self, runner: TorchRunner, pool: PagePool, costs: Costs, right: float) -> None:
        super().__init__(runner, pool, WIDTH, costs)
        self.right = right
        self.answers: dict[str, list[int]] = {}
        self._rng = random.Random(0)

    def begin(self, sequences: Items[Sequence]) -> Tensor:
        return self._say(super().begin(sequences), [(sequence, 0) for sequence in sequences])

    def go_on(self, sequences: Items[Sequence], tokens: Items[int]) -> Tensor:
        logits = super().go_on(sequences, tokens)
        return self._say(logits, [(s, len(s.reading.ahead)) for s in sequences if s.reading is not None])

    def _say(self, logits: Tensor, places: list[tuple[Sequence, int]]) -> Tensor:
        for row, (sequence, ahead) in enumerate(places):
            answer, at = self.answers[sequence.request.id], sequence.generated + ahead
            token = answer[min(at, len(answer) - 1)]
            with torch.inference_mode():  # where they were made, so that they need no copy
                logits[row, token if self._rng.random() < self.right else (token + 1) % WIDTH] = 1e9
        return logits


class Knowing(Arbiter):
    """Knows the share of right guesses, and may be told how many to make."""

    guesses: int | None = None

    def know(self, right: float) -> None:
        self._chances["model"] = [right] * 4

    def begin(self, rows: int) -> None:
        self._rows = rows

    def model(self, drafting: Costs) -> Worth:
        worth = super().model(drafting)
        return worth if self.guesses is None else Worth(self.guesses, worth.rate)

    def saves(self, worth: Worth, more: int) -> float:
        return super().saves(worth, more) if self.guesses is None else float("inf")

    def learn(self, *told: object) -> None:
        """There is nothing to learn."""


def answer(engine: Engine, name: str, tokens: int, drafts: bool) -> tuple[float, int, list[int]]:
    """Seconds after the first token, passes for it, and the answer."""
    ids = [random.Random(name).randrange(WIDTH) for _ in range(PROMPT)]
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    engine.add(Request(id=name, ids=ids, sampling=sampling, speculation=("model",) if drafts else ()))
    said: list[int] = []
    began, before = time.perf_counter(), engine.stats().steps
    while not engine.idle:
        for output in engine.step():
            if not said:
                began, before = time.perf_counter(), engine.stats().steps
            said += output.tokens
    return time.perf_counter() - began, engine.stats().steps - before, said


def compute(runner: TorchRunner, width: int) -> None:
    """One row of `width` tokens, each with its logits."""
    plan = Plan([Row(list(range(width)), PROMPT, range(PROMPT // PAGE + 3), range(width))])
    with torch.inference_mode():
        runner.logits(runner.submit(plan).hidden, None)


def seconds_of(runner: TorchRunner, drafting: TorchRunner, guesses: int, times: int = 9) -> float:
    """The median of a pass that verifies so many guesses with the passes that make them, in turn as an engine does: the
    target's weights push the draft model's out of the processor's cache."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        for _ in range(guesses):
            compute(drafting, 1)
        compute(runner, guesses + 1)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> int:
    parser = argparse.ArgumentParser(description="A draft model at set shares of right guesses.")
    parser.add_argument("--rights", type=float, nargs="+", default=[0.6, 0.8, 0.9])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--guesses", type=int)
    options = parser.parse_args()
    kernels = known_ops()[0]
    ops = load_ops(kernels, storage="int8" if kernels == "native" else "float32")
    runner = TorchRunner(random_model(TARGET, 1, ops, kernels), PAGES)
    drafting = TorchRunner(random_model(DRAFT, 2, ops, kernels), PAGES)
    cache, arbiter = RadixCache(PagePool(PAGES)), Knowing(Costs(measure(runner)))
    arbiter.guesses = options.guesses
    told = Told(drafting, cache.pool, Costs(measure(drafting)), 1.0)
    guesser = Guesser(told, Sampler(WIDTH), ops.apply_mask, ())
    engine = Engine(
        runner, cache, Limits(512, 8, 10.0), Bounds(WIDTH, PAGES * PAGE, 8),
        Vocabulary([b"x"] * WIDTH, frozenset(), ()), reuse=False, drafter=Drafter(WIDTH, arbiter, guesser=guesser),
    )  # fmt: skip
    print(f"{'right':>6} {'guesses':>8} {'tokens a pass':>14} {'formula':>8} {'measured':>9} {'of formula':>11}")
    differ = 0
    for right in options.rights:
        told.right = right
        arbiter.know(right)
        count = arbiter.model(told.costs).tokens
        off, on, alone, drafted, passes, made = [], [], [], [], 0, 0
        for number in range(options.rounds):
            name = f"{right}-{number}"
            seconds, _, want = answer(engine, name, options.tokens, drafts=False)
            off.append(seconds)
            told.answers[name] = want
            seconds, taken, said = answer(engine, name, options.tokens, drafts=True)
            on.append(seconds)
            alone.append(seconds_of(runner, drafting, 0))
            drafted.append(seconds_of(runner, drafting, count))
            passes, made, differ = passes + taken, made + len(said) - 1, differ + (said != want)
        a_pass = sum(right**place for place in range(count + 1))
        formula = a_pass * sum(alone) / sum(drafted)
        measured = sum(off) / sum(on)
        print(f"{right:6} {count:8} {made / passes:14.2f} {formula:7.2f}x {measured:8.2f}x {measured / formula:11.2f}")
    if differ:
        print(f"{differ} answers differ", file=sys.stderr)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
