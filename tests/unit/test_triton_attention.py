"""Attention of the Triton kernels, against float64 loops, and bit for bit against itself however the work is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import op_oracles as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import AttentionCase, SeqRow, as_tensor, attention_cases, exact, random_tree, slots_of
from torch import Tensor
from triton_device import DEVICE

from bosquet.kernels.reference.masks import tree as reference_tree
from bosquet.kernels.table import PAGE, AttentionRow
from bosquet.kernels.triton import plan as planning
from bosquet.kernels.triton.attention import attend
from bosquet.kernels.triton.kv import KvStore
from bosquet.kernels.triton.plan import SHORT, SPLIT, AttentionPlan, Shape, describe, exact_shape, plan_attention

F32, BF16, FP8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn
# Scores are sums of up to 256 products of unit size, scaled to unit size; the output is a mean of values of at most 5.
# float32 keeps 2e-7 of each step. bfloat16 rounds the weights and the output (2^-9 of at most 5 each).
BOUND = {F32: 3e-6, BF16: 2e-2}
TINY = (2, 1, 32)
# Each case is here that another does not cover, some on fewer heads: the interpreter takes milliseconds a program.
WHOLE = [
    "gqa-None-decode", "gqa-None-mixed", "mha-19-mixed", "mqa-19-decode", "wide-19-mixed", "unlike-lengths",
    "long-window", "window-not-reached",
]  # fmt: skip
FEW_HEADS = ["window-5-short", "window-25-long", "window-5-trees", "window-None-trees"]
CASES = {case.name: case for case in attention_cases() if case.name in WHOLE}
for case in attention_cases():
    if case.name in FEW_HEADS:
        CASES[case.name] = AttentionCase(case.name, *TINY, case.rows, case.window)
LONG_TREES = [SeqRow(250, 128, random_tree(128, 5)), SeqRow(3, 33, random_tree(33, 6))]
for window in (None, 6):
    CASES[f"long-trees-{window}"] = AttentionCase(f"long-trees-{window}", *TINY, LONG_TREES, window)
CASES["over-splits"] = AttentionCase(
    "over-splits", *TINY, [SeqRow(SPLIT * n - 3, 7) for n in (1, 2, 5)], 600, scale=0.3
)
CASES["blocks-and-prefix"] = AttentionCase("blocks-and-prefix", *TINY, [SeqRow(200, 140), SeqRow(900, 17)])


def store_of(case: AttentionCase, dtype: torch.dtype, layer: int = 1) -> KvStore:
    """Every slot that belongs to no row holds NaN, and so does the other layer."""
    store = KvStore(2, case.kv_heads, case.pool, case.dim, dtype, DEVICE)
    data = torch.full(store.data.shape, float("nan")).to(dtype)
    for keys, values, pages in zip(case.keys, case.values, case.pages, strict=True):
        slots = slots_of(pages, len(keys))
        for which, content in enumerate((keys, values)):
            raw = data.view(torch.uint8) if dtype == FP8 else data
            new = as_tensor(content, dtype)
            raw[layer, which, slots // PAGE, :, slots % PAGE] = new.view(torch.uint8) if dtype == FP8 else new
    store.data.copy_(data)
    return store


def run(case: AttentionCase, dtype: torch.dtype, plan: AttentionPlan | None = None, q: Tensor | None = None) -> Tensor:
    plan = plan or plan_attention(case.table_rows(), DEVICE)
    q = as_tensor(case.q, BF16 if dtype == FP8 else dtype).to(DEVICE) if q is None else q
    return attend(q, store_of(case, dtype), 1, plan, case.scale, case.window)


def worst(got: Tensor, case: AttentionCase, dtype: torch.dtype) -> float:
    keys, values = ([exact(x, dtype) for x in both] for both in (case.keys, case.values))
    want = oracle.attention(case, exact(case.q, got.dtype), keys, values)
    assert tuple(got.shape) == want.shape
    return float(np.nan_to_num(np.abs(got.double().cpu().numpy() - want), nan=np.inf).max())


def same_bits(a: Tensor, b: Tensor) -> bool:
    kind = torch.int16 if a.dtype == BF16 else torch.int32
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def part(case: AttentionCase, index: int, whole: Tensor) -> Tensor:
    first = sum(row.length for row in case.rows[:index])
    return whole[first : first + case.rows[index].length]


@pytest.mark.parametrize("name", CASES)
def test_attention_is_the_definition(name: str) -> None:
    assert worst(run(CASES[name], F32), CASES[name], F32) < BOUND[F32]


@pytest.mark.parametrize("dtype", [BF16, FP8], ids=str)
@pytest.mark.parametrize("name", ["unlike-lengths", "window-5-trees", "long-window", "over-splits"])
def test_attention_in_narrow_types(name: str, dtype: torch.dtype) -> None:
    got = run(CASES[name], dtype)
    assert got.dtype == BF16
    assert worst(got, CASES[name], dtype) < BOUND[BF16]


@pytest.mark.parametrize("window", [None, 19])
def test_a_row_does_not_depend_on_its_batch(window: int | None) -> None:
    rows = [
        SeqRow(700, 1), SeqRow(299, 1), SeqRow(31, 8), SeqRow(290, 40), SeqRow(4, 9, random_tree(9, 2)),
        SeqRow(600, 12, random_tree(12, 3)), SeqRow(30, 20, random_tree(20, 4)),
    ]  # fmt: skip
    together = AttentionCase("together", *TINY, rows, window)
    whole = run(together, F32)
    for i in range(len(rows)):
        assert same_bits(run(together.only(i), F32), part(together, i, whole))


def forked_rows(case: AttentionCase, at: Sequence[tuple[int, int]]) -> list[AttentionRow]:
    """The case's rows, row i beginning with the first pages of row `at[i][0]`, for `at[i][1]` tokens."""
    pages: list[list[int]] = []
    for row, (source, length) in zip(case.table_rows(), at, strict=True):
        shared = pages[source][: length // PAGE] if pages else []
        pages.append([*shared, *list(row.pages)[len(shared) :]])
    return [row._replace(pages=own) for row, own in zip(case.table_rows(), pages, strict=True)]


@pytest.mark.parametrize("window", [None, 50])
def test_shared_prefixes_change_no_bit(window: int | None) -> None:
    """Forks of forks, rows that only verify, trees and prompts, all over pages of the first row."""
    shape = [
        SeqRow(1200, 1), SeqRow(1040, 1), SeqRow(800, 4), SeqRow(1100, 6, random_tree(6, 4)), SeqRow(600, 30),
        SeqRow(300, 15), SeqRow(1200, 1), SeqRow(20, 1), SeqRow(256, 1),
    ]  # fmt: skip
    at = [(0, 0), (0, 1024), (1, 512), (1, 1040), (0, 592), (0, 256), (0, 768), (0, 16), (0, 256)]
    case = AttentionCase("forks", *TINY, shape, window)
    rows = forked_rows(case, at)
    exactly = exact_shape(rows)
    words = [describe(rows, exactly, cascade=cascade) for cascade in (True, False)]
    assert words[0][0] < words[1][0] - 8, "many items are shared"
    plans = [AttentionPlan(exactly, torch.from_numpy(w).to(DEVICE)) for w in words]
    shared, apart = (run(case, F32, plan) for plan in plans)
    assert not shared.isnan().any()
    assert same_bits(shared, apart)


def test_a_shape_serves_pass_after_pass() -> None:
    """What an earlier pass left in the words must not show; nor must the padding, whose queries are NaN."""
    shape = Shape(rows=5, tokens=24, context=700)
    buffer = np.full(AttentionPlan.size(shape), 0x5A5A5A5A, dtype=np.int32)
    plan = AttentionPlan(shape, torch.zeros(len(buffer), dtype=torch.int32, device=DEVICE))
    passes = [
        AttentionCase("first", *TINY, [SeqRow(600, 1), SeqRow(40, 16), SeqRow(300, 3, random_tree(3, 1))]),
        AttentionCase("second", *TINY, [SeqRow(255, 1), SeqRow(256, 2)], seed=2),
        AttentionCase("third", *TINY, [SeqRow(600, 5, random_tree(5, 7)), *[SeqRow(9, 4)] * 4], seed=3),
    ]
    for case in passes:
        plan.words.copy_(torch.from_numpy(describe(case.table_rows(), shape, buffer)))
        count = len(case.q)
        q = torch.full((24, 2, 32), float("nan"), device=DEVICE)
        q[:count] = as_tensor(case.q, F32).to(DEVICE)
        assert same_bits(run(case, F32, plan, q)[:count], run(case, F32))


def test_padding_is_not_written() -> None:
    """Nothing at all is, where a pass has no rows."""
    shape = Shape(rows=2, tokens=3, context=40)
    plan = AttentionPlan(shape, torch.from_numpy(describe([], shape)).to(DEVICE))
    q = torch.full((3, 2, 32), float("nan"), device=DEVICE)
    case = AttentionCase("any", *TINY, [SeqRow(3, 1)])
    assert attend(q, store_of(case, F32), 1, plan, 1.0, None).shape == (3, 64)


def test_no_rows() -> None:
    store = KvStore(1, 1, 1, 32, F32, DEVICE)
    none, plan = torch.empty(0, 2, 32, device=DEVICE), plan_attention([], DEVICE)
    assert attend(none, store, 0, plan, 1.0, None).shape == (0, 64)


@pytest.mark.parametrize("length", [12, 40])
def test_a_chain_is_a_plain_row(length: int) -> None:
    plain = AttentionCase("plain", *TINY, [SeqRow(250, length)], 30)
    chain = AttentionCase("chain", *TINY, [SeqRow(250, length, range(-1, length - 1))], 30)
    assert same_bits(run(plain, F32), run(chain, F32))


def test_chunks_of_a_prompt_agree() -> None:
    """Keys are folded at fixed positions, so where a long row begins changes no bit (before a compiler fuses steps)."""
    whole = AttentionCase("prompt", *TINY, [SeqRow(0, 300)])
    want = run(whole, F32)
    for start in (60, 280):
        last = AttentionCase("chunk", *TINY, [SeqRow(start, 300 - start)])
        last.q, last.keys, last.values = whole.q[start:], whole.keys, whole.values
        assert same_bits(run(last, F32), want[start:])


def test_q_may_be_a_view() -> None:
    case = CASES["over-splits"]
    wide = torch.full((len(case.q), 4, 32), float("nan"), device=DEVICE)
    wide[:, 1:3] = as_tensor(case.q, F32).to(DEVICE)
    assert same_bits(run(case, F32, q=wide[:, 1:3]), run(case, F32))


# What is on the plan


@st.composite
def row_sets(draw: st.DrawFn) -> list[AttentionRow]:
    """Any rows, some beginning with pages of an earlier one."""
    rows: list[AttentionRow] = []
    fresh = iter(range(10_000))
    for i in range(draw(st.integers(0, 6))):
        start, length = draw(st.integers(0, 1100)), draw(st.sampled_from([1, 1, 1, 2, 5, 16, 17, 300]))
        shared: list[int] = []
        if i and draw(st.booleans()):
            source = rows[draw(st.integers(0, i - 1))]
            shared = list(source.pages)[: min(start, source.start, draw(st.integers(0, 1100))) // PAGE]
        own = [next(fresh) for _ in range(-(-(start + length) // PAGE) - len(shared))]
        tree = random_tree(length, i) if draw(st.booleans()) and length < 20 else None
        rows.append(AttentionRow(start, length, [*shared, *own], tree))
    return rows


@settings(max_examples=150, deadline=None, derandomize=True)
@given(row_sets(), st.booleans(), st.integers(0, 3))
def test_a_plan_covers_each_token_and_key_once(rows: list[AttentionRow], cascade: bool, room: int) -> None:
    least = exact_shape(rows)
    larger = [n + room for n in (least.rows, least.tokens, least.context + 299 * room, least.blocks)]
    shape = Shape(*larger, short=least.short)
    words = describe(rows, shape, np.full(AttentionPlan.size(shape), -7, dtype=np.int32), cascade=cascade)
    plan = AttentionPlan(shape, torch.from_numpy(words))
    items, blocks, members = (int(n) for n in plan.counts[:3])
    seen: dict[int, list[tuple[int, int]]] = {}  # of a token: (position of a split, page of it)
    partials: set[int] = set()
    token_rows = [row for row in rows for _ in range(row.length)]
    firsts = np.repeat(np.cumsum([0] + [row.length for row in rows])[:-1], [row.length for row in rows])
    for begin, count, low, end, table, start, first, _ in plan.items.view(-1, 8)[:items].tolist():
        assert 1 <= count <= SHORT
        assert low < end <= low + SPLIT
        for token in plan.members[begin : begin + count].tolist():
            row = token_rows[token]
            assert end == min(low + SPLIT, row.start + row.length)
            pages = plan.pages[table + low // PAGE : table - (-end // PAGE)].tolist()
            assert pages == list(row.pages)[low // PAGE : -(-end // PAGE)]
            if start == planning.NO_OWN_KEYS:
                assert end <= row.start
            else:
                assert (start, first) == (row.start, firsts[token])
            seen.setdefault(token, []).append((low, end))
            partial = int(plan.partials[token]) + low // SPLIT
            assert partial not in partials
            assert partial < shape.partials
            partials.add(partial)
    for row_index, row in enumerate(rows):
        at = sum(r.length for r in rows[:row_index])
        for i in range(row.length):
            assert plan.keys[at + i] == row.start + i
            last = row.start + row.length
            splits = [(low, min(low + SPLIT, last)) for low in range(0, last, SPLIT)]
            assert sorted(seen.get(at + i, [])) == (splits if row.length <= SHORT else [])
    walked = [token + i for token, count, *_ in plan.blocks.view(-1, 8)[:blocks].tolist() for i in range(count)]
    assert sorted(walked + plan.members[:members].tolist()) == list(range(least.tokens))


@pytest.mark.parametrize("length", [2, 16, 31, 32, 33, 64, 127, 128])
def test_trees_are_bits(length: int) -> None:
    parents = random_tree(length, length)
    ancestors, depth = planning.tree(parents, length)
    want, want_depth = reference_tree(parents, length)
    bits = np.unpackbits(ancestors.view(np.uint8), axis=1, bitorder="little")[:, :length]
    assert (bits == want).all()
    assert (depth == want_depth).all()


def test_rows_of_one_prefix_share_items() -> None:
    pages = list(range(100))
    rows = [AttentionRow(1000 + i, 1, [*pages[:60], *range(200 + 10 * i, 210 + 10 * i)]) for i in range(40)]
    plan = AttentionPlan(shape := exact_shape(rows), torch.from_numpy(describe(rows, shape)))
    # 960 tokens are shared: three whole splits, for 40 tokens in three items each; then each row has its own rest.
    rests = sum(-(-(row.start + 1) // SPLIT) - 3 for row in rows)
    assert int(plan.counts[0]) == 3 * 3 + rests


def test_faults_of_ours_are_refused() -> None:
    for row, words in (
        (AttentionRow(15, 2, [0]), "shorter than the row"),
        (AttentionRow(0, 3, [0], [-1, 2, 0]), "before its child"),
        (AttentionRow(0, 3, [0], [-1, 0]), "3"),
        (AttentionRow(0, 0, [0]), "length=0"),
        (AttentionRow(0, 129, list(range(9)), [-1] * 129), "at most 128"),
    ):
        with pytest.raises(AssertionError, match=words):
            plan_attention([row], DEVICE)
    few = Shape(rows=1, tokens=2, context=16)
    for rows in ([AttentionRow(0, 1, [0])] * 2, [AttentionRow(0, 3, [0])], [AttentionRow(16, 1, [0, 1])]):
        with pytest.raises(AssertionError):
            describe(rows, few)
    with pytest.raises(AssertionError, match="blocks=0"):
        describe([AttentionRow(0, 20, [0, 1])], Shape(rows=1, tokens=20, context=32))
