"""I1, I2, I3 and I5 on a small random model in float32, with a grammar, penalties and sampling: whatever the engine
does (reuse, batch, chunk, preempt, plan ahead, draft), each request says what it says alone in a fresh engine."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence as Items
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_models
import torch
from torch import Tensor

from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.vocabulary import Vocabulary as GrammarVocabulary
from bosquet.kernels.registry import known_ops, load_ops
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.draft_head import DraftHead
from bosquet.runtime.draft_model import DraftModel
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.guessing import Guesser
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.models.base import Model
from bosquet.runtime.plan import Plan
from bosquet.runtime.runner import TorchRunner
from bosquet.runtime.sampler import Sampler
from bosquet.runtime.sequence import Sequence
from bosquet.speculative.arbiter import Arbiter, Costs
from bosquet.speculative.speculator import Speculator, shapes
from bosquet.types import GrammarSpec, Request, Row, SamplingParams, TokenLogprob

CONTEXT = 256
END = 2
PIECES = [b"<pad>", b"<s>", b"</s>", *(bytes([c]) for c in range(32, 126) if chr(c) != "`")]
SPECIAL = frozenset({0, 1, 2})


KERNELS = ["reference"] if known_ops() == ("reference",) else ["reference", "native float32", "native int4"]


@pytest.fixture(scope="module", params=KERNELS)
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Model:
    folder: Path = tmp_path_factory.mktemp("tiny")
    tiny_models.save(tiny_models.make_model(tiny_models.make_config("llama"), seed=3), folder)
    kernels, _, storage = request.param.partition(" ")
    return tiny_models.open_model(folder, ops=load_ops(kernels, threads=1, storage=storage or "float32"))


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A draft model: right about as often as wrong."""
    folder: Path = tmp_path_factory.mktemp("near")
    target = tiny_models.make_model(tiny_models.make_config("llama"), seed=3)
    tiny_models.save(tiny_models.shake(target, 0.05), folder)
    return tiny_models.open_model(folder, ops=load_ops("reference"))


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(GrammarVocabulary(PIECES, tiny_models.VOCABULARY, (END,), SPECIAL))


def make_engine(
    model: Model,
    *,
    pages: int = 200,
    chunk: int = 64,
    rows: int = 16,
    lag: int = 0,
    drafts: bool = False,
    near: Model | None = None,
    head: Speculator | None = None,
) -> Engine:
    """`drafts`: from a grammar and what was said before, from the model `near`, or from `head`."""
    cache = RadixCache(PagePool(pages))
    runner = TorchRunner(model, pages)
    return Engine(
        runner,
        cache,
        Limits(chunk, rows, ageing_s=10.0),
        Bounds(tiny_models.VOCABULARY, min(CONTEXT, pages * 16), max_waiting=500),
        Vocabulary(PIECES, SPECIAL, (END,)),
        lag=lag,
        drafter=eager_drafter(runner, cache.pool, near, head) if drafts else None,
    )


def random_head(model: Model, tokens: int = 60) -> Speculator:
    """A draft that reads hidden states and is hardly ever right, with `tokens` of the vocabulary."""
    noise = torch.Generator().manual_seed(5)
    weights = {
        name: torch.randn(shape, generator=noise) / shape[-1] ** 0.5
        for name, shape in shapes(tokens, model.shape.hidden, 32).items()
    }
    weights["scale"] = torch.ones(model.shape.hidden)
    weights["ids"] = torch.arange(3, 3 + tokens)
    return Speculator(weights, model.ops)


def eager_drafter(runner: TorchRunner, pool: PagePool, near: Model | None, head: Speculator | None) -> Drafter:
    """Drafts whatever it can: a wider pass is said to cost nothing."""
    model = runner.model
    guesser = None
    if near is not None or head is not None:
        source = CheckedDraftModel(near, pool) if near is not None else CheckedDraftHead(head, runner)
        guesser = Guesser(source, Sampler(tiny_models.VOCABULARY), model.ops.apply_mask, (END,))
    return Drafter(
        tiny_models.VOCABULARY,
        Arbiter(ToldCosts({1: 1.0, 8: 1.0})),
        lambda text: [PIECES.index(bytes([byte])) for byte in text.encode() if bytes([byte]) in PIECES],
        guesser,
    )


class ToldCosts(Costs):
    """Costs that nothing is learnt about."""

    def learn(self, tokens: int, seconds: float) -> None:
        pass


class CheckedDraftHead(DraftHead):
    """Reads the hidden state that a fresh pass over the sequence gives for its last token but one."""

    def __init__(self, head: Speculator, runner: TorchRunner) -> None:
        super().__init__(head, runner)
        self.costs = ToldCosts({1: 0.0, 8: 0.0})
        self.afresh = TorchRunner(runner.model, CONTEXT // 16)

    def begin(self, sequences: Items[Sequence]) -> Tensor:
        sequence = sequences[-1]
        row = Row(sequence.ids[:-1], 0, range(CONTEXT // 16), (len(sequence.ids) - 2,))
        want = self.afresh.submit(Plan([row])).hidden[0]
        torch.testing.assert_close(self._hidden[sequence], want, atol=1e-3, rtol=1e-3)
        return super().begin(sequences)


class CheckedDraftModel(DraftModel):
    """Says for each sequence what it would say had it read the whole of it afresh: looked at often enough."""

    def __init__(self, near: Model, pool: PagePool) -> None:
        super().__init__(TorchRunner(near, pool.total), pool, tiny_models.VOCABULARY, ToldCosts({1: 0.0, 8: 0.0}))
        self.afresh = TorchRunner(near, CONTEXT // 16)
        self.begun = 0

    def begin(self, sequences: Items[Sequence]) -> Tensor:
        logits = super().begin(sequences)
        self.begun += 1
        for at, sequence in enumerate(sequences[: 1 if self.begun % 3 else None]):
            row = Row(sequence.ids, 0, range(CONTEXT // 16), (len(sequence.ids) - 1,))
            want = self.afresh.logits(self.afresh.submit(Plan([row])).hidden, None)
            torch.testing.assert_close(logits[at], want[0], atol=1e-4, rtol=1e-4)
        return logits


class Said:
    """What an engine said of one choice."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt: list[TokenLogprob] = []
        self.finish: str | None = None
        self.stop: object = None

    def whole(self) -> tuple[object, ...]:
        return (self.tokens, self.finish, self.stop)


def run(
    engine: Engine, requests: list[Request], compiler: GrammarCompiler, rng: random.Random, preempt: float = 0.0
) -> dict[str, list[Said]]:
    """Add requests at random moments; cancel those whose id begins with "x"; preempt with a probability a step."""
    said: dict[str, list[Said]] = defaultdict(list)
    waiting = list(requests)
    for request in requests:
        said[request.id] = [Said() for _ in range(request.sampling.n)]
    while waiting or not engine.idle:
        while waiting and rng.random() < 0.6:
            request = waiting.pop(0)
            engine.check(request)
            engine.add(request, compiler.compile(request.grammar) if request.grammar is not None else None)
        for output in engine.step():
            mine = said[output.request][output.choice]
            mine.tokens += output.tokens
            mine.logprobs += output.logprobs or []
            mine.prompt += output.prompt_logprobs or []
            mine.finish, mine.stop = output.finish, output.stop or mine.stop
            assert output.error is None, output.error
        running = engine.scheduler.running
        if running and rng.random() < preempt:
            engine.scheduler.preempt(rng.choice(running))
        for name in list(said):
            if name.startswith("x") and engine.has(name) and rng.random() < 0.1:
                engine.cancel(name)
        engine.check_integrity()
    assert engine.stats().pages_running == 0
    return said


GRAMMARS = [
    None,
    None,
    GrammarSpec("regex", "[a-z]{3,12}(, [a-z]{2,8}){0,4}"),
    GrammarSpec("choice", '["yes", "no", "perhaps"]'),
    GrammarSpec("json_schema", '{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","y"]}},'
                '"required":["a","b"],"additionalProperties":false}'),
    GrammarSpec("json_schema", '{"type":"object","properties":{"s":{"type":"string","pattern":"^([a-z]+ ?)+$"}}}'),
    GrammarSpec("lark", 'start: "(" start ")" | /[a-z]{1,4}/'),
    GrammarSpec("structural_tag", '{"type":"triggered_tags","triggers":["<"],"tags":[{"type":"tag","begin":"<x>",'
                '"content":{"type":"json_schema","json_schema":{"type":"boolean"}},"end":"</x>"}]}'),
    GrammarSpec("regex", "[0-9]{2}", after=(PIECES.index(b"e"),)),
]  # fmt: skip


def workload(seed: int) -> list[Request]:
    rng = random.Random(seed)
    stems = [[rng.randrange(3, 96) for _ in range(n)] for n in (20, 48, 75)]
    requests = []
    for number in range(14):
        ids = rng.choice(stems)[: rng.randint(1, 75)] + [rng.randrange(3, 96) for _ in range(rng.choice([0, 1, 7, 30]))]
        greedy = rng.random() < 0.5
        sampling = SamplingParams(
            temperature=0.0 if greedy else 0.9,
            top_k=rng.choice([0, 0, 20]),
            top_p=rng.choice([1.0, 0.9]),
            min_p=rng.choice([0.0, 0.05]),
            presence_penalty=rng.choice([0.0, 0.5]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            seed=rng.randrange(10_000),
            max_tokens=rng.choice([1, 5, 40]),
            min_tokens=rng.choice([0, 0, 3]),
            ignore_eos=rng.random() < 0.3,
            stop=rng.choice([(), (b"ab",), (b"q", b"zz")]),
            n=rng.choice([1, 1, 3]),
            logprobs=rng.choice([None, 2]),
            prompt_logprobs=rng.choice([None, None, 1]),
        )
        name = f"{'x' if rng.random() < 0.15 else 'r'}{number}"
        requests.append(Request(id=name, ids=ids, sampling=sampling, grammar=rng.choice(GRAMMARS)))
    return requests


@pytest.fixture(scope="module")
def alone(model: Model, compiler: GrammarCompiler) -> dict[int, dict[str, list[Said]]]:
    """Each request by itself, nothing cached, one chunk."""
    answers: dict[int, dict[str, list[Said]]] = {}
    for seed in range(3):
        answers[seed] = {}
        for request in workload(seed):
            quiet = replace_id(request, request.id.replace("x", "r"))
            engine = make_engine(model, chunk=CONTEXT)
            answers[seed] |= {request.id: run(engine, [quiet], compiler, random.Random(0))[quiet.id]}
    return answers


def replace_id(request: Request, name: str) -> Request:
    return Request(id=name, ids=request.ids, sampling=request.sampling, grammar=request.grammar, reuse=False)


class Way(NamedTuple):
    """How an engine runs: pages, tokens and rows of a pass, lag, where drafts come from; and for which workloads."""

    name: str
    pages: int
    chunk: int
    rows: int
    lag: int = 0
    drafts: str = ""
    seeds: int = 3


WAYS = (
    Way("batched", 200, 64, 16),
    Way("small chunks", 200, 7, 16),
    Way("preempted", 12, 32, 8),
    Way("two rows", 200, 64, 2),
    Way("lag 1", 200, 64, 16, lag=1),
    Way("lag 1, preempted", 12, 16, 8, lag=1),
    Way("drafts", 200, 200, 16, drafts="words"),
    Way("drafts, preempted", 12, 100, 8, drafts="words"),
    Way("draft model", 200, 200, 16, drafts="model", seeds=1),
    Way("draft model, preempted", 12, 100, 8, drafts="model", seeds=1),
    Way("draft head, preempted", 12, 100, 8, drafts="head", seeds=1),
)


@pytest.mark.parametrize(
    ("way", "seed"), [pytest.param(way, seed, id=f"{way.name}-{seed}") for way in WAYS for seed in range(way.seeds)]
)
def test_same_answers_however_it_is_run(
    model: Model,
    compiler: GrammarCompiler,
    alone: dict[int, dict[str, list[Said]]],
    near: Model,
    way: Way,
    seed: int,
) -> None:
    drafts = way.drafts
    drafting = {"near": near} if drafts == "model" else {"head": random_head(model)} if drafts == "head" else {}
    engine = make_engine(
        model, pages=way.pages, chunk=way.chunk, rows=way.rows, lag=way.lag, drafts=bool(drafts), **drafting
    )
    for attempt in range(2):  # the second time, all prompts are in the cache
        rng = random.Random(seed + attempt)
        requests = [Request(id=r.id, ids=r.ids, sampling=r.sampling, grammar=r.grammar) for r in workload(seed)]
        said = run(engine, requests, compiler, rng, preempt=0.2 if way.pages < 50 else 0.0)
        for request in requests:
            if request.id.startswith("x"):
                continue
            for mine, want in zip(said[request.id], alone[seed][request.id], strict=True):
                assert mine.whole() == want.whole()
                assert_close(mine.logprobs, want.logprobs)
                assert_close(mine.prompt, want.prompt)
    stats = engine.stats()
    assert stats.cached_tokens > 0
    if way.pages < 50:
        assert stats.preemptions > 0
    assert bool(sum(stats.drafted_tokens.values())) == bool(drafts)
    assert bool(sum(stats.accepted_tokens.values())) == bool(drafts) or drafts == "head"
    if drafts in ("model", "head"):
        assert stats.accepted_tokens["model"] < stats.drafted_tokens["model"]


def assert_close(found: list[TokenLogprob], wanted: list[TokenLogprob]) -> None:
    assert [f.token for f in found] == [w.token for w in wanted]
    assert [f.logprob for f in found] == pytest.approx([w.logprob for w in wanted], abs=1e-4)


def test_a_cache_hit_is_exactly_as_long_as_it_may_be(model: Model, compiler: GrammarCompiler) -> None:
    engine = make_engine(model)
    ids = list(range(3, 60))
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    first = run(engine, [Request(id="a", ids=ids, sampling=sampling)], compiler, random.Random(0))["a"][0]
    computed = engine.stats().computed_tokens
    again = run(engine, [Request(id="b", ids=ids, sampling=sampling)], compiler, random.Random(0))["b"][0]
    assert again.tokens == first.tokens
    assert engine.stats().cached_tokens == len(ids) - 1
    assert engine.stats().computed_tokens - computed == 4  # the prompt's last token, then three of the answer


def test_an_answer_is_reused_by_the_next_turn(model: Model, compiler: GrammarCompiler) -> None:
    engine = make_engine(model)
    ids = list(range(3, 40))
    sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    first = run(engine, [Request(id="a", ids=ids, sampling=sampling)], compiler, random.Random(0))["a"][0]
    turn = [*ids, *first.tokens, 50, 51, 52]
    before = engine.stats().cached_tokens
    run(engine, [Request(id="b", ids=turn, sampling=replace_max(sampling, 1))], compiler, random.Random(0))
    assert engine.stats().cached_tokens - before == len(ids) + 20 - 1  # all but the last drawn token was computed


def replace_max(sampling: SamplingParams, max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=sampling.temperature, max_tokens=max_tokens, ignore_eos=sampling.ignore_eos)


@pytest.mark.parametrize("model", ["reference"], indirect=True)
@pytest.mark.parametrize("source", ["near", "head"])
def test_unseeded_answers_have_the_distribution_that_they_have_without_drafts(
    model: Model, near: Model, compiler: GrammarCompiler, source: str
) -> None:
    """Three tokens each, of four at a place: the 64 answers come as often with a draft model as without one."""
    counts: list[Counter[tuple[int, ...]]] = []
    sampling = SamplingParams(temperature=1.3, top_k=4, max_tokens=3, n=8, ignore_eos=True)
    for drafts in (False, True):
        drafting = {"near": near} if source == "near" else {"head": random_head(model)}
        engine = make_engine(model, rows=100, chunk=600, drafts=drafts, **drafting)
        requests = [
            Request(id=f"r{i}", ids=list(range(3, 30)), sampling=sampling, speculation=("model",)) for i in range(40)
        ]
        said = run(engine, requests, compiler, random.Random(0))
        counts.append(Counter(tuple(one.tokens) for choices in said.values() for one in choices))
    stats = engine.stats()
    assert 0 < stats.accepted_tokens["model"] < stats.drafted_tokens["model"]
    square, freedom = 0.0, -1
    for answer in counts[0] | counts[1]:
        off, on = counts[0][answer], counts[1][answer]
        if off + on >= 10:
            square += (off - on) ** 2 / (off + on)
            freedom += 1
    assert freedom > 10
    assert square < freedom + 4.5 * (2 * freedom) ** 0.5, (square, freedom)
