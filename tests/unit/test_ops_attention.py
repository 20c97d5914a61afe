"""Attention and the cache's storage, against float64 loops, for every back end."""

from __future__ import annotations

import numpy as np
import op_oracles as oracle
import pytest
import torch
from op_cases import (
    CPU,
    DTYPES,
    AttentionCase,
    SeqRow,
    as_tensor,
    attention_cases,
    back_end,
    back_ends,
    exact,
    filled_cache,
    random_tree,
    run_attention,
    slots_of,
)

from bosquet.kernels.reference import plan as reference_plan
from bosquet.kernels.reference.ops import ReferenceOps
from bosquet.kernels.table import PAGE, AttentionRow

# Scores are sums of d ≤ 256 products of unit size, scaled to unit size; the output is a mean of values of at most 5.
# float32 keeps 2e-7 of each step. bfloat16 rounds the output (2^-8 of at most 5) and, in flash attention, the weights.
BOUND = {torch.float32: 3e-6, torch.bfloat16: 2.5e-2}
CASES = list(attention_cases())
MIXED = next(case for case in CASES if case.name == "gqa-None-mixed")


def named(cases: list[AttentionCase]) -> list[str]:
    return [case.name for case in cases]


def expected(case: AttentionCase, dtype: torch.dtype) -> torch.Tensor:
    keys = [exact(k, dtype) for k in case.keys]
    values = [exact(v, dtype) for v in case.values]
    return torch.from_numpy(oracle.attention(case, exact(case.q, dtype), keys, values))


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want.double()).abs().nan_to_num(nan=float("inf")).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=named(CASES))
@pytest.mark.parametrize("name", back_ends())
def test_attention_is_the_definition(name: str, case: AttentionCase, dtype: torch.dtype) -> None:
    got = run_attention(back_end(name), case, dtype)
    assert got.dtype == dtype
    assert worst(got, expected(case, dtype)) < BOUND[dtype]


@pytest.mark.parametrize("case", CASES, ids=named(CASES))
def test_reference_without_sparse_products(case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bosquet.kernels.reference.ops.sparse_products_work", lambda: False)
    ops = ReferenceOps()
    plan = ops.plan_attention(case.table_rows(), CPU)
    kv = filled_cache(ops, case, torch.float32)
    got = ops.attention(as_tensor(case.q, torch.float32), kv, 1, plan, case.scale, case.window)
    sizes = reference_plan.Sizes(case.heads, case.kv_heads, case.pool, case.dim, False, case.window)
    assert not any(isinstance(group, reference_plan.SparseGroup) for group in plan.groups(sizes))
    assert worst(got, expected(case, torch.float32)) < BOUND[torch.float32]


@pytest.mark.parametrize("case", CASES, ids=named(CASES))
def test_reference_in_the_smallest_steps(case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that every group holds one row and a long row is read in many spans."""
    for limit, value in {"GATHERED": 1, "PRODUCTS": 1, "KEY_BLOCK": 32, "QUERY_BLOCK": 8}.items():
        monkeypatch.setattr(reference_plan, limit, value)
    assert worst(run_attention(ReferenceOps(), case, torch.float32), expected(case, torch.float32)) < 3e-6


def test_the_usual_build_has_sparse_products() -> None:
    assert reference_plan.sparse_products_work()


@pytest.mark.parametrize("window", [None, 19])
@pytest.mark.parametrize("name", back_ends())
def test_a_row_does_not_depend_on_its_batch(name: str, window: int | None) -> None:
    rows = [
        SeqRow(300, 1),
        SeqRow(299, 1),
        SeqRow(10, 1),
        SeqRow(31, 8),
        SeqRow(90, 60),
        SeqRow(4, 9, random_tree(9, 2)),
    ]
    together = AttentionCase("together", 9, 3, 64, rows, window)
    whole = run_attention(back_end(name), together, torch.float32)
    first = 0
    for i, row in enumerate(rows):
        alone = run_attention(back_end(name), together.only(i), torch.float32)
        assert worst(alone, whole[first : first + row.length]) <= 1e-6
        first += row.length


@pytest.mark.parametrize("sizes", [[1] * 40, [16, 16, 8], [5, 30, 1, 4], [40]], ids=str)
@pytest.mark.parametrize("name", back_ends())
def test_chunks_give_what_one_prefill_gives(name: str, sizes: list[int]) -> None:
    whole = AttentionCase("whole", 9, 3, 64, [SeqRow(0, 40)])
    ops, want = back_end(name), expected(whole, torch.float32)
    kv = filled_cache(ops, whole, torch.float32)
    at = 0
    for size in sizes:
        plan = ops.plan_attention([AttentionRow(at, size, whole.pages[0])], CPU)
        got = ops.attention(as_tensor(whole.q[at : at + size], torch.float32), kv, 1, plan, whole.scale)
        assert worst(got, want[at : at + size]) < 3e-6
        at += size


@pytest.mark.parametrize("name", back_ends())
def test_a_plan_serves_layers_and_windows_of_one_pass(name: str) -> None:
    """Layers with and without a window share a plan, and what one layer computed does not stain the next."""
    ops = back_end(name)
    kv = filled_cache(ops, MIXED, torch.float32)
    plan = ops.plan_attention(MIXED.table_rows(), CPU)
    q = as_tensor(MIXED.q, torch.float32)
    for window in (None, 19, None, 5, 19):
        case = AttentionCase("again", 9, 3, 64, MIXED.rows, window)
        assert worst(ops.attention(q, kv, 1, plan, case.scale, window), expected(case, torch.float32)) < 3e-6


@pytest.mark.parametrize("name", back_ends())
def test_no_rows(name: str) -> None:
    ops = back_end(name)
    kv = ops.make_kv(1, 3, 4, 64, torch.float32)
    out = ops.attention(torch.empty(0, 9, 64), kv, 0, ops.plan_attention([], CPU), 1.0)
    assert out.shape == (0, 576)


@pytest.mark.parametrize("name", back_ends())
def test_q_may_be_a_view_of_a_wider_projection(name: str) -> None:
    ops, tokens = back_end(name), len(MIXED.q)
    kv = filled_cache(ops, MIXED, torch.float32)
    wide = torch.full((tokens, 15 * 64), float("nan"))
    view = wide[:, : 9 * 64].view(tokens, 9, 64)
    view.copy_(as_tensor(MIXED.q, torch.float32))
    got = ops.attention(view, kv, 1, ops.plan_attention(MIXED.table_rows(), CPU), MIXED.scale)
    assert worst(got, expected(MIXED, torch.float32)) < 3e-6


def stored(name: str, layers: int, pages: int) -> tuple[AttentionCase, object, list[torch.Tensor]]:
    """A pool with known contents: per layer the values [P·16, K, d], read back only through attention."""
    case = AttentionCase("store", 2, 2, 64, [SeqRow(pages * PAGE - 1, 1)], spare_pages=0)
    ops = back_end(name)
    kv = ops.make_kv(layers, 2, pages, 64, torch.float32)
    contents = []
    for layer in range(layers):
        content = torch.from_numpy(np.random.default_rng(layer).standard_normal((pages * PAGE, 2, 64))).float()
        ops.write_kv(kv, layer, content, content, torch.arange(pages * PAGE))
        contents.append(content)
    return case, kv, contents


def contents_of(name: str, kv: object, layer: int, pages: int) -> torch.Tensor:
    """Values of all slots [P·16, K, d]: a query of zeros over one key is that key's value."""
    ops = back_end(name)
    got = torch.empty(pages * PAGE, 2, 64)
    for page in range(pages):
        # Position s of a row over this page alone, with a window of one, sees slot s only.
        plan = ops.plan_attention([AttentionRow(0, PAGE, [page])], CPU)
        out = ops.attention(torch.zeros(PAGE, 2, 64), kv, layer, plan, 1.0, window=1)
        got[page * PAGE : (page + 1) * PAGE] = out.view(PAGE, 2, 64)
    return got


@pytest.mark.parametrize(
    "copies",
    [[], [(0, 1, 16)], [(0, 1, 15), (2, 0, 1)], [(0, 1, 16), (1, 2, 7), (2, 3, 16)], [(3, 3, 4)], [(0, 1, 0)]],
    ids=str,
)
@pytest.mark.parametrize("name", back_ends())
def test_copies_run_in_order_in_all_layers(name: str, copies: list[tuple[int, int, int]]) -> None:
    _, kv, contents = stored(name, 2, 5)
    back_end(name).copy_pages(kv, copies)
    for layer, want in enumerate(contents):
        for src, dst, n in copies:
            for slot in range(n):
                want[dst * PAGE + slot] = want[src * PAGE + slot]
        assert torch.equal(contents_of(name, kv, layer, 5), want)


@pytest.mark.parametrize("move", [([], []), ([3], [40]), ([1, 2, 3, 4], [2, 3, 4, 5]), ([7, 60], [60, 7])], ids=str)
@pytest.mark.parametrize("name", back_ends())
def test_moves_read_before_they_write(name: str, move: tuple[list[int], list[int]]) -> None:
    src, dst = (torch.tensor(slots, dtype=torch.int64) for slots in move)
    _, kv, contents = stored(name, 3, 4)
    back_end(name).move_slots(kv, src, dst)
    for layer, before in enumerate(contents):
        want = before.clone()
        for a, b in zip(*move, strict=True):
            want[b] = before[a]
        assert torch.equal(contents_of(name, kv, layer, 4), want)


@pytest.mark.parametrize("name", back_ends())
def test_writes_touch_their_slots_and_layer_only(name: str) -> None:
    ops = back_end(name)
    _, kv, contents = stored(name, 2, 3)
    new = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(1))
    slots = torch.tensor([33, 0, 15, 16])
    ops.write_kv(kv, 1, new, new, slots)
    contents[1][slots] = new
    for layer in range(2):
        assert torch.equal(contents_of(name, kv, layer, 3), contents[layer])


def test_a_page_list_that_is_too_short_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="shorter than the row"):
        ReferenceOps().plan_attention([AttentionRow(15, 2, [0])], CPU)


def test_slots_follow_pages() -> None:
    assert slots_of([5, 2], 18).tolist() == [*range(80, 96), 32, 33]
