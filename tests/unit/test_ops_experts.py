"""Layers of experts against float64, for every back end of this machine."""

from __future__ import annotations

import numpy as np
import op_oracles as oracle
import pytest
import torch
from op_cases import DTYPES, ROUND, ExpertsCase, as_tensor, back_end, back_ends, experts_cases

from bosquet.kernels.cpu.ops import CpuOps
from bosquet.kernels.registry import known_ops
from bosquet.kernels.table import Ops

CASES = list(experts_cases())
NAMES = pytest.mark.parametrize("name", back_ends())


def run(ops: Ops, case: ExpertsCase, dtype: torch.dtype) -> torch.Tensor:
    x, logits, gate_up, down = case.data(dtype)
    weights = ops.pack_experts([as_tensor(w, dtype) for w in gate_up], [as_tensor(w, dtype) for w in down])
    return ops.experts(as_tensor(x, dtype), as_tensor(logits, torch.float32), weights, case.top_k, case.normalize)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@NAMES
def test_experts(name: str, case: ExpertsCase, dtype: torch.dtype) -> None:
    want = oracle.experts(*case.data(dtype), case.top_k, case.normalize)
    got = run(back_end(name), case, dtype)
    assert got.dtype == dtype
    assert got.shape == want.shape
    # Every number is rounded a few times on its way, and each of these roundings spreads over the sums after it.
    error = np.abs(got.double().numpy() - want).max(initial=0.0)
    assert error <= 12 * ROUND[dtype] * np.abs(want).max(initial=1.0)


@NAMES
def test_a_token_does_not_depend_on_those_beside_it(name: str) -> None:
    ops, (case,) = back_end(name), [case for case in CASES if case.name == "some"]
    x, logits, gate_up, down = case.data(torch.float32)
    weights = ops.pack_experts(
        [as_tensor(w, torch.float32) for w in gate_up], [as_tensor(w, torch.float32) for w in down]
    )
    tensors = as_tensor(x, torch.float32), as_tensor(logits, torch.float32)
    whole = ops.experts(*tensors, weights, 3, True)
    for chosen in ([4], [18, 4, 0], list(range(18, -1, -1))):
        got = ops.experts(*(tensor[chosen] for tensor in tensors), weights, 3, True)
        if name == "native":
            assert torch.equal(got, whole[chosen])
        assert float((got - whole[chosen]).abs().max()) < 4e-6


@pytest.mark.skipif("native" not in known_ops(), reason="no native library for this processor")
def test_a_router_keeps_its_precision_where_matrices_have_four_bits() -> None:
    weight, x = torch.randn(6, 64), torch.randn(3, 64)
    ops = CpuOps(1, "int4")
    want = x.double() @ weight.double().T
    assert (ops.linear(x, ops.pack_router(weight)).double() - want).abs().max() < 1e-5
    assert (ops.linear(x, ops.pack_linear(weight)).double() - want).abs().max() > 1e-2
