"""Draft trees on real kernels: an answer with its tokens hidden in trees is the answer without (I3)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny_models
from draft_trees import tree_around

from bosquet.kernels.registry import known_ops, load_ops
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.models.base import Model
from bosquet.runtime.runner import TorchRunner
from bosquet.runtime.sequence import Sequence as EngineSequence
from bosquet.speculative.arbiter import Arbiter, Costs
from bosquet.speculative.draft import Draft
from bosquet.types import Request, SamplingParams

PIECES = [bytes([32 + i % 90]) for i in range(tiny_models.VOCABULARY)]
PAGES = 60


class Hidden(Drafter):
    """Trees of 2 to 15 tokens that hold the next ones of the answers it was told, each among wrong ones."""

    def __init__(self, answers: dict[str, Sequence[int]]) -> None:
        super().__init__(tiny_models.VOCABULARY, Arbiter(Costs({1: 1.0, 8: 1.0})))
        self.answers = answers
        self.rng = random.Random(4)
        self.moved = 0

    def draft(self, asked: Sequence[tuple[EngineSequence, int]]) -> list[Draft]:
        return [self._tree(*one) for one in asked]

    def _tree(self, sequence: EngineSequence, room: int) -> Draft:
        want = self.answers.get(sequence.request.id, ())[sequence.generated :]
        size = min(room, sequence.limit - len(sequence.ids) - 1, self.rng.randint(2, 15))
        draft = tree_around(want, size, tiny_models.VOCABULARY, self.rng)
        at = -1
        for depth, token in enumerate(want):
            at = next((child for child in draft.children(at) if draft.tokens[child] == token), -1)
            if at < 0:
                break
            self.moved += at != depth
        return draft


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_models.make_config("mistral", sliding_window=40)
    return tiny_models.save(tiny_models.make_model(config), tmp_path_factory.mktemp("model"))


def answers(model: Model, drafter: Drafter | None) -> dict[str, list[int]]:
    engine = Engine(
        TorchRunner(model, PAGES),
        RadixCache(PagePool(PAGES)),
        Limits(64, 8, ageing_s=10.0),
        Bounds(tiny_models.VOCABULARY, 256, max_waiting=50),
        Vocabulary(PIECES, frozenset(), (2,)),
        drafter=drafter,
    )
    said: dict[str, list[int]] = {}
    for number in range(6):
        sampling = SamplingParams(max_tokens=40, temperature=0.0 if number % 2 else 0.9, seed=number, ignore_eos=True)
        ids = [3 + (7 * i) % 90 for i in range(20 + number)]
        engine.add(Request(id=str(number), ids=ids, sampling=sampling))
    while not engine.idle:
        for output in engine.step():
            said.setdefault(output.request, []).extend(output.tokens)
    engine.check_integrity()
    stats = engine.stats()
    if drafter is not None:
        assert stats.accepted_tokens["suffix"] > 40
    return said


@pytest.mark.parametrize("kernels", known_ops())
def test_trees_change_no_answer(kernels: str, folder: Path) -> None:
    model = tiny_models.open_model(folder, ops=load_ops(kernels, storage="float32"))
    plain = answers(model, None)
    drafter = Hidden(plain)
    assert answers(model, drafter) == plain
    assert drafter.moved > 40
