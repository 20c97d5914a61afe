"""A speculator computes what its docstring says, whatever the kernels, and refuses what is not made for its target."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bosquet.errors import ModelLoadError
from bosquet.kernels.registry import known_ops, load_ops
from bosquet.speculative.speculator import CONFIG, EPS, FORMAT, WEIGHTS, Speculator, Target, shapes

TOKENS, HIDDEN, INNER, WIDTH = 70, 64, 96, 200
TARGET = Target.of([bytes([i]) for i in range(WIDTH)], HIDDEN)


def write(folder: Path, seed: int = 0) -> Path:
    random = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(shape, generator=random) * shape[-1] ** -0.5
        for name, shape in shapes(TOKENS, HIDDEN, INNER).items()
    }
    weights["scale"] = weights["scale"].abs() + 0.5
    weights["embedding"] *= HIDDEN**0.5
    weights["head"] *= 3
    weights["ids"] = torch.arange(TOKENS) * 2 + 5
    save_file(weights, folder / WEIGHTS)
    config = {"format": FORMAT, "target": {"name": "t", **TARGET._asdict()}, "tokens": TOKENS, "inner": INNER}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def forward(weights: dict[str, np.ndarray], r: np.ndarray, token: int) -> tuple[np.ndarray, np.ndarray]:
    """One row, one number at a time where it matters, in float64."""
    ids = weights["ids"].tolist()
    e = weights["embedding"][ids.index(token) if token in ids else len(ids)]
    mixed = [math.fsum(row * np.concatenate([r, e])) for row in weights["mix"]]
    a, b, c = mixed[:INNER], mixed[INNER : 2 * INNER], mixed[2 * INNER :]
    gated = np.array([x / (1 + math.exp(-x)) * y for x, y in zip(a, b, strict=True)])
    y = np.array([math.fsum(row * gated) for row in weights["down"]]) + c
    r = y / math.sqrt(math.fsum(y * y) / HIDDEN + EPS)
    return r, np.array([math.fsum(row * r) for row in weights["head"]])


@pytest.mark.parametrize("kernels", known_ops())
def test_steps_are_those_of_a_plain_forward_in_float64(kernels: str, tmp_path: Path) -> None:
    speculator = Speculator.load(write(tmp_path), TARGET, load_ops(kernels))
    weights = {name: tensor.double().numpy() for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    weights["ids"] = weights["ids"].astype(np.int64)
    assert speculator.ids.tolist() == weights["ids"].tolist()
    random = np.random.default_rng(1)
    hidden = random.normal(size=(3, HIDDEN)).astype(np.float32) * weights["scale"]
    tokens = [5, 6, 143]  # the first, one that is rare, the last
    states = [h.astype(np.float32).astype(np.float64) / weights["scale"] for h in hidden]
    expected = [forward(weights, r, token) for r, token in zip(states, tokens, strict=True)]
    state, logits = speculator.begin(torch.from_numpy(hidden.astype(np.float32)), tokens)
    near(logits, [z for _, z in expected], kernels)
    for which, tokens in (([2, 0, 1], [7, 9, 15]), ([1, 2], [7, 8]), ([1], [11]), ([0], [0])):
        expected = [forward(weights, expected[i][0], token) for i, token in zip(which, tokens, strict=True)]
        state, logits = speculator.step(state, which, tokens)
        near(logits, [z for _, z in expected], kernels)


def near(logits: torch.Tensor, expected: list[np.ndarray], kernels: str) -> None:
    """Eight bits for weights and activations: a hundredth of the spread; else bfloat16's rounding of embeddings."""
    wanted = np.stack(expected)
    assert logits.shape == wanted.shape
    assert logits.dtype == torch.float32
    error = np.abs(logits.numpy() - wanted).max() / wanted.std()
    assert error < (0.08 if kernels == "native" else 0.02), error


def test_rows_do_not_affect_each_other(tmp_path: Path) -> None:
    speculator = Speculator.load(write(tmp_path), TARGET)
    hidden = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(3))
    _, together = speculator.begin(hidden, [5, 7, 8, 9])
    for i, token in enumerate([5, 7, 8, 9]):
        _, alone = speculator.begin(hidden[i : i + 1], [token])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-5, atol=1e-5)


def test_a_folder_for_another_target_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    assert Speculator.load(tmp_path, TARGET).ids.shape == (TOKENS,)
    other = Target.of([bytes([i]) for i in reversed(range(WIDTH))], HIDDEN)
    with pytest.raises(ModelLoadError, match="another vocabulary"):
        Speculator.load(tmp_path, other)
    with pytest.raises(ModelLoadError, match="hidden states of 64 numbers, and the model's have 32"):
        Speculator.load(tmp_path, TARGET._replace(hidden=32))


def test_where_tokens_end_is_part_of_a_vocabulary() -> None:
    assert Target.of([b"ab", b"c"], 8) != Target.of([b"a", b"bc"], 8)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (CONFIG, None, "no draft can be read here"),
        (CONFIG, b"{", "no draft can be read here"),
        (CONFIG, b"[]", "damaged"),
        (CONFIG, b'{"format": "bosquet-speculator-0"}', "not a draft of this version"),
        (CONFIG, json.dumps({"format": FORMAT, "target": {}}).encode(), "damaged"),
        (
            CONFIG,
            json.dumps({"format": FORMAT, "target": {"hidden": HIDDEN}, "tokens": TOKENS, "inner": 8}).encode(),
            "damaged",
        ),
        (WEIGHTS, None, "no draft can be read here"),
        (WEIGHTS, b"no tensors", "no draft can be read here"),
    ],
)
def test_what_is_no_draft_is_refused_in_one_line(file: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    write(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelLoadError, match=said) as error:
        Speculator.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("down", lambda tensor: tensor.masked_fill(tensor == tensor.max(), torch.nan), "down holds what is no number"),
        ("head", lambda tensor: tensor * torch.inf, "head holds what is no number"),
        ("ids", lambda tensor: tensor * 0 - 5, "do not rise"),
        ("ids", lambda tensor: tensor.flip(0), "do not rise"),
    ],
)
def test_damaged_weights_are_refused(name: str, damage: Any, said: str, tmp_path: Path) -> None:
    write(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    save_file({**weights, name: damage(weights[name]).contiguous()}, tmp_path / WEIGHTS)
    with pytest.raises(ModelLoadError, match=said):
        Speculator.load(tmp_path)


def test_weights_of_other_shapes_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    save_file({**weights, "down": weights["down"][:, :-1].contiguous()}, tmp_path / WEIGHTS)
    with pytest.raises(ModelLoadError, match="promises"):
        Speculator.load(tmp_path)
