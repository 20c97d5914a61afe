"""Weights are taken from one file or many, checked, converted, and let go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, PagedRun, Piece, expected_logits, make_config, make_model, open_model, save

from bosquet.errors import ModelLoadError
from bosquet.kernels.registry import load_ops
from bosquet.runtime.models.export import export
from bosquet.runtime.models.registry import load_model
from bosquet.runtime.models.source import open_folder

IDS = torch.randint(VOCABULARY, (30,), generator=torch.Generator().manual_seed(8)).tolist()


def logits(folder: Path) -> torch.Tensor:
    return PagedRun(open_model(folder), 1, 30).run([Piece(0, IDS)])[0]


def test_shards_give_the_same_model(tmp_path: Path) -> None:
    reference = make_model(make_config("llama"))
    reference.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    assert torch.equal(logits(tmp_path / "sharded"), logits(save(reference, tmp_path / "whole")))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_converted(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = save(make_model(make_config("llama")).to(dtype), tmp_path / "model")
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(logits(folder), expected_logits(reference, IDS), atol=1e-4, rtol=1e-4)


def test_a_checkpoint_that_stores_the_tied_head_too(tmp_path: Path) -> None:
    reference = make_model(make_config("llama", tie_word_embeddings=True))
    folder = save(reference, tmp_path / "model")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)  # old checkpoints have these
    save_file(tensors, path)
    torch.testing.assert_close(logits(folder), expected_logits(reference, IDS), atol=1e-4, rtol=1e-4)


def test_progress_counts_up_to_the_end(tmp_path: Path) -> None:
    folder = save(make_model(make_config("qwen3")), tmp_path / "model")
    seen: list[tuple[str, int, int]] = []
    opened = open_folder(folder, "tiny")
    load_model(opened, torch.float32, load_ops("reference"), lambda *step: seen.append(step))
    assert {what for what, _, _ in seen} == {"Loading tiny"}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1] == seen[-1][2] == (folder / "model.safetensors").stat().st_size


def test_nothing_refers_to_the_files_once_loaded(tmp_path: Path) -> None:
    """A mapped file that is overwritten would change the weights of a running model, or end the process."""
    folder = save(make_model(make_config("llama")), tmp_path / "model")
    model = open_model(folder)
    assert str(folder) not in Path("/proc/self/maps").read_text()
    want = PagedRun(model, 1, 30).run([Piece(0, IDS)])[0]
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(PagedRun(model, 1, 30).run([Piece(0, IDS)])[0], want)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def garbage(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY" + bytes(5000))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def without(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        tensors = load_file(path)
        del tensors[name]
        save_file(tensors, path)

    return change


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        save_file({**load_file(path), name: tensor}, path)

    return change


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (cut, "truncated or damaged safetensors file"),
        (garbage, "truncated or damaged safetensors file"),
        (empty, "truncated or damaged safetensors file"),
        (without("model.norm.weight"), "tensor 'model.norm.weight' is missing"),
        (without("lm_head.weight"), "tensor 'lm_head.weight' is missing"),
        (
            with_tensor("model.layers.1.mlp.up_proj.weight", torch.zeros(64, 96)),
            "'model.layers.1.mlp.up_proj.weight' has the shape [64, 96]; expected [96, 64]",
        ),
        (
            with_tensor("model.layers.0.self_attn.q_proj.weight", torch.zeros(64, 64, dtype=torch.int8)),
            "has the type I8, which is not supported; expected BF16, F16, F32, F64",
        ),
        (with_tensor("model.layers.0.self_attn.gate.weight", torch.zeros(1)), "is not part of a llama model"),
        (with_tensor("model.layers.0.self_attn.q_norm.weight", torch.zeros(16)), "is not part of a llama model"),
    ],
)
def test_damaged_weights_are_one_line(damage: Callable[[Path], None], expected: str, tmp_path: Path) -> None:
    folder = save(make_model(make_config("llama")), tmp_path / "model")
    damage(folder / "model.safetensors")
    with pytest.raises(ModelLoadError) as error:
        open_model(folder)
    assert expected in str(error.value)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shard", ["60KB", "1GB"])
def test_export_writes_a_folder_in_bfloat16_that_transformers_reads(shard: str, tmp_path: Path) -> None:
    reference = make_model(make_config("qwen3"))
    reference.save_pretrained(tmp_path / "model", max_shard_size=shard)
    (tmp_path / "model" / "tokenizer.json").write_text('{"a": 1}')
    steps: list[Any] = []
    made = export(str(tmp_path / "model"), tmp_path / "out", lambda *step: steps.append(step))
    assert {path.name for path in made.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip
    config = json.loads((made / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    read, info = transformers.AutoModelForCausalLM.from_pretrained(made, dtype="auto", output_loading_info=True)
    assert not any(info.values())
    assert read.dtype == torch.bfloat16
    want = reference.to(torch.bfloat16).state_dict()
    assert all(torch.equal(tensor, want[name]) for name, tensor in read.state_dict().items())
    assert steps[-1][1] == steps[-1][2]
    torch.testing.assert_close(logits(made), expected_logits(read.float(), IDS), atol=1e-4, rtol=1e-4)
