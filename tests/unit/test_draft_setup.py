"""A draft model has to speak the target's tokens, all of them; how wide its head is does not matter."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import tiny_models
import torch

from bosquet.errors import ModelLoadError
from bosquet.kernels.registry import load_ops
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.draft_model import DraftModel
from bosquet.runtime.draft_setup import check_vocabulary
from bosquet.runtime.guessing import Guesser
from bosquet.runtime.page_table import PageTable
from bosquet.runtime.runner import TorchRunner
from bosquet.runtime.sampler import Sampler
from bosquet.runtime.sequence import Sequence
from bosquet.speculative.arbiter import Costs
from bosquet.types import Request, SamplingParams

SAME = SimpleNamespace(size=4, special_ids=frozenset({0}), token_bytes=[b"<s>", b"a", b"b", b"ab"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": 5}, "it has 5 tokens, the target 4"),
        ({"special_ids": frozenset({0, 2})}, "token 2 is special to one of the two only"),
        (
            {"token_bytes": [b"<s>", b"a", b"c", b"ab"]},
            "token 2 is b'c', to the target b'b'",
        ),
    ],
)
def test_another_vocabulary_is_refused_with_the_reason(tmp_path, change, said):
    other = SimpleNamespace(**{**vars(SAME), **change})
    with pytest.raises(ModelLoadError, match="cannot draft for this target") as error:
        check_vocabulary(SAME, other, tmp_path)
    assert said in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_the_same_vocabulary_passes(tmp_path):
    check_vocabulary(SAME, copy.deepcopy(SAME), tmp_path)


@pytest.mark.parametrize("width", [80, 96, 130])
def test_a_head_of_another_width_gives_logits_as_wide_as_the_targets(tmp_path, width):
    """What only the draft model has is cut; what only the target has is never drafted."""
    tiny_models.save(tiny_models.make_model(tiny_models.make_config("llama"), seed=3), tmp_path)
    runner = TorchRunner(tiny_models.open_model(tmp_path, ops=load_ops("reference")), 4)
    cache = RadixCache(PagePool(4))
    source = DraftModel(runner, cache.pool, width, Costs({1: 1.0, 8: 1.0}))
    sequence = Sequence(Request(id="a", ids=[3, 4, 5], sampling=SamplingParams()), 0, 0, 40, None)
    sequence.table = PageTable(cache, sequence.namespace)
    sequence.table.grow(10)
    (logits,) = source.begin([sequence])
    assert logits.shape == (width,)
    assert torch.isfinite(logits[: min(width, 96)]).all()
    assert (logits[96:] == -torch.inf).all()


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0), SamplingParams(temperature=1)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("said", [torch.nan, -torch.inf])
def test_a_draft_that_says_no_number_guesses_nothing(said, sampling):
    source = SimpleNamespace(begin=lambda sequences: torch.full((len(sequences), 96), said))
    guesser = Guesser(source, Sampler(96), load_ops("reference").apply_mask, (2,))
    sequence = Sequence(Request(id="a", ids=[3, 4, 5], sampling=sampling), 0, 0, 40, None)
    (draft,) = guesser.guess([(sequence, 4)])
    assert draft.tokens == []


def test_what_came_in_the_place_of_a_wrong_guess_is_read_again(tmp_path):
    """Also when more came before it drafts again."""
    tiny_models.save(tiny_models.make_model(tiny_models.make_config("llama"), seed=3), tmp_path)
    runner = TorchRunner(tiny_models.open_model(tmp_path, ops=load_ops("reference")), 4)
    sequences = []
    for ids in ([3, 4, 5], [3, 4, 5, 7, 9, 10, 11]):
        cache = RadixCache(PagePool(2))
        sequence = Sequence(Request(id="a", ids=ids, sampling=SamplingParams()), 0, 0, 40, None)
        sequence.table = PageTable(cache, sequence.namespace)
        sequence.table.grow(20)
        sequences.append((sequence, DraftModel(runner, cache.pool, 96, Costs({1: 1.0, 8: 1.0}))))
    (sequence, source), (fresh, other) = sequences
    source.begin([sequence])
    source.go_on([sequence], [7])
    source.go_on([sequence], [8])
    for token in (7, 9, 10, 11):
        sequence.append(token)
    logits = source.begin([sequence]).clone()
    torch.testing.assert_close(logits, other.begin([fresh]), atol=1e-5, rtol=1e-5)
