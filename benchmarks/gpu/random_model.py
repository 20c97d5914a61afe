"""Models of random weights, made where they run: the families' own loading code, on tensors drawn when asked for.

Also pages and keys for passes of any context without a prefill: the cache is filled with noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bosquet.kernels.registry import load_ops
from bosquet.kernels.table import Ops
from bosquet.kernels.triton.ops import TritonOps
from bosquet.runtime.gpu.port import Port
from bosquet.runtime.gpu.runner import GpuRunner
from bosquet.runtime.models import llama
from bosquet.runtime.models.decoder import Decoder
from bosquet.runtime.models.source import ModelFolder
from bosquet.types import PAGE

from .bed import Bed
from .floors import Sizes

Make = Callable[[str, Sequence[int]], Tensor]
"""A tensor by name and shape."""

CONTEXT = 33_792  # 32k, and a little to go on


class Drawn:
    """Stands for `runtime.models.weights.Weights`."""

    def __init__(self, make: Make, ops: Ops, dtype: torch.dtype) -> None:
        self.ops = ops
        self.dtype = dtype
        self._make = make

    def __contains__(self, name: str) -> bool:
        return False

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        return self._make(name, shape).to(dtype or self.dtype)

    def matrix(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._make(name, shape).to(self.dtype)

    def linear(self, names: Sequence[str], outs: Sequence[int], width: int, bias: bool = False) -> Any:
        assert not bias, names
        parts = [self.matrix(f"{name}.weight", (out, width)) for name, out in zip(names, outs, strict=True)]
        return self.ops.pack_linear(torch.cat(parts))

    def table(self, name: str, rows: int, width: int) -> Any:
        return self.ops.pack_embedding(self.matrix(name, (rows, width)))

    def finish(self) -> None:
        """Nothing is left over."""


def drawn(bed: Bed, seed: int = 0) -> Make:
    """Weights of the size that keeps activations of unit size; every tensor's numbers are its own."""
    numbers = iter(range(seed, seed + 10_000))

    def make(name: str, shape: Sequence[int]) -> Tensor:
        noise = bed.noise(*shape, seed=next(numbers))
        if len(shape) == 1:
            return 1 + noise * 0.1
        return noise if "embed" in name else noise * shape[1] ** -0.5

    return make


def config_of(sizes: Sizes, context: int) -> dict[str, Any]:
    """As a file config.json has it."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
        "hidden_act": "silu",
    }


def model_of(bed: Bed, sizes: Sizes, storage: Any, make: Make | None = None, context: int = CONTEXT) -> Decoder:
    """A Llama of these sizes with its matrices in `storage`."""
    ops = load_ops("triton", storage=storage, device=bed.device)
    folder = ModelFolder(Path("random"), "random", config_of(sizes, context), {}, ())
    with torch.inference_mode():
        return llama.load(folder, Drawn(make or drawn(bed), ops, torch.bfloat16))  # type: ignore[arg-type]


def runner_of(
    bed: Bed, model: Decoder, tokens: int, *, port: Port | None = None, kv: torch.dtype = torch.bfloat16,
    graphs: bool = True, noisy: bool = True,
) -> GpuRunner:  # fmt: skip
    """A runner with room for so many tokens of cache."""
    pages = -(-tokens // PAGE) + 1
    runner = GpuRunner(
        model, pages, port or bed.port(), model.shape.context_length, kv_dtype=kv, graph_bytes=graphs << 32
    )
    if noisy:
        fill(bed, runner)
    return runner


def fill(bed: Bed, runner: GpuRunner) -> None:
    """Noise for keys and values, a layer at a time."""
    store = runner._kv
    for layer in store.layers:
        if layer.dtype == torch.bfloat16:
            layer.normal_()
        else:
            for part in layer.flatten(0, 1).split(1024):
                part.copy_(torch.randn(part.shape, dtype=torch.bfloat16, device=bed.device))


def dealt(runner: GpuRunner, rows: int, context: int, seed: int = 0) -> list[list[int]]:
    """Shuffled pages for rows of so many tokens, each page once."""
    each = -(-context // PAGE)
    order = np.random.default_rng(seed).permutation(runner.pages)
    assert rows * each <= len(order), (rows, context, runner.pages)
    return [order[i * each : (i + 1) * each].tolist() for i in range(rows)]


def triton_ops(model: Decoder) -> TritonOps:
    assert isinstance(model.ops, TritonOps)
    return model.ops
