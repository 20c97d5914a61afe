"""A draft model whose guesses are right in a set share of cases, at batch 1: with it and without.

The target is the draft model with layers appended that add nothing: what they would add is multiplied by a matrix of
zeros, which is read and computed like any other. So both have the same hidden states. The draft model's head has noise
on it, just so much that its best token is the target's in the set share of the places of the answer itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.draft_model import DraftModel
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.gpu.runner import GpuRunner
from bosquet.runtime.guessing import Guesser
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.models.decoder import Decoder
from bosquet.runtime.pass_costs import measure
from bosquet.speculative.arbiter import Arbiter, Costs
from bosquet.types import Request, SamplingParams

from .bed import Bed
from .floors import tokens_a_pass, weight_bytes
from .random_model import Make, drawn, model_of, runner_of
from .report import Finding, seconds
from .time_engine import no_collection, prompt

LAYERS = 2  # of the draft model: with its head an eighth of the target's bytes
RIGHT = 0.8


class Pair:
    """Target and draft model over pages of the same numbers."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        sizes, own = bed.sizes, bed.pick(LAYERS, 1)
        whole = sizes._replace(layers=bed.pick(sizes.layers, 2))
        kept: dict[str, Tensor] = {}
        context = bed.pick(4096, 96)
        fresh = drawn(bed)
        target = model_of(bed, whole, "bfloat16", _extended(fresh, own, kept), context)
        self.head = kept["lm_head.weight"]
        self.noisy = self.head.clone()  # packed as it lies: what is written here is what the draft model reads
        kept["lm_head.weight"] = self.noisy
        draft = model_of(bed, whole._replace(layers=own), "bfloat16", lambda name, shape: kept[name], context)
        self.target: GpuRunner = runner_of(bed, target, bed.pick(8192, 200), noisy=False)
        self.draft = self.target.beside(draft)
        self.ratio = weight_bytes(whole._replace(layers=own), "bfloat16") / weight_bytes(whole, "bfloat16")
        assert _shares(draft, self.noisy), "the head was copied"

    def best(self, states: Tensor, head: Tensor) -> Tensor:
        """Tokens [n] of hidden states [n, D]."""
        ops = self.target.model.ops
        return ops.head(states, ops.as_head(head)).argmax(-1)

    def disturb(self, amount: float) -> None:
        noise = self.bed.noise(*self.head.shape, seed=99)
        self.noisy.copy_(self.head + noise * (amount * self.head.shape[1] ** -0.5))


def _extended(fresh: Make, own: int, kept: dict[str, Tensor]) -> Make:
    """Layers from `own` on add nothing; what the draft model shares is kept."""

    def make(name: str, shape: Sequence[int]) -> Tensor:
        tensor = fresh(name, shape)
        if name.startswith("model.layers.") and int(name.split(".")[2]) >= own:
            return tensor.zero_() if name.endswith(("o_proj.weight", "down_proj.weight")) else tensor
        kept[name] = tensor
        return tensor

    return make


def _shares(model: Decoder, tensor: Tensor) -> bool:
    return bool(model._head.weight.data_ptr() == tensor.data_ptr())


def run(bed: Bed) -> None:
    made: list[Pair] = []

    def start() -> Finding:
        began = time.perf_counter()
        made.append(Pair(bed))
        return Finding(seconds(time.perf_counter() - began), facts={"ratio": made[0].ratio})

    bed.case("target and draft model are made", start, sets_up=True)
    if made:
        bed.case(f"one stream, guesses right at {RIGHT}", lambda: _compare(bed, made[0]))


def _engine(bed: Bed, pair: Pair, drafts: bool) -> Engine:
    runner, width = pair.target, pair.bed.sizes.vocabulary
    cache = RadixCache(PagePool(runner.pages))
    drafter = None
    if drafts:
        source = DraftModel(pair.draft, cache.pool, width, _costs(bed, pair.draft, 0.01))
        guesser = Guesser(source, runner.sampler, runner.model.ops.apply_mask, ())
        drafter = Drafter(width, Arbiter(_costs(bed, runner, 1.0)), guesser=guesser)
    return Engine(
        runner, cache, Limits(512, 8, 10.0), Bounds(width, runner.model.shape.context_length, 8),
        Vocabulary([b"x"] * width, frozenset(), ()), lag=bed.pick(1, 0), reuse=False, drafter=drafter,
    )  # fmt: skip


class _Told(Costs):
    """What passes take is said: for the interpreter, where a draft never pays."""

    def learn(self, tokens: int, seconds: float) -> None:
        """There is nothing to learn."""


def _costs(bed: Bed, runner: GpuRunner, told: float) -> Costs:
    return _Told({1: told, 8: told}) if bed.tiny else Costs(measure(runner))


def _answer(bed: Bed, engine: Engine, skipped: int, hidden: list[Tensor] | None = None) -> tuple[float, list[int]]:
    """(tokens a second after the first `skipped`, the answer); the hidden states that its tokens were drawn from."""
    most = bed.pick(800, 4)
    sampling = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
    ids = prompt(bed.pick(64, 4), bed.sizes.vocabulary, 1)
    engine.add(Request(id="a", ids=ids, sampling=sampling, speculation=("model",)))
    said: list[int] = []
    began, at = time.perf_counter(), 0
    with no_collection():
        while not engine.idle:
            for output in engine.step():
                said += output.tokens
            if hidden is not None and len(hidden) < most:
                hidden.append(engine.runner.hidden[:1].clone())  # type: ignore[attr-defined]
            if len(said) >= skipped and not at:
                began, at = time.perf_counter(), len(said)
    return (len(said) - at) / (time.perf_counter() - began), said


def calibrated(pair: Pair, states: Tensor, tokens: Tensor, right: float) -> tuple[float, float]:
    """(noise, share): how much noise makes the draft's best token the target's in that share of the states."""
    low, high, found = 0.0, pair.bed.pick(4.0, 8.0), 1.0
    for _ in range(pair.bed.pick(12, 5)):
        middle = (low + high) / 2
        pair.disturb(middle)
        found = float((pair.best(states, pair.noisy) == tokens).float().mean())
        low, high = (middle, high) if found > right else (low, middle)
    return middle, found


def _compare(bed: Bed, pair: Pair) -> Finding:
    skipped = bed.pick(200, 2)
    states: list[Tensor] = []
    _answer(bed, _engine(bed, pair, drafts=False), skipped, states)  # records what it needs
    with torch.inference_mode():
        every = torch.cat(states[1:])
        noise, share = calibrated(pair, every, pair.best(every, pair.head), RIGHT)
    without, want = _answer(bed, _engine(bed, pair, drafts=False), skipped)
    with torch.inference_mode():
        pair.disturb(noise)
    engine = _engine(bed, pair, drafts=True)
    if not bed.tiny:
        _answer(bed, engine, skipped)  # records what it needs
        engine = _engine(bed, pair, drafts=True)
    rate, said = _answer(bed, engine, skipped)
    stats = engine.stats()
    drafted, accepted = stats.drafted_tokens["model"], stats.accepted_tokens["model"]
    same = next((i for i, (a, b) in enumerate(zip(said, want, strict=True)) if a != b), len(said))
    assert engine.scheduler.drafter is not None
    source = engine.scheduler.drafter
    found = accepted / max(drafted, 1)
    ideal = max(tokens_a_pass(found, k) / (1 + k * pair.ratio) for k in range(1, 9))
    facts = {
        "with": rate, "without": without, "drafted": drafted, "accepted": accepted, "calibrated": share, "noise": noise,
        "same_tokens": same, "tokens": len(said), "ideal": ideal, "passes": stats.steps,
        "costs_line": source.arbiter.costs.line if source.arbiter.costs is not None else None,
        "distinct": len(set(want)), "figures": {"draft model": rate / without},
    }  # fmt: skip
    return Finding(
        f"{rate:,.0f} tok/s", f"{without:,.0f} without drafts", f"{rate / without:.2f}x",
        f"{found:.0%} right, bytes alone allow {ideal:.2f}x; first {same} of {len(said)} tokens the same", facts,
    )  # fmt: skip
