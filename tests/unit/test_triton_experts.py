"""Routing and grouped products of the Triton kernels, against float64."""

from __future__ import annotations

import numpy as np
import op_oracles as oracle
import pytest
import torch
from op_cases import DTYPES, ROUND, Array, ExpertsCase, as_tensor, exact, experts_cases
from packed_weights import unpacked
from torch import Tensor
from triton_device import DEVICE

from bosquet.kernels.reference.experts import route as reference_route
from bosquet.kernels.triton import experts as module
from bosquet.kernels.triton.experts import PackedExperts, Routing, experts, most_blocks, pack_experts, route
from bosquet.kernels.triton.quantize import Packed
from bosquet.kernels.triton.tiles import TILES, Tile

CASES = {case.name: case for case in experts_cases()}


def tensor(values: Array, dtype: torch.dtype) -> Tensor:
    return as_tensor(values, dtype).to(DEVICE)


def tensors(arrays: list[Array], dtype: torch.dtype) -> list[Tensor]:
    return [tensor(array, dtype) for array in arrays]


def one_by_one(packed: Packed) -> list[Array]:
    """The matrices of all experts, unpacked."""
    parts = [
        packed._replace(weight=weight, scale=None if packed.scale is None else packed.scale[number])
        for number, weight in enumerate(packed.weight)
    ]
    return [unpacked(part) for part in parts]


def check(case: ExpertsCase, dtype: torch.dtype, storage: str, invariant: bool = False) -> None:
    x, logits, gate_up, down = case.data(dtype)
    weights = pack_experts(tensors(gate_up, dtype), tensors(down, dtype), storage)  # type: ignore[arg-type]
    want = oracle.experts(x, logits, one_by_one(weights.gate_up), one_by_one(weights.down), case.top_k, case.normalize)
    got = experts(
        tensor(x, dtype), tensor(logits, torch.float32), weights, case.top_k, case.normalize, invariant
    )  # fmt: skip
    assert got.dtype == dtype
    assert got.shape == want.shape
    error = np.abs(got.double().cpu().numpy() - want).max(initial=0.0)
    assert error <= 12 * ROUND[dtype] * np.abs(want).max(initial=1.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_experts(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "float32" if dtype == torch.float32 else "bfloat16")


@pytest.mark.parametrize("storage", ["int8", "int4", "fp8", "fp8_block"])
def test_experts_of_quantized_weights(storage: str) -> None:
    check(ExpertsCase(storage, 9, 150, 70, 5, 2), torch.bfloat16, storage)


def test_large_tiles_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each expert has many tokens, and where it has a few, an expert's blocks are its own."""
    monkeypatch.setitem(TILES, "experts_many", {"any": Tile(32, 32, 64)})
    monkeypatch.setattr(module, "_MANY", 8)
    case = ExpertsCase("many", 70, 48, 24, 4, 2)
    assert case.tokens * case.top_k >= 8 * case.count
    check(case, torch.bfloat16, "bfloat16")
    check(case, torch.bfloat16, "bfloat16", invariant=True)


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("name", ["one", "only-expert", "all-experts", "some", "skewed", "many-experts", "parts"])
def test_every_choice_has_a_place_of_its_own_with_its_expert(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PARTS", 2)  # more than one turn over the counts of 16 tokens each
    case = CASES.get(name, ExpertsCase("parts", 83, 1, 1, 6, 3))
    logits = tensor(case.data(torch.float32)[1], torch.float32)
    shares, experts_chosen = reference_route(logits, case.top_k, normalize=False)
    got = route(logits, case.top_k, rows)
    got = Routing(*(part.cpu() for part in got))
    torch.testing.assert_close(got.shares, shares.cpu(), atol=1e-6, rtol=1e-5)
    experts_chosen = experts_chosen.cpu()
    counts = experts_chosen.flatten().bincount(minlength=case.count)
    assert torch.equal(got.counts.long(), counts)
    assert got.ends.tolist() == (-(-counts // rows)).cumsum(0).tolist()
    assert int(got.ends[-1]) <= most_blocks(case.tokens * case.top_k, case.count, rows) == len(got.places) // rows
    seen: list[int] = []
    for expert, (end, count) in enumerate(zip(got.ends.tolist(), counts.tolist(), strict=True)):
        first = (end - -(-count // rows)) * rows
        own = got.places[first : first + count].tolist()
        assert all(experts_chosen.flatten()[choice] == expert for choice in own)
        seen += own
    assert sorted(seen) == list(range(case.tokens * case.top_k))


def test_of_equal_logits_the_lower_number_is_chosen() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0, 1.0], [1.0] * 5], device=DEVICE)
    got = route(logits, 3, 16)
    assert got.counts.tolist() == [1, 2, 2, 1, 0]
    assert reference_route(logits, 3, False)[1].tolist() == [[1, 2, 3], [0, 1, 2]]


def whole_layer(dtype: torch.dtype) -> tuple[Tensor, Tensor, PackedExperts]:
    x, logits, gate_up, down = ExpertsCase("batch", 34, 48, 24, 5, 2).data(dtype)
    weights = pack_experts(tensors(gate_up, dtype), tensors(down, dtype), "int8")
    return tensor(x, dtype), tensor(logits, torch.float32), weights


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
def test_a_token_does_not_depend_on_those_beside_it() -> None:
    """Bit by bit, in any company and also beside tokens that are not numbers, as what pads a pass may be."""
    x, logits, weights = whole_layer(torch.bfloat16)
    whole = experts(x, logits, weights, 2, True, invariant=True)
    for chosen in ([7], [33, 7, 0], list(range(33, -1, -1))):
        assert torch.equal(experts(x[chosen], logits[chosen], weights, 2, True, invariant=True), whole[chosen])
    x[3] = logits[3] = logits[20] = float("nan")
    logits[21] = -float("inf")
    others = [token for token in range(34) if token not in (3, 20, 21)]
    assert torch.equal(experts(x, logits, weights, 2, True, invariant=True)[others], whole[others])


def test_rows_may_stand_apart() -> None:
    x, logits, weights = whole_layer(torch.float32)
    wide, other = (torch.full((34, width), float("nan"), device=DEVICE) for width in (99, 9))
    wide[:, 20:68], other[:, 1:6] = x, logits
    got = experts(wide[:, 20:68], other[:, 1:6], weights, 2, True)
    assert torch.equal(got, experts(x, logits, weights, 2, True))


def test_blocks_are_enough_for_the_worst_choices() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        counts = rng.integers(0, 40, rng.integers(1, 20)) * (rng.random() < 0.7)
        counts[0] += 1
        needed = int((-(-counts // 16)).sum())
        assert needed <= most_blocks(int(counts.sum()), len(counts), 16)
    assert most_blocks(8, 128, 16) == 8
    assert most_blocks(1, 128, 16) == 1


def test_weights_of_experts_are_exact_where_they_are_kept_as_they_are() -> None:
    weight = exact(np.random.default_rng(0).standard_normal((3, 10, 20)), torch.bfloat16)
    packed = pack_experts(tensors(list(weight), torch.float32), tensors(list(weight), torch.float32), "bfloat16")
    assert np.array_equal(packed.gate_up.weight.double().cpu().numpy(), weight)
