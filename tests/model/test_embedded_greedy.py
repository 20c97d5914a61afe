"""The embedded model in float32 says, token for token, what transformers says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import PagedRun, Piece, load

from bosquet.kernels.registry import known_ops, load_ops
from bosquet.runtime.models.base import Model
from bosquet.runtime.models.source import ModelFolder, resolve

pytestmark = pytest.mark.alone
STORED = Path(__file__).parents[1] / "data" / "embedded_greedy.json"  # made by the script beside it
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return resolve("embedded", dtype="float32")


@pytest.fixture(scope="module", params=known_ops())
def model(folder: ModelFolder, request: pytest.FixtureRequest) -> Model:
    """With native kernels too the weights are in float32 here, so that the oracle's tokens are the right ones."""
    return load(folder, ops=load_ops(request.param, storage="float32"))


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    stored: list[dict[str, Any]] = json.loads(STORED.read_text())["cases"]
    return stored


def greedy(model: Model, prompts: list[list[int]], count: int) -> list[list[int]]:
    """All prompts in one batch, each in pages of its own."""
    run = PagedRun(model, len(prompts), max(map(len, prompts)) + count)
    outputs: list[list[int]] = [[] for _ in prompts]
    logits = run.run([Piece(i, ids) for i, ids in enumerate(prompts)], last_only=True)
    for _ in range(count - 1):
        for output, row in zip(outputs, logits, strict=True):
            output.append(int(row[-1].argmax()))
        logits = run.run([Piece(i, [output[-1]]) for i, output in enumerate(outputs)], last_only=True)
    for output, row in zip(outputs, logits, strict=True):
        output.append(int(row[-1].argmax()))
    return outputs


def test_twenty_prompts_give_the_stored_tokens(model: Model, cases: list[dict[str, Any]]) -> None:
    """transformers read the GGUF file itself and ran each prompt alone; ours run as one batch, with other padding."""
    assert len(cases) == 20
    assert all(len(case["output"]) == NEW_TOKENS for case in cases)
    assert greedy(model, [case["prompt"] for case in cases], NEW_TOKENS) == [case["output"] for case in cases]


def test_two_prompts_against_transformers_as_installed(
    folder: ModelFolder, model: Model, cases: list[dict[str, Any]]
) -> None:
    """The stored tokens are not taken on trust: the oracle runs here too, on the converted folder."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32).eval()
    for case in (cases[0], cases[-1]):
        ids = torch.tensor([case["prompt"]])
        made = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        expected = made[0, ids.shape[1] :].tolist()
        assert expected == case["output"][:24]
        assert greedy(model, [case["prompt"]], 24) == [expected]
        with torch.no_grad():
            want = reference(made).logits[0]
        got = PagedRun(model, 1, made.shape[1]).run([Piece(0, made[0].tolist())])[0]
        torch.testing.assert_close(got, want, atol=2e-3, rtol=1e-4)  # 30 layers, logits up to about 30


def test_shape_of_the_embedded_model(model: Model) -> None:
    shape = model.shape
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (30, 576, 9, 3, 64)
    assert (shape.vocab_size, shape.context_length) == (49152, 8192)
    assert shape.end_ids == (2,)
