"""Proposers that offer nonsense, with grammars, penalties, stop strings, log-probabilities and preemption: no id is so
wrong that anything but the number of passes changes (I3)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny_models
from by_path import module_at

from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.vocabulary import Vocabulary as GrammarVocabulary
from bosquet.kernels.registry import known_ops, load_ops
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.models.base import Model
from bosquet.speculative.arbiter import Arbiter, Costs
from bosquet.speculative.draft import Offer
from bosquet.types import Request

invariants = module_at(Path(__file__).with_name("test_invariants.py"), "invariants")

WIDTH = tiny_models.VOCABULARY
NO_TOKENS = (-1, -WIDTH, -(2**31), WIDTH, WIDTH + 1, 2**31, 2**32 + 40, 2**63 - 1)
SPECIALS = (0, 1, invariants.END)


class Babbler:
    """What was said before, as somebody tells it who was not there. Now and then it is right: `heard` are real answers,
    by how they begin."""

    def __init__(self, rng: random.Random, heard: dict[tuple[int, ...], list[int]]) -> None:
        self.rng = rng
        self.heard = heard
        self.offered: set[str] = set()

    def remember(self, tenant: str, program: str, ids: Sequence[int]) -> None:
        """Nothing is learnt."""

    def offer(self, tenant: str, program: str, ids: Sequence[int], limit: int) -> Offer | None:
        if self.rng.random() < 0.1:
            return None
        tokens = self.truth(ids, limit) if self.rng.random() < 0.6 else []
        for _ in range(self.rng.randrange(4)):
            tokens.insert(self.rng.randrange(len(tokens) + 1), self.nonsense())
        return Offer(tokens[:limit] if self.rng.random() < 0.8 else tokens, self.rng.randrange(60))

    def truth(self, ids: Sequence[int], limit: int) -> list[int]:
        for start, answer in self.heard.items():
            said = len(ids) - len(start)
            if said >= 0 and tuple(ids[: len(start)]) == start and list(ids[len(start) :]) == answer[:said]:
                return answer[said : said + limit]
        return []

    def nonsense(self) -> int:
        kind, pool = self.rng.choice((("none", NO_TOKENS), ("special", SPECIALS), ("any", range(WIDTH))))
        self.offered.add(kind)
        return self.rng.choice(pool)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, or not."""
        right = [invariants.PIECES.index(bytes([byte])) for byte in text.encode()]
        return right if self.rng.random() < 0.5 else [self.nonsense() for _ in range(self.rng.randrange(8))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder: Path = tmp_path_factory.mktemp("tiny")
    tiny_models.save(tiny_models.make_model(tiny_models.make_config("llama"), seed=3), folder)
    kernels = "native" if "native" in known_ops() else "reference"
    return tiny_models.open_model(folder, ops=load_ops(kernels, storage="float32"))


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(GrammarVocabulary(invariants.PIECES, WIDTH, (invariants.END,), invariants.SPECIAL))


@pytest.mark.parametrize(("seed", "pages"), [(4, 200), (5, 12)])
def test_nonsense_changes_nothing(model: Model, compiler: GrammarCompiler, seed: int, pages: int) -> None:
    requests = [invariants.replace_id(request, request.id.replace("x", "r")) for request in invariants.workload(seed)]
    plain = invariants.run(invariants.make_engine(model), requests, compiler, random.Random(0))
    rng = random.Random(seed)
    engine = invariants.make_engine(model, pages=pages, chunk=100, rows=8)
    heard = {tuple(request.ids): plain[request.id][0].tokens for request in requests}
    babbler = Babbler(rng, heard)
    drafter = Drafter(WIDTH, Arbiter(Costs({1: 1.0, 8: 1.0})), babbler.encode)
    drafter._memory = babbler  # type: ignore[assignment]
    engine.scheduler.drafter = drafter
    again = [Request(id=r.id, ids=r.ids, sampling=r.sampling, grammar=r.grammar) for r in requests]
    said = invariants.run(engine, again, compiler, rng, preempt=0.2 if pages < 50 else 0.0)
    for request in requests:
        for mine, want in zip(said[request.id], plain[request.id], strict=True):
            assert mine.whole() == want.whole()
            invariants.assert_close(mine.logprobs, want.logprobs)
            invariants.assert_close(mine.prompt, want.prompt)
    stats = engine.stats()
    assert babbler.offered == {"none", "special", "any"}
    assert 0 < stats.accepted_tokens["suffix"] < stats.drafted_tokens["suffix"], "some right, some wrong"
    assert bool(stats.preemptions) == (pages < 50)
