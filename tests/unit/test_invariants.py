"""I1, I2, I3 and I5 on a small random model in float32, with a grammar, penalties and sampling: whatever the engine
does (reuse, batch, chunk, preempt, plan ahead, draft), each request says what it says alone in a fresh engine."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest
import tiny_models

from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.vocabulary import Vocabulary as GrammarVocabulary
from bosquet.kernels.registry import known_ops, load_ops
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.models.base import Model
from bosquet.runtime.runner import TorchRunner
from bosquet.runtime.scheduler import Limits, Vocabulary
from bosquet.speculative.arbiter import Arbiter, Costs
from bosquet.types import GrammarSpec, Request, SamplingParams, TokenLogprob

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
    return tiny_models.open_model(folder, ops=load_ops(kernels, storage=storage or "float32"))


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(GrammarVocabulary(PIECES, tiny_models.VOCABULARY, (END,), SPECIAL))


def make_engine(
    model: Model, *, pages: int = 200, chunk: int = 64, rows: int = 16, lag: int = 0, drafts: bool = False
) -> Engine:
    return Engine(
        TorchRunner(model, pages),
        RadixCache(PagePool(pages)),
        Limits(chunk, rows, ageing_s=10.0),
        Bounds(tiny_models.VOCABULARY, min(CONTEXT, pages * 16), max_waiting=500),
        Vocabulary(PIECES, SPECIAL, (END,)),
        lag=lag,
        drafter=eager_drafter() if drafts else None,
    )


def eager_drafter() -> Drafter:
    """Drafts whatever it can: a wider pass is said to cost nothing."""
    return Drafter(
        tiny_models.VOCABULARY,
        Arbiter(Costs({1: 1.0, 8: 1.0})),
        lambda text: [PIECES.index(bytes([byte])) for byte in text.encode() if bytes([byte]) in PIECES],
    )


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("pages", "chunk", "rows", "lag", "drafts"),
    [
        (200, 64, 16, 0, False),
        (200, 7, 16, 0, False),
        (12, 32, 8, 0, False),
        (200, 64, 2, 0, False),
        (200, 64, 16, 1, False),
        (12, 16, 8, 1, False),
        (200, 200, 16, 0, True),
        (12, 100, 8, 0, True),
    ],
    ids=[
        *("batched", "small chunks", "preempted", "two rows", "lag 1", "lag 1, preempted"),
        *("drafts", "drafts, preempted"),
    ],
)
def test_same_answers_however_it_is_run(
    model: Model,
    compiler: GrammarCompiler,
    alone: dict[int, dict[str, list[Said]]],
    seed: int,
    pages: int,
    chunk: int,
    rows: int,
    lag: int,
    drafts: bool,
) -> None:
    engine = make_engine(model, pages=pages, chunk=chunk, rows=rows, lag=lag, drafts=drafts)
    for attempt in range(2):  # the second time, all prompts are in the cache
        rng = random.Random(seed + attempt)
        requests = [Request(id=r.id, ids=r.ids, sampling=r.sampling, grammar=r.grammar) for r in workload(seed)]
        said = run(engine, requests, compiler, rng, preempt=0.2 if pages < 50 else 0.0)
        for request in requests:
            if request.id.startswith("x"):
                continue
            for mine, want in zip(said[request.id], alone[seed][request.id], strict=True):
                assert mine.whole() == want.whole()
                assert_close(mine.logprobs, want.logprobs)
                assert_close(mine.prompt, want.prompt)
    stats = engine.stats()
    assert stats.cached_tokens > 0
    if pages < 50:
        assert stats.preemptions > 0
    assert bool(sum(stats.accepted_tokens.values())) == drafts


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
