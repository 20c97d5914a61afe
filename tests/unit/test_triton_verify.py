"""Verification of drafts on the device: chains and trees against plain Python, rejection sampling against the host's
and against the target's distribution."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from op_cases import random_tree
from triton_device import DEVICE

from bosquet.kernels.triton import tiles
from bosquet.kernels.triton.tiles import Tile
from bosquet.kernels.triton.verify import accept, accept_random, accept_tree, settle
from bosquet.runtime.rejection import settle as host_settle


def int64(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def test_chains_stand_up_to_the_first_difference() -> None:
    drafted = [5, 6, 7, -1, -1, 3, 3, -1, 8, 9, -1, 4, -1]
    sampled = [5, 6, 1, 2, -1, 3, 3, 3, 9, 9, 4, -1, 7]
    got = accept(int64(sampled), int64(drafted), int32([0, 4, -1, 5, 8, 11]), 3)
    assert got.counts.tolist() == [2, 0, 0, 2, 0, 0]
    assert got.tokens.tolist() == [1, -1, -1, 3, 9, -1]


def test_many_random_chains() -> None:
    rng = np.random.default_rng(0)
    drafted, sampled, first, counts, tokens = [], [], [], [], []
    for _ in range(40):
        length = int(rng.integers(0, 8))
        draft, drawn = rng.integers(0, 2, length).tolist(), rng.integers(0, 2, length + 1).tolist()
        first.append(len(drafted))
        counts.append(next((i for i in range(length) if draft[i] != drawn[i]), length))
        tokens.append(drawn[counts[-1]])
        drafted += [*draft, -1]
        sampled += drawn
    got = accept(int64(sampled), int64(drafted), int32(first), 7)
    assert (got.counts.tolist(), got.tokens.tolist()) == (counts, tokens)


def deepest_path(sampled: list[int], tokens: list[int], parents: list[int]) -> list[int]:
    """The accepted nodes below the root, one after the other."""
    best: list[int] = []
    for node in range(len(tokens)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        if path[0] == 0 and all(tokens[b] == sampled[a] for a, b in pairwise(path)):
            best = max(best, path[1:], key=len)
    return best


def test_trees_give_the_longest_path_that_was_drawn() -> None:
    rng = np.random.default_rng(4)
    sampled, tokens, parents, first, lengths, paths = [], [], [], [], [], []
    for length in [0, 1, 2, 5, 9, 20, 33, 33, 33]:
        tree = [-1, *(max(parent, 0) for parent in random_tree(length + 1, length + len(paths))[1:])]
        drawn = rng.integers(0, 2, length + 1).tolist()
        own = [drawn[max(parent, 0)] ^ int(rng.random() < 0.25) for parent in tree]
        first.append(len(tokens))
        lengths.append(length)
        paths.append(deepest_path(drawn, own, tree))
        tokens, parents, sampled = tokens + own, parents + tree, sampled + drawn
    assert max(map(len, paths)) > 4
    wanted = [sampled[start + (path[-1] if path else 0)] for start, path in zip(first, paths, strict=True)]
    got = accept_tree(int64(sampled), int64(tokens), int32(parents), int32([*first, -1]), int32([*lengths, 3]), 33)
    assert got.counts.tolist() == [*map(len, paths), 0]
    assert got.tokens.tolist() == [*wanted, -1]
    assert got.paths.tolist() == [path + [-1] * (33 - len(path)) for path in [*paths, []]]


def distributions(rng: np.random.Generator, rows: int, width: int) -> torch.Tensor:
    values = torch.from_numpy(rng.normal(0, 2, (rows, width))).float().softmax(-1)
    values[:, ::3] = 0
    return (values / values.sum(-1, keepdim=True)).to(DEVICE)


@pytest.mark.parametrize("width", [24, 150])
def test_settle_is_the_hosts(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setitem(tiles.TILES, "settle", {"any": Tile(64, 64, 16)})
    rng, n = np.random.default_rng(width), 150
    target, draft = distributions(rng, n, width), distributions(rng, n, width)
    draft[:5] = target[:5]  # all stand
    draft[5:10] = target[5:10] * (1 + 2.0**-20)  # none stands for a number near 1, and no residual is left
    guesses = torch.multinomial(draft, 1, generator=torch.Generator(DEVICE).manual_seed(0))[:, 0]
    stands, instead = (torch.from_numpy(rng.random(n)).to(DEVICE) for _ in range(2))
    stands[:10] = 1 - 2.0**-53
    got = settle(target, draft, guesses, stands, instead)
    want = host_settle(target, draft, guesses, stands, instead)
    assert torch.equal(got, want)
    stood = got == guesses
    assert bool(stood[:5].all())
    assert not bool(stood[5:10].all())
    assert 0.2 < float(stood.double().mean()) < 0.9


def test_without_a_guess_the_target_is_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiles.TILES, "settle", {"any": Tile(8, 32, 16)})
    target = torch.zeros(4, 40, device=DEVICE)
    target[0, [7, 30]] = torch.tensor([0.25, 0.75], device=DEVICE)
    target[1] = target[0]
    target[3, 39] = 1
    draft = torch.zeros(4, 40, device=DEVICE)
    draft[:, 30] = 1  # is not looked at
    numbers = torch.tensor([0.2, 0.3, 0.5, 1 - 2.0**-53], dtype=torch.float64, device=DEVICE)
    got = settle(target, draft, int64([-1] * 4), numbers, numbers)
    assert got.tolist() == [7, 30, -1, 39], "a row of zeros allows nothing"


def test_what_a_draft_model_proposes_leaves_the_targets_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of two places, each with a distribution of its own: both are drawn right, whatever was guessed."""
    monkeypatch.setitem(tiles.TILES, "settle", {"any": Tile(1024, 32, 16)})
    monkeypatch.setitem(tiles.TILES, "accept", {"any": Tile(1024, 1, 1)})
    rng, windows, width = np.random.default_rng(2), 3000, 24
    target, draft = distributions(rng, 2, width), distributions(rng, 2, width)
    drafted = torch.full((windows, 2), -1, device=DEVICE)
    drafted[:, 0] = torch.multinomial(draft[0], windows, True, generator=torch.Generator(DEVICE).manual_seed(0))
    stands, instead = (torch.from_numpy(rng.random(2 * windows)).to(DEVICE) for _ in range(2))
    first = torch.arange(0, 2 * windows, 2, dtype=torch.int32, device=DEVICE)
    got = accept_random(
        target.repeat(windows, 1), draft.repeat(windows, 1), drafted.view(-1), stands, instead, first, 1
    )
    stood = got.counts == 1
    share = float(torch.minimum(target[0], draft[0]).sum())
    assert float(stood.double().mean()) == pytest.approx(share, abs=0.04)
    for drawn, want in ((torch.where(stood, drafted[:, 0], got.tokens), target[0]), (got.tokens[stood], target[1])):
        counts = np.bincount(drawn.cpu(), minlength=width)
        expected = want.cpu().double().numpy() * len(drawn)
        assert not counts[expected == 0].any()
        used = expected > 0
        degrees = int(used.sum()) - 1
        chi_square = float(((counts - expected)[used] ** 2 / expected[used]).sum())
        assert chi_square < degrees + 5 * math.sqrt(2 * degrees) + 5
