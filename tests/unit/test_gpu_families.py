"""Every family on Triton's kernels, in the interpreter, computes what transformers computes, and fewer bits lose what
they must."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from by_path import module_at
from packed_weights import unpacked
from tiny_models import PagedRun, Piece, expected_logits, make_config, make_model, open_model, save

from bosquet.kernels.registry import interpreted, load_ops
from bosquet.kernels.triton.quantize import pack

families = module_at(Path(__file__).with_name("test_model_families.py"), "model_families")

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is here: tests/device runs these kernels on it")

NAMES = ["llama3 rope", "mistral window", "qwen2", "qwen3 bias", "qwen3 experts in some layers", "gemma3 softcap"]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """A long row, a short one that goes on from the cache, and one of a single token, together."""
    family, settings, _ = families.CASES[name]
    settings = {**settings, "num_hidden_layers": len(settings.get("layer_types", "ab"))}
    reference = make_model(make_config(family, **settings))
    ours = open_model(save(reference, tmp_path / "model"), ops=load_ops("triton", storage="float32"))
    sequences = [families.tokens(length, length) for length in (19, 13, 18)]
    want = [expected_logits(reference, ids) for ids in sequences]
    run = PagedRun(ours, 3, 19)
    first = run.run([Piece(1, sequences[1][:9]), Piece(2, sequences[2][:17])])
    rest = run.run([Piece(0, sequences[0]), Piece(1, sequences[1][9:]), Piece(2, sequences[2][17:])])
    got = [rest[0], torch.cat([first[0], rest[1]]), torch.cat([first[1], rest[2]])]
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("storage", ["int8", "int4"])
def test_fewer_bits_are_another_model_and_that_is_computed_exactly(storage: str, tmp_path: Path) -> None:
    """transformers with the weights that the packed ones stand for: what they lose is theirs, not the kernels'."""
    reference = make_model(make_config("llama", num_hidden_layers=2))
    ours = open_model(save(reference, tmp_path / "model"), ops=load_ops("triton", storage=storage))
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                kind = "int8" if "lm_head" in name else storage
                parameter.copy_(torch.from_numpy(unpacked(pack(parameter, None, kind))))
    ids = families.tokens(18, 5)
    run = PagedRun(ours, 1, 18)
    got = torch.cat([run.run([Piece(0, ids[:17])])[0], run.run([Piece(0, ids[17:])])[0]])
    torch.testing.assert_close(got, expected_logits(reference, ids), atol=3e-4, rtol=3e-4)


def test_eight_bits_for_weights_and_inputs_keep_most_of_it(tmp_path: Path) -> None:
    """fp8 also rounds what layers read, each row by its own largest; of a number up to 1/16 is lost."""
    reference = make_model(make_config("llama", num_hidden_layers=2))
    ours = open_model(save(reference, tmp_path / "model"), ops=load_ops("triton", storage="fp8"))
    ids = families.tokens(18, 5)
    want = expected_logits(reference, ids)
    run = PagedRun(ours, 1, 18)
    got = torch.cat([run.run([Piece(0, ids[:17])])[0], run.run([Piece(0, ids[17:])])[0]])
    assert 0.01 < float((got - want).norm() / want.norm()) < 0.25
