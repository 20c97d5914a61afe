"""Every family computes what transformers computes, in one go, in chunks and token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import SIZES, VOCABULARY, PagedRun, Piece, expected_logits, make_config, make_model, open_model, save

from bosquet.errors import ModelLoadError
from bosquet.kernels.registry import known_ops, load_ops
from bosquet.kernels.table import Masks

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
GEMMA_PLAIN_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000000.0},
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {
    "query_pre_attn_scalar": 24,
    "sliding_window": 9,
    "layer_types": KINDS,
    "rope_parameters": GEMMA_ROPE,
    "head_dim": 24,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True}

# name → (family, settings, settings that switch the feature off, to show that it matters here)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {"rms_norm_eps": 1.0}),
    "llama tied": ("llama", {"tie_word_embeddings": True}, {"rope_parameters": LINEAR}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {"rope_parameters": LINEAR}),
    "llama wide heads": ("llama", {"head_dim": 32}, {"rope_parameters": LINEAR}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}, {"rope_parameters": None}),
    "linear rope": ("llama", {"rope_parameters": LINEAR}, {"rope_parameters": None}),
    "mistral": ("mistral", {"sliding_window": None}, {"sliding_window": 8}),
    "mistral window": ("mistral", {"sliding_window": 11}, {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}, {"rms_norm_eps": 1.0}),
    "qwen2 window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        {"use_sliding_window": False},
    ),
    "qwen3": ("qwen3", {"head_dim": 24}, {"rms_norm_eps": 1.0}),
    "qwen3 bias": ("qwen3", {"attention_bias": True}, {"rms_norm_eps": 1.0}),
    "qwen3 experts": ("qwen3_moe", EXPERTS, {"num_experts_per_tok": 2}),
    "qwen3 experts whose shares are not one": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": False}, EXPERTS),
    "qwen3 experts in some layers": ("qwen3_moe", {**EXPERTS, "decoder_sparse_step": 2}, {"decoder_sparse_step": 1}),
    "qwen3 experts but in one layer": ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1]}, {"mlp_only_layers": []}),
    "qwen3 experts window": (
        "qwen3_moe",
        {**EXPERTS, "use_sliding_window": True, "sliding_window": 9, "attention_bias": True},
        {"use_sliding_window": False},
    ),
    "gemma3": ("gemma3_text", GEMMA, {"query_pre_attn_scalar": 16}),
    "gemma3 window": ("gemma3_text", GEMMA, {"sliding_window": 100}),
    "gemma3 ropes": ("gemma3_text", GEMMA, {"rope_parameters": GEMMA_PLAIN_ROPE}),
    "gemma3 softcap": ("gemma3_text", {**GEMMA, "final_logit_softcapping": 2.0}, {"final_logit_softcapping": None}),
}


def tokens(length: int, seed: int) -> list[int]:
    return torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("kernels", known_ops())
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, kernels: str, tmp_path: Path) -> None:
    family, settings, off = CASES[name]
    reference = make_model(make_config(family, **settings))
    ours = open_model(save(reference, tmp_path / "model"), ops=load_ops(kernels, storage="float32"))
    long, short = tokens(41, 1), tokens(23, 2)
    want = [expected_logits(reference, ids) for ids in (long, short)]

    without = make_model(make_config(family, **{**settings, **off}))
    assert (expected_logits(without, long) - want[0]).abs().max() > 1e-2  # else this case would test nothing

    whole = PagedRun(ours, 2, 41)
    got = whole.run([Piece(0, long), Piece(1, short)])
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)

    chunked = PagedRun(ours, 2, 41)
    first = chunked.run([Piece(0, long[:19]), Piece(1, short[:5])])
    second = chunked.run([Piece(1, short[5:]), Piece(0, long[19:])])
    torch.testing.assert_close(torch.cat([first[0], second[1]]), want[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cat([first[1], second[0]]), want[1], atol=1e-4, rtol=1e-4)

    stepped = PagedRun(ours, 2, 41)
    stepped.run([Piece(0, long[:30]), Piece(1, short[:12])])
    for i in range(6):
        step = stepped.run([Piece(0, [long[30 + i]]), Piece(1, [short[12 + i]])])
        torch.testing.assert_close(step[0][0], want[0][30 + i], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(step[1][0], want[1][12 + i], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kernels", known_ops())
@pytest.mark.parametrize("name", ["llama", "gemma3 softcap"])
def test_what_a_mask_forbids_is_minus_infinity_and_the_rest_as_without_it(
    name: str, kernels: str, tmp_path: Path
) -> None:
    family, settings, _ = CASES[name]
    model = open_model(save(make_model(make_config(family, **settings)), tmp_path / "model"), ops=load_ops(kernels))
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    want = model.logits(hidden).clone()
    masks = Masks(torch.tensor([[1 << 7, 0, 0], [0, -1, 5]], dtype=torch.int32), torch.tensor([2, 0]))
    want[2, [token for token in range(VOCABULARY) if token != 7]] = -torch.inf
    want[0, [*range(32), 65, *range(67, VOCABULARY)]] = -torch.inf
    assert torch.equal(model.logits(hidden, masks), want)


@pytest.mark.skipif("native" not in known_ops(), reason="no native library for this processor")
@pytest.mark.parametrize("tied", [False, True])
def test_a_head_has_eight_bits_where_other_matrices_have_four(tied: bool, tmp_path: Path) -> None:
    reference = make_model(make_config("llama", tie_word_embeddings=tied))
    model = open_model(save(reference, tmp_path / "model"), ops=load_ops("native", storage="int4"))
    hidden = torch.randn(9, 64, generator=torch.Generator().manual_seed(4))
    want = hidden.double() @ reference.lm_head.weight.detach().double().T
    assert 0.001 < (model.logits(hidden).double() - want).norm() / want.norm() < 0.012  # four bits would lose 0.07


def test_shape_says_the_sizes_and_end_tokens(tmp_path: Path) -> None:
    shape = open_model(save(make_model(make_config("qwen3", head_dim=24)), tmp_path / "model")).shape
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (3, 64, 4, 2, 24)
    assert (shape.vocab_size, shape.context_length, shape.end_ids) == (VOCABULARY, 256, (2,))


@pytest.mark.parametrize("start", ["language_model.model.", "model.language_model."])
def test_gemma3_with_vision_runs_its_language_part(start: str, tmp_path: Path) -> None:
    text = {**SIZES, **GEMMA}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    reference = transformers.Gemma3ForConditionalGeneration(config).eval()
    folder = save(reference, tmp_path / "model")
    if start == "model.language_model.":
        rename_tensors(folder / "model.safetensors", "language_model.model.", start)
    ids = tokens(30, 3)
    got = PagedRun(open_model(folder), 1, 30).run([Piece(0, ids)])[0]
    torch.testing.assert_close(got, expected_logits(reference, ids), atol=1e-4, rtol=1e-4)


def rename_tensors(path: Path, old: str, new: str) -> None:
    tensors = load_file(path)
    assert any(name.startswith(old) for name in tensors)
    renamed = {new + n.removeprefix(old) if n.startswith(old) else n: tensor for n, tensor in tensors.items()}
    save_file(renamed, path, {"format": "pt"})


def test_experts_of_one_tensor_are_those_of_many(tmp_path: Path) -> None:
    """A layer's experts in two tensors, as transformers 5 holds them, and their number under its published name."""
    reference = make_model(make_config("qwen3_moe", **EXPERTS))
    folder = save(reference, tmp_path / "model")
    path = folder / "model.safetensors"
    apart = {name: tensor for name, tensor in load_file(path).items() if ".experts." in name}
    assert len(apart) == 3 * 3 * 8  # layers, matrices, experts: what is saved is what checkpoints have
    rest = {name: tensor for name, tensor in load_file(path).items() if name not in apart}
    fused = {name: value.detach().clone() for name, value in reference.named_parameters() if ".experts." in name}
    assert len(fused) == 3 * 2
    save_file({**rest, **fused}, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts")
    (folder / "config.json").write_text(json.dumps(config))
    ids = tokens(20, 6)
    got = PagedRun(open_model(folder), 1, 20).run([Piece(0, ids)])[0]
    torch.testing.assert_close(got, expected_logits(reference, ids), atol=1e-4, rtol=1e-4)


def refusal(folder: Path, change: dict[str, Any]) -> str:
    """What is said of a model whose configuration has been changed."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelLoadError) as error:
        open_model(folder)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_experts_per_tok": 9}, "'num_experts_per_tok' is 9; expected an integer from 1 to 8"),
        ({"num_local_experts": 7}, "tensor 'model.layers.0.mlp.gate.weight' has the shape [8, 64]; expected [7, 64]"),
        ({"moe_intermediate_size": 41}, "has the shape [40, 64]; expected [41, 64]"),
        ({"mlp_only_layers": [0]}, "tensor 'model.layers.0.mlp.gate_proj.weight' is missing"),
        ({"mlp_only_layers": "all"}, "'mlp_only_layers' is 'all'; expected numbers of layers"),
        ({"norm_topk_prob": 1}, "'norm_topk_prob' is 1; expected true or false"),
        ({"decoder_sparse_step": 0}, "'decoder_sparse_step' is 0"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; expected 'silu'"),
    ],
)
def test_experts_that_do_not_fit_are_refused_in_one_line(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = save(make_model(make_config("qwen3_moe", **EXPERTS, num_hidden_layers=1)), tmp_path / "model")
    said = refusal(folder, change)
    assert expected in said
    assert "\n" not in said


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_old_config_form_gives_the_same_logits(family: str, tmp_path: Path) -> None:
    """`rope_theta`, `rope_scaling` and `rope_local_base_freq` beside each other, as in published checkpoints."""
    settings = {"rope_parameters": LLAMA3} if family == "llama" else GEMMA
    reference = make_model(make_config(family, **settings))
    folder = save(reference, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    if family == "llama":
        config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    else:
        config |= {"rope_theta": 1000000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
        config |= {"rope_local_base_freq": 100.0}
    (folder / "config.json").write_text(json.dumps(config))
    ids = tokens(40, 4)
    got = PagedRun(open_model(folder), 1, 40).run([Piece(0, ids)])[0]
    torch.testing.assert_close(got, expected_logits(reference, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_bfloat16_stays_close(family: str, tmp_path: Path) -> None:
    """The same model in bfloat16 is as close to float32 as transformers' own bfloat16 is, within half as much again."""
    reference = make_model(make_config(family, **(GEMMA if family == "gemma3_text" else {})))
    ours = open_model(save(reference, tmp_path / "model"), torch.bfloat16)
    ids = tokens(40, 5)
    exact = expected_logits(reference, ids)
    theirs = expected_logits(reference.to(torch.bfloat16), ids)
    mine = PagedRun(ours, 1, 40).run([Piece(0, ids)])[0]
    assert mine.dtype == torch.float32
    assert (mine - exact).norm() < 1.5 * (theirs - exact).norm()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "mamba"}, "unknown model_type 'mamba'; known: gemma3, gemma3_text, llama"),
        ({"architectures": ["LlamaForTokenClassification"]}, "unknown architecture ['LlamaForTokenClassification']"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "low_freq_factor"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "full rotation",
        ),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; expected 'silu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'quantization_config'"),
        ({"residual_multiplier": 0.2}, "'residual_multiplier' is 0.2"),
        ({"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping'"),
        ({"num_hidden_layers": None}, "'num_hidden_layers' is None"),
        ({"hidden_size": "wide"}, "'hidden_size' is 'wide'"),
        ({"num_key_value_heads": 3}, "do not fit"),
        ({"attention_bias": True}, "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"),
        ({"num_hidden_layers": 2}, "tensor 'model.layers.2.input_layernorm.weight' is not part of"),
        ({"num_hidden_layers": 4}, "tensor 'model.layers.3.input_layernorm.weight' is missing"),
        ({"intermediate_size": 95}, "has the shape [96, 64]; expected [95, 64]"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = save(make_model(make_config("llama")), tmp_path / "model")
    said = refusal(folder, change)
    assert expected in said
    assert "\n" not in said
    assert str(folder) in said
