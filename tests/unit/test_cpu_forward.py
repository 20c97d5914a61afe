"""The decoder that runs in one native call, against the same operations one by one, and against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_gguf import BLOCKS, base_metadata, file_tensors, plain_llama, write_gguf
from tiny_models import VOCABULARY, PagedRun, Piece, make_config, make_model, save
from torch import Tensor
from torch.nn import functional

from bosquet.errors import ModelLoadError
from bosquet.kernels.cpu.library import usable
from bosquet.kernels.cpu.linear import Storage
from bosquet.kernels.cpu.ops import CpuOps
from bosquet.kernels.reference.linear import PackedLinear
from bosquet.kernels.reference.ops import ReferenceOps
from bosquet.kernels.stack import OpStack
from bosquet.kernels.table import AttentionRow, Ops, Stack, StackSpec
from bosquet.runtime.models.base import Batch, Model, ModelShape
from bosquet.runtime.models.registry import load_model
from bosquet.runtime.models.source import ModelFolder, open_folder, resolve

pytestmark = pytest.mark.skipif(not usable(), reason="no native library for this processor")

STORAGES: tuple[Storage, ...] = ("float32", "bfloat16", "int8", "int4")
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama narrow": ("llama", {"intermediate_size": 88, "head_dim": 10}),  # gate and up share a panel
    "qwen3": ("qwen3", {"head_dim": 24}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 9,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
}  # fmt: skip


class KeepingOps(CpuOps):
    """Keeps what the stack was made from, so that it can be run operation by operation as well."""

    spec: StackSpec

    def stack(self, spec: StackSpec) -> Stack:
        self.spec = spec
        return super().stack(spec)


class States:
    """A stack in a model's place. Its logits are the hidden states."""

    def __init__(self, shape: ModelShape, ops: Ops, stack: Stack) -> None:
        self.shape, self.ops, self.dtype, self.stack = shape, ops, torch.float32, stack

    def forward(self, batch: Batch, kv: Any) -> Tensor:
        return self.stack(batch.tokens, batch.positions, batch.slots, batch.attention, kv)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class RoundingOps(ReferenceOps):
    """The reference, but what meets a weight is first rounded as native kernels round it: 32 at a time to int8."""

    def linear(self, x: Tensor, weight: PackedLinear) -> Tensor:
        return super().linear(rounded(x), weight)

    def head(self, x: Tensor, weight: PackedLinear) -> Tensor:
        return super().head(rounded(x), weight)


def rounded(x: Tensor) -> Tensor:
    parts = functional.pad(x, (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    most = parts.abs().amax(2, keepdim=True)
    whole = (parts * torch.where(most > 0, 127 / most, 0.0)).round()
    return (whole * (most / 127)).view(len(x), -1)[:, : x.shape[1]]


def tokens(length: int, seed: int, below: int = VOCABULARY) -> list[int]:
    return torch.randint(below, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


SEQUENCES = [tokens(75, 1), tokens(23, 2), *(tokens(4, seed) for seed in range(3, 33))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFolder]:
    root = tmp_path_factory.mktemp("models")
    found = {}
    for name, (family, settings) in FAMILIES.items():
        path = save(make_model(make_config(family, **settings)), root / name.replace(" ", "-"))
        found[name] = open_folder(path, path.name)
    return found


def states(folder: ModelFolder, ops: KeepingOps, stored: bool = False) -> States:
    shape = load_model(folder, torch.float32, ops, stored=stored).shape
    return States(shape, ops, ops.stack(ops.spec))


def new_run(model: Model, kv: torch.dtype = torch.float32) -> PagedRun:
    run, shape = PagedRun(model, len(SEQUENCES), 75), model.shape
    run.kv = model.ops.make_kv(shape.layers, shape.kv_heads, sum(map(len, run.pages)), shape.head_dim, kv)
    return run


def whole(model: Model, kv: torch.dtype = torch.float32) -> list[Tensor]:
    """What every sequence gives in one pass."""
    return new_run(model, kv).run([Piece(i, ids) for i, ids in enumerate(SEQUENCES)])


def distances(got: list[Tensor], want: list[Tensor]) -> Tensor:
    """Of each token, relative to its state's length."""
    a, b = torch.cat(got).double(), torch.cat(want).double()
    return (a - b).norm(dim=1) / b.norm(dim=1)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_one_call_is_the_operations_one_by_one(name: str, storage: Storage, folders: dict[str, ModelFolder]) -> None:
    ops = KeepingOps(2, storage)
    fused = states(folders[name], ops)
    apart = States(fused.shape, ops, OpStack(ops, ops.spec))
    found = distances(whole(fused), whole(apart))
    if storage in ("float32", "bfloat16"):
        assert found.max() < 1e-5
    else:  # float32 rounding may now and then turn an activation to the next of 255 steps; its sequence then differs
        assert found.median() < 2e-6
        assert found.max() < 0.05


@pytest.mark.parametrize("kv", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_bits_depend_on_nothing_but_the_tokens(
    name: str, storage: Storage, kv: torch.dtype, folders: dict[str, ModelFolder]
) -> None:
    want: list[Tensor] | None = None
    for isa in usable():
        for threads in (1, 2, 3):
            model = states(folders[name], KeepingOps(threads, storage, isa))
            together = whole(model, kv)
            want = together if want is None else want
            assert all(map(torch.equal, together, want)), (isa, threads)
            alone = [new_run(model, kv).run([Piece(i, ids)])[0] for i, ids in enumerate(SEQUENCES[:3])]
            assert all(map(torch.equal, alone, want)), (isa, threads)
            assert all(map(torch.equal, in_pieces(model, kv), want)), (isa, threads)
    assert want is not None
    assert not torch.equal(want[2], want[3])


def in_pieces(model: Model, kv: torch.dtype) -> list[Tensor]:
    """The first two sequences in chunks of all sorts of lengths, beside one another and others, then token by token."""
    run = new_run(model, kv)
    long, short = SEQUENCES[:2]
    first = run.run([Piece(1, short[:1]), Piece(0, long[:17]), Piece(5, SEQUENCES[5])])
    second = run.run([Piece(0, long[17:18]), Piece(1, short[1:20])])
    third = run.run([Piece(0, long[18:70])])
    found = [[first[1], second[0], third[0]], [first[0], second[1]]]
    for i in range(5):
        pieces = [Piece(0, long[70 + i : 71 + i])] + ([Piece(1, short[20 + i : 21 + i])] if i < 3 else [])
        for index, state in enumerate(run.run(pieces)):
            found[index].append(state)
    return [torch.cat(parts) for parts in found]


def write_model(path: Path, kind: str, others: dict[str, str] | None = None) -> Path:
    """A GGUF file of two layers whose logits depend on every one of its weights."""
    config, state = plain_llama(
        num_hidden_layers=2, intermediate_size=512, vocab_size=VOCABULARY, max_position_embeddings=128
    )
    for name, value in state.items():
        if value.ndim == 2 and "embed" not in name:
            value *= value.shape[-1] ** -0.5
        elif kind.endswith("_K") and "layernorm" in name:
            value *= 0.05  # the random blocks of these types are large numbers
    tensors = file_tensors(state, "llama", 4, 2)
    return write_gguf(path, "llama", base_metadata("llama", config), tensors, kind, others)


def logits_of(folder: ModelFolder, ops: Ops, stored: bool) -> list[Tensor]:
    return whole(load_model(folder, torch.float32, ops, stored=stored))


MIXED = {  # as llama.cpp's own mixtures: values and the second projection of some layers in more bits
    "blk.0.attn_v.weight": "Q6_K",
    "blk.0.ffn_down.weight": "Q6_K",
    "blk.1.attn_k.weight": "Q5_K",
    "blk.1.attn_output.weight": "Q5_0",
    "token_embd.weight": "Q8_0",
}
GATES = {"blk.0.ffn_gate.weight": "Q5_K", "blk.1.ffn_gate.weight": "Q5_K"}  # gate and up apart
ONE_GATE = {"blk.1.ffn_gate.weight": "Q5_K"}  # in one layer gate and up are two products, in the others one
FILES = {
    **{kind: (kind, {}) for kind in BLOCKS},
    "mixed": ("Q4_K", MIXED),
    "gates": ("Q4_K", {**MIXED, **GATES}),
    "one gate": ("Q4_K", ONE_GATE),
}


@pytest.mark.parametrize("name", FILES)
def test_a_gguf_file_as_it_lies_is_the_dequantized_folder(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", *FILES[name])
    as_it_lies = resolve(str(path), cache_dir=tmp_path / "cache", dtype="stored")
    assert as_it_lies.gguf == path
    assert as_it_lies.weights == ()
    dequantized = resolve(str(path), cache_dir=tmp_path / "cache", dtype="float32")
    assert dequantized.gguf is None
    exact = logits_of(dequantized, ReferenceOps(), stored=False)
    got = logits_of(as_it_lies, CpuOps(2), stored=True)
    if name in ("F32", "F16", "BF16"):
        assert distances(got, exact).max() < 1e-5
        return
    found = distances(got, exact)
    assert found.median() < 0.05
    assert found.max() < 0.25
    rounding = logits_of(dequantized, RoundingOps(), stored=False)  # the same, but for single steps of an activation
    assert distances(got, rounding).median() < 0.1 * found.median()


def test_a_projection_of_several_block_types_runs_as_one(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", "Q4_K", {**MIXED, **GATES})
    ops = KeepingOps(2)
    fused = states(resolve(str(path), cache_dir=tmp_path / "cache", dtype="stored"), ops, stored=True)
    assert [len(layer.qkv.parts) for layer in ops.spec.layers] == [2, 3]
    assert [len(layer.gate_up.parts) for layer in ops.spec.layers] == [2, 2]
    found = distances(whole(fused), whole(States(fused.shape, ops, OpStack(ops, ops.spec))))
    assert found.median() < 2e-6
    assert found.max() < 0.05
    assert all(map(torch.equal, in_pieces(fused, torch.int8), whole(fused, torch.int8)))


def test_native_kernels_ask_for_the_file_and_keep_its_bytes(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", "Q4_1")
    ops = KeepingOps(1)
    states(resolve(str(path), cache_dir=tmp_path / "cache", dtype="stored"), ops, stored=True)
    sizes = [(layer.qkv.nbytes, layer.down.nbytes) for layer in ops.spec.layers]
    assert sizes == [(512 * 256 * 20 // 32, 256 * 512 * 20 // 32)] * 2
    assert list((tmp_path / "cache" / "converted").rglob("*.safetensors")) == []


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**40])
def test_a_token_outside_the_vocabulary_is_refused(token: int, folders: dict[str, ModelFolder]) -> None:
    model = states(folders["qwen3"], KeepingOps(1, "int8"))
    with pytest.raises(AssertionError, match="a token outside the vocabulary"):
        new_run(model).run([Piece(0, [3, token])])


def test_a_pass_of_no_tokens_gives_none(folders: dict[str, ModelFolder]) -> None:
    model = states(folders["qwen3"], KeepingOps(2, "int8"))
    nothing = torch.zeros(0, dtype=torch.int64)
    plan = model.ops.plan_attention([], torch.device("cpu"))
    kv = new_run(model).kv
    assert model.forward(Batch(nothing, nothing, nothing, plan), kv).shape == (0, 64)


def test_what_does_not_fit_the_pass_is_refused(folders: dict[str, ModelFolder]) -> None:
    model = states(folders["qwen3"], KeepingOps(1, "int8"))
    ids, places = torch.tensor([3, 4]), torch.arange(2)
    for kv, rows in (
        (model.ops.make_kv(3, 2, 4, 24, torch.float32), [AttentionRow(0, 1, [0])]),  # fewer tokens than there are
        (model.ops.make_kv(3, 2, 4, 24, torch.float32), [AttentionRow(0, 2, [4])]),  # no such page
        (model.ops.make_kv(2, 2, 4, 24, torch.float32), [AttentionRow(0, 2, [0])]),  # a layer is missing
    ):
        plan = model.ops.plan_attention(rows, torch.device("cpu"))
        with pytest.raises(AssertionError):
            model.forward(Batch(ids, places, places, plan), kv)


@pytest.mark.parametrize("found_before", [False, True], ids=["never whole", "cut after it was found"])
def test_a_truncated_file_gives_one_line(found_before: bool, tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", "Q4_K", MIXED)
    folder = resolve(str(path), cache_dir=tmp_path / "cache", dtype="stored") if found_before else None
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelLoadError, match=r"truncated GGUF file: tensor '[\w.]+' ends at byte [\d,]+") as error:
        load_model(
            folder or resolve(str(path), cache_dir=tmp_path / "cache", dtype="stored"),
            torch.float32, CpuOps(1), stored=True,
        )  # fmt: skip
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
