"""Native attention: against float64, and bit for bit against itself however the work is laid out."""

from __future__ import annotations

from functools import cache

import numpy as np
import op_oracles as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_attention import (
    FLOAT,
    ISAS,
    KV_TYPES,
    as_stored,
    attend,
    cache_of,
    native,
    own_path,
    part,
    run,
    same_bits,
    stale_cache,
    write,
)
from op_cases import CPU, Array, AttentionCase, SeqRow, as_tensor, attention_cases, exact, random_tree, slots_of

from bosquet.kernels.table import PAGE, AttentionRow

# A score is a sum of at most 256 products, whose rounding moves a weight by a few 1e-7 of itself; a weighted mean of
# values is then off by as much of the largest value.
BOUND = 2e-6


def more_cases() -> list[AttentionCase]:
    """Head sizes down to the smallest, and numbers of heads that do not fit a tile."""
    rows = [SeqRow(300, 1), SeqRow(70, 30), SeqRow(5, 3), SeqRow(520, 2), SeqRow(0, 70)]
    shapes = {
        "tiny": (4, 2, 16),
        "odd-size": (4, 2, 24),
        "six": (2, 2, 10),
        "wide-group": (60, 2, 32),
        "nine": (9, 1, 80),
    }
    cases = [AttentionCase(name, *shape, rows) for name, shape in shapes.items()]
    tree = [SeqRow(249, 30, random_tree(30, 5)), SeqRow(3, 5, random_tree(5, 6)), SeqRow(256, 9, random_tree(9, 7))]
    cases += [AttentionCase(f"trees-{w}", 9, 3, 64, tree, w) for w in (None, 4, 100)]
    cases.append(AttentionCase("long-scores", 4, 2, 64, rows, scale=40.0))
    cases.append(AttentionCase("spans-under-window", 3, 1, 32, [SeqRow(900, 40), SeqRow(1023, 1)], 270))
    return cases


CASES = {case.name: case for case in [*attention_cases(), *more_cases()]}


@cache
def expected(name: str, dtype: torch.dtype) -> Array:
    case = CASES[name]
    keys, values = ([as_stored(x, dtype) for x in both] for both in (case.keys, case.values))
    return oracle.attention(case, exact(case.q, FLOAT), keys, values)


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("isa", ISAS)
def test_attention_is_the_definition(isa: str, name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    got = run(native(isa), case, dtype).double().numpy()
    largest = max(float(np.abs(values).max()) for values in case.values)
    # Long scores: their own rounding, a few 1e-7 of up to 40·d^0.5·4, is what a weight then multiplies.
    bound = BOUND if case.scale < 1 else 1e-3
    assert np.abs(got - expected(name, dtype)).max() <= bound * largest


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
@pytest.mark.parametrize("name", ["gqa-None-mixed", "window-25-trees-mixed", "unlike-lengths", "wide-group", "blocks"])
def test_threads_and_instruction_sets_give_the_same_bits(name: str, dtype: torch.dtype) -> None:
    results = [run(native(isa, threads), CASES[name], dtype) for isa in ISAS for threads in (1, 2, 3)]
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("window", [None, 19, 300])
@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
def test_a_row_does_not_depend_on_its_batch_or_its_pages(dtype: torch.dtype, window: int | None) -> None:
    rows = [
        SeqRow(700, 1),
        SeqRow(299, 1),
        SeqRow(10, 1),
        SeqRow(31, 8),
        SeqRow(290, 60),
        SeqRow(4, 9, random_tree(9, 2)),
        SeqRow(600, 12, random_tree(12, 3)),
    ]
    together = AttentionCase("together", 9, 3, 64, rows, window)
    whole = run(native(), together, dtype)
    for i in range(len(rows)):
        assert same_bits(run(native(), together.only(i), dtype), part(together, i, whole))


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_chunks_of_a_prompt_give_the_same_bits(seed: int, dtype: torch.dtype, window: int | None) -> None:
    ops, total = native(), 600
    case = AttentionCase("prompt", 6, 2, 32, [SeqRow(0, total)], window)
    want = run(ops, case, dtype)
    kv, rng, at = stale_cache(ops, case, dtype), np.random.default_rng(seed), 0
    slots = slots_of(case.pages[0], total)
    while at < total:  # a chunk's keys are written just before it: what follows is still NaN
        end = min(total, at + int(rng.choice([1, 3, 16, 40, 64, 250])))
        write(ops, kv, 1, case.keys[0][at:end], case.values[0][at:end], slots[at:end])
        row = AttentionRow(at, end - at, case.pages[0][: -(-end // PAGE)])
        assert same_bits(attend(ops, kv, [row], case.q[at:end], case.scale, window), want[at:end])
        at = end


def forked_rows(case: AttentionCase, at: list[tuple[int, int]]) -> list[AttentionRow]:
    """The case's rows, row i beginning with the first pages of row `at[i][0]`, for `at[i][1]` tokens."""
    rows, pages = case.table_rows(), []
    for row, (source, length) in zip(rows, at, strict=True):
        shared = pages[source][: length // PAGE] if pages else []
        pages.append([*shared, *row.pages[len(shared) :]])
    return [row._replace(pages=own) for row, own in zip(rows, pages, strict=True)]


@pytest.mark.parametrize("window", [None, 50, 700])
@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
def test_shared_prefixes_change_no_bit(dtype: torch.dtype, window: int | None) -> None:
    """Forks of forks, rows that only verify, trees and prompts, all over pages of the first row."""
    tree = random_tree(6, 4)
    shape = [
        SeqRow(1200, 1), SeqRow(1040, 1), SeqRow(1100, 1), SeqRow(800, 4), SeqRow(1300, 6, tree), SeqRow(600, 30),
        SeqRow(300, 1), SeqRow(1200, 1), SeqRow(20, 1),
    ]  # fmt: skip
    at = [(0, 0), (0, 1024), (1, 1040), (0, 512), (2, 1088), (0, 592), (0, 256), (0, 768), (0, 16)]
    case = AttentionCase("forks", 9, 3, 32, shape, window)
    rows = forked_rows(case, at)
    kv = cache_of(native(), case, dtype)
    results = [
        attend(native(threads=threads, cascade=cascade), kv, rows, case.q, case.scale, window)
        for cascade in (False, True)
        for threads in (1, 2, 3)
    ]
    assert not results[0].isnan().any()
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("window", [None, 7, 200])
@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
@pytest.mark.parametrize("start", [0, 3, 16, 250, 700])
def test_a_path_of_a_tree_is_the_row_that_it_will_become(start: int, dtype: torch.dtype, window: int | None) -> None:
    """Bit for bit, so that speculation with trees can leave greedy output as it was."""
    length = 20
    case = AttentionCase("tree", 6, 2, 32, [SeqRow(start, length, random_tree(length, start))], window)
    whole = run(native(), case, dtype)
    for query in range(length):
        path = own_path(case.rows[0], query)
        seen = [*range(start), *(start + i for i in path)]
        alone = AttentionCase("path", 6, 2, 32, [SeqRow(start + len(path) - 1, 1)], window)
        alone.q, alone.keys, alone.values = case.q[[query]], [case.keys[0][seen]], [case.values[0][seen]]
        assert same_bits(run(native(), alone, dtype), whole[query : query + 1])


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
def test_a_chain_is_a_plain_row(dtype: torch.dtype) -> None:
    plain = AttentionCase("plain", 6, 2, 32, [SeqRow(250, 12), SeqRow(0, 5)], 40)
    chain = AttentionCase("chain", 6, 2, 32, [SeqRow(250, 12, range(-1, 11)), SeqRow(0, 5, range(-1, 4))], 40)
    assert same_bits(run(native(), plain, dtype), run(native(), chain, dtype))


@st.composite
def row_sets(draw: st.DrawFn) -> tuple[AttentionCase, list[tuple[int, int]]]:
    """Any rows, some beginning with pages of an earlier one."""
    rows: list[SeqRow] = []
    shared: list[tuple[int, int]] = []
    for i in range(draw(st.integers(1, 6))):
        start, length = draw(st.integers(0, 700)), draw(st.sampled_from([1, 1, 1, 2, 5, 9, 40]))
        tree = draw(st.booleans()) and length < 10
        rows.append(SeqRow(start, length, random_tree(length, i) if tree else None))
        source = draw(st.integers(0, i - 1)) if i else 0
        shared.append((source, min(start, rows[source].start) // PAGE * PAGE if i and draw(st.booleans()) else 0))
    group, kv_heads, dim = draw(st.sampled_from([(1, 2, 16), (3, 1, 32), (4, 2, 48), (7, 1, 16)]))
    window = draw(st.sampled_from([None, None, 1, 33, 300]))
    return AttentionCase("any", group * kv_heads, kv_heads, dim, rows, window, seed=draw(st.integers(0, 99))), shared


@settings(max_examples=200, deadline=None, derandomize=True)
@given(row_sets(), st.sampled_from(KV_TYPES), st.sampled_from([1, 2, 3]))
def test_any_rows(chosen: tuple[AttentionCase, list[tuple[int, int]]], dtype: torch.dtype, threads: int) -> None:
    case, at = chosen
    ops, rows = native(threads=threads), forked_rows(case, at)
    kv = cache_of(ops, case, dtype)
    got = attend(ops, kv, rows, case.q, case.scale, case.window)
    for i, (source, length) in enumerate(at):  # what row i reads of row `source`
        case.keys[i][:length], case.values[i][:length] = case.keys[source][:length], case.values[source][:length]
        alone = attend(
            native(threads=1), kv, [rows[i]], part(case, i, torch.from_numpy(case.q)).numpy(), case.scale, case.window
        )
        assert same_bits(alone, part(case, i, got))
    keys, values = ([as_stored(x, dtype) for x in both] for both in (case.keys, case.values))
    want = oracle.attention(case, exact(case.q, FLOAT), keys, values)
    assert np.abs(got.double().numpy() - want).max() <= BOUND * max(float(np.abs(x).max()) for x in values)


def test_a_plan_serves_layers_and_windows_of_one_pass() -> None:
    case, ops = CASES["gqa-None-mixed"], native()
    kv = cache_of(ops, case, FLOAT)
    plan, q = ops.plan_attention(case.table_rows(), CPU), as_tensor(case.q, FLOAT)
    for window in (None, 19, None, 5, 19):
        want = attend(ops, kv, case.table_rows(), case.q, case.scale, window)
        assert same_bits(ops.attention(q, kv, 1, plan, case.scale, window), want)


def test_plans_are_used_again() -> None:
    """A plan's memory passes to a later plan; an earlier pass must not show through."""
    case, ops = CASES["window-25-trees-mixed"], native()
    kv = cache_of(ops, case, FLOAT)
    want = attend(ops, kv, case.table_rows(), case.q, case.scale, case.window)
    for length in (1, 3, 6):
        few = sum(row.length for row in case.rows[:length])
        got = attend(ops, kv, case.table_rows()[:length], case.q[:few], case.scale, case.window)
        assert same_bits(got, want[:few])
    held = [ops.plan_attention(case.table_rows(), CPU) for _ in range(3)]
    assert len({plan.handle for plan in held}) == 3


def test_q_may_be_a_view_and_bfloat16() -> None:
    case, ops = CASES["gqa-None-mixed"], native()
    kv = cache_of(ops, case, torch.bfloat16)
    plan = ops.plan_attention(case.table_rows(), CPU)
    wide = torch.full((len(case.q), 15 * 64), float("nan"), dtype=torch.bfloat16)
    view = wide[:, : 9 * 64].view(-1, 9, 64)
    view.copy_(as_tensor(case.q, torch.bfloat16))
    got = ops.attention(view, kv, 1, plan, case.scale)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, ops.attention(view.float(), kv, 1, plan, case.scale).bfloat16())


def test_no_rows() -> None:
    ops = native()
    kv = ops.make_kv(1, 3, 4, 64, FLOAT)
    assert ops.attention(torch.empty(0, 9, 64), kv, 0, ops.plan_attention([], CPU), 1.0).shape == (0, 576)


def test_faults_of_ours_are_refused() -> None:
    ops = native()
    for row, words in (
        (AttentionRow(15, 2, [0]), "shorter than the row"),
        (AttentionRow(0, 3, [0], [-1, 2, 0]), "before its child"),
        (AttentionRow(0, 3, [0], [-1, 0]), "3"),
        (AttentionRow(0, 0, [0]), "at least one token"),
    ):
        with pytest.raises(AssertionError, match=words):
            ops.plan_attention([row], CPU)
    kv = ops.make_kv(1, 3, 4, 64, FLOAT)
    plan = ops.plan_attention([AttentionRow(0, 1, [4])], CPU)
    with pytest.raises(AssertionError, match="4"):
        ops.attention(torch.zeros(1, 9, 64), kv, 0, plan, 1.0)
