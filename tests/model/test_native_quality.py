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

pytestmark = [pytest.mark.alone, pytest.mark.skipif(not usable(), reason="no native library for this processor")]

TEXT = Path(__file__).parents[1] / "data" / "opticks.txt"
STORED = [Format("stored", kv) for kv in (torch.float32, torch.bfloat16, torch.int8)]
MADE = [Format(storage, torch.bfloat16) for storage in ("int8", "int4")]


@pytest.fixture(scope="module")
def readings() -> dict[Format, Reading]:
    folder = resolve("embedded", dtype="stored")
    ids = Tokenizer.from_folder(folder.path).encode(TEXT.read_text(encoding="utf-8"), specials=False)
    assert len(ids) > 21_000  # what the whole comparison reads
    stored = compare(folder, STORED, cut(ids, 512)[:2], threads=2)
    return {**stored, **compare(folder, MADE, cut(ids, 256)[:1], threads=2)}


@pytest.mark.parametrize("item", [*STORED, *MADE], ids=lambda item: f"{item.weights} {item.kv}")
def test_perplexity_is_that_of_the_same_weights(item: Format, readings: dict[Format, Reading]) -> None:
    found = readings[item]
    assert found.tokens == (255 if item in MADE else 2 * 511)
    assert 5 < found.base_perplexity < 40  # the model reads the text as a text
    # On so few tokens the ratio is known to some tenths of a percent only; on the whole text it is below half of one.
    assert found.excess_error < 0.008
    assert abs(found.excess) < 0.005 + 2 * found.excess_error
    assert 0 < found.mean_divergence < 0.008
    assert found.agreement > 0.92


def test_a_smaller_cache_loses_more_and_so_does_quantizing_again(readings: dict[Format, Reading]) -> None:
    wide, _, narrow = (readings[item] for item in STORED)
    assert wide.mean_divergence < narrow.mean_divergence
    assert wide.excess_over_file == wide.excess
    int8, int4 = (readings[item] for item in MADE)
    assert int8.excess_over_file != int8.excess
    assert int4.excess_over_file == int4.excess  # blocks with a minimum hold the file's Q4_1 exactly
