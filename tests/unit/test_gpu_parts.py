"""What the GPU's runner is made of and needs no GPU: shapes, inputs, memory, and what is refused with which words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bosquet.errors import ConfigError
from bosquet.runtime.gpu import choose
from bosquet.runtime.gpu.buckets import FIRST_CONTEXT, SIZES, Bucket, bucket, nearest
from bosquet.runtime.gpu.inputs import NO_SLOT, pack, size, views
from bosquet.runtime.gpu.memory import tokens_that_fit
from bosquet.runtime.precision import resolve_precision
from bosquet.runtime.runner import lay_out
from bosquet.runtime.settings import EngineConfig, resolve
from bosquet.types import Row

CUDA = torch.device("cuda", 0)


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 40_000), st.integers(0, 100_000))
def test_a_bucket_holds_its_pass_and_wastes_at_most_half(rows: int, more: int, context: int, beyond: int) -> None:
    tokens, longest = rows + more, context + beyond
    found = bucket(rows, tokens, context, longest)
    if tokens > SIZES[-1]:
        assert found is None
        return
    assert found is not None
    assert found.holds(Bucket(rows, tokens, context))
    assert found.tokens <= max(2, 2 * tokens - 1)
    assert found.rows <= found.tokens
    assert found.context <= max(FIRST_CONTEXT, 2 * context - 1)
    assert found.context <= longest
    assert bucket(*found, longest) == found, "a shape is its own"


def test_the_nearest_is_the_cheapest_that_holds() -> None:
    held = [Bucket(1, 1, 4096), Bucket(8, 8, 1024), Bucket(4, 8, 2048), Bucket(16, 16, 1024)]
    assert nearest(Bucket(1, 1, 1024), held) == Bucket(1, 1, 4096)
    assert nearest(Bucket(2, 2, 1024), held) == Bucket(8, 8, 1024)
    assert nearest(Bucket(2, 2, 2048), held) == Bucket(4, 8, 2048)
    assert nearest(Bucket(5, 5, 2048), held) is None


def test_inputs_arrive_as_they_were_packed() -> None:
    rows = [Row((5, 6, 7), 15, (3, 9), (0, 2)), Row((-2,), 40, (1, 2, 4), (0,))]
    layout, words = lay_out(rows, None), np.arange(10, dtype=np.int32)
    packed = pack(layout, 8, 6, words)
    assert len(packed) == size(8, 6, 10)
    inputs = views(torch.from_numpy(packed), 8, 6)
    assert inputs.tokens.tolist() == [5, 6, 7, -2, 0, 0, 0, 0]
    assert inputs.positions.tolist() == [15, 16, 17, 40, 0, 0, 0, 0]
    assert inputs.slots.tolist() == [3 * 16 + 15, 9 * 16, 9 * 16 + 1, 4 * 16 + 8] + [NO_SLOT] * 4
    assert inputs.wanted.tolist() == [0, 2, 3, 0, 0, 0]
    assert inputs.words.tolist() == list(range(10))


def test_what_fits_is_what_is_left() -> None:
    free, peak, graphs, token = 100_000_000_000, 4_000_000_000, 1_000_000_000, 131_072
    assert tokens_that_fit(free, peak, graphs, token) == (92_000_000_000 - 5_000_000_000) // 131_072
    with pytest.raises(ConfigError, match=r"too little memory: 5,000 MB are free .* a pass takes 4,000 MB"):
        tokens_that_fit(5_000_000_000, peak, graphs, token)


def test_a_device_takes_all_that_fits_unless_it_is_told_less() -> None:
    kept = {"model_context": 8192, "kv_bytes_per_token": 1000, "device_tokens": 500_000}
    assert resolve(EngineConfig(), **kept).cache_tokens == 500_000
    assert resolve(EngineConfig(cache_tokens=9000), **kept).cache_tokens == 8992
    with pytest.raises(ConfigError, match="from 32 to 500000"):
        resolve(EngineConfig(cache_tokens=600_000), **kept)


def machine(monkeypatch: pytest.MonkeyPatch, *, built: bool, found: bool, capability: tuple[int, int] = (9, 0)) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Test GPU")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_a_gpu_is_taken_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, built=True, found=True)
    assert choose.choose_device("auto") == choose.choose_device("cuda") == CUDA
    assert choose.choose_device("cpu").type == "cpu"


@pytest.mark.parametrize(
    ("built", "found", "capability", "said"),
    [
        (False, False, (9, 0), "built without CUDA"),
        (True, False, (9, 0), "no NVIDIA driver is running"),
        (True, True, (7, 5), r"Test GPU has compute capability 7\.5; the kernels need 8\.0"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_said_why(
    built: bool, found: bool, capability: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, built=built, found=found, capability=capability)
    monkeypatch.setattr(choose.Path, "exists", lambda _: False)
    assert choose.choose_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match=f"device is cuda; .*{said}"):
        choose.choose_device("cuda")


def test_a_driver_that_torch_cannot_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, built=True, found=False)
    monkeypatch.setattr(choose.Path, "exists", lambda _: True)
    with pytest.raises(ConfigError, match="too old"):
        choose.choose_device("cuda")


def test_precision_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, built=True, found=True)
    plain = resolve_precision(EngineConfig(), CUDA)
    assert (plain.kernels, plain.weights) == ("triton", "bfloat16")
    assert plain.compute == plain.kv == torch.bfloat16
    small = resolve_precision(EngineConfig(dtype="int4", kv_dtype="fp8"), CUDA)
    assert (small.weights, small.compute, small.kv) == ("int4", torch.bfloat16, torch.float8_e4m3fn)
    wide = resolve_precision(EngineConfig(dtype="float32"), CUDA)
    assert (wide.compute, wide.kv, wide.files) == (torch.float32, torch.float32, "float32")


@pytest.mark.parametrize(
    ("config", "device", "said"),
    [
        (EngineConfig(kernels="native"), CUDA, "give --device cpu"),
        (EngineConfig(cpus="0"), CUDA, "no threads to pin"),
        (EngineConfig(kv_dtype="int8"), CUDA, "kv_dtype is int8"),
        (EngineConfig(dtype="fp8"), torch.device("cpu"), "dtype is fp8, which only a GPU"),
        (EngineConfig(kv_dtype="fp8"), torch.device("cpu"), "kv_dtype is fp8, which only a GPU"),
        (EngineConfig(batch_invariant=True), torch.device("cpu"), "batch_invariant is for GPUs"),
    ],
)
def test_what_a_device_cannot_do_is_refused(config: EngineConfig, device: torch.device, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve_precision(config, device)


def test_fp8_needs_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, built=True, found=True, capability=(8, 0))
    with pytest.raises(ConfigError, match=r"fp8 needs compute capability 8\.9; this GPU has 8\.0"):
        resolve_precision(EngineConfig(kv_dtype="fp8"), CUDA)


def test_triton_without_a_gpu_is_for_tests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ConfigError, match="kernels triton need a GPU"):
        resolve_precision(EngineConfig(kernels="triton"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert resolve_precision(EngineConfig(kernels="triton")).kv == torch.float32
    for narrow in (EngineConfig(kernels="triton", dtype="int4"), EngineConfig(kernels="triton", kv_dtype="bfloat16")):
        with pytest.raises(ConfigError, match="right in float32 only"):
            resolve_precision(narrow)
