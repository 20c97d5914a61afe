"""Native kernels predict a text as well as the same weights do in the reference.

On the whole text: `benchmarks/quality.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bosquet.kernels.cpu.library import usable
from bosquet.runtime.bench.quality import Format, Reading, compare, cut
from bosquet.runtime.models.source import resolve
from bosquet.runtime.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(not usable(), reason="no native library for this processor")

TEXT = Path(__file__).parents[1] / "data" / "opticks.txt"
STORED = [Format("stored", kv) for kv in (torch.float32, torch.bfloat16, torch.int8)]
MADE = [Format("int8", torch.bfloat16), Format("int4", torch.bfloat16)]


@pytest.fixture(scope="module")
def readings() -> dict[Format, Reading]:
    folder = resolve("embedded", dtype="stored")
    ids = Tokenizer.from_folder(folder.path).encode(TEXT.read_text(encoding="utf-8"), specials=False)
    assert len(ids) > 21_000  # what the whole comparison reads
    return compare(folder, [*STORED, *MADE], cut(ids, 640)[:3], threads=2)


@pytest.mark.parametrize("item", [*STORED, *MADE], ids=lambda item: f"{item.weights} {item.kv}")
def test_perplexity_is_that_of_the_same_weights(item: Format, readings: dict[Format, Reading]) -> None:
    found = readings[item]
    assert found.tokens == 3 * 639
    assert 5 < found.base_perplexity < 30  # the model reads the text as a text
    # On so few tokens the ratio is known to a fifth of a percent only; the whole text stays below half a percent.
    assert abs(found.excess) < 0.005 + 2 * found.excess_error
    assert found.excess_error < 0.004
    assert 0 < found.mean_divergence < 0.008
    assert found.agreement > 0.94


def test_a_smaller_cache_and_fewer_bits_lose_more(readings: dict[Format, Reading]) -> None:
    wide, _, narrow = (readings[item].mean_divergence for item in STORED)
    assert wide < narrow
    assert readings[MADE[1]].excess_over_file > readings[MADE[0]].excess_over_file
    assert readings[STORED[0]].excess_over_file == readings[STORED[0]].excess
