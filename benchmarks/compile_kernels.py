"""Compiles every Triton kernel for a GPU that is not here, as far as machine code, and prints what each needs.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/compile_kernels.py [--arch 90] [--only WORD]

The interpreter, in which kernels are tested, takes what the compiler refuses. Here the host's code runs on tensors of
the processor, and each launch is a compilation instead: triton's own, and ptxas, which comes with it. Ends with 1 if
anything does not compile or wants more shared memory than the architecture has. Spills are told, and are no fault.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bosquet.kernels.table import AttentionRow, LayerSpec, StackSpec
from bosquet.kernels.triton import linear, philox, quantize, quantize_rows, sampling, tiles, verify
from bosquet.kernels.triton.ops import TritonOps

SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227}
"""Kilobytes of shared memory that one program may have."""

CPU = torch.device("cpu")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


class Driver:
    """Stands for the driver of a GPU of an architecture."""

    launcher_cls = None
    utils = None

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CPU

    def get_device_interface(self) -> Any:
        return torch.cpu

    def is_active(self) -> bool:
        return True

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


class Book:
    """Compiles what is launched, once each, and keeps what does not fit."""

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self.wrong: list[str] = []
        self._seen: set[tuple[str, str]] = set()
        self._launch = JITFunction.run

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> Any:
        began = time.perf_counter()
        compiled = self._launch(kernel, *args, grid=grid, warmup=True, **options)
        key = kernel.__name__, compiled.hash
        if key not in self._seen:
            self._seen.add(key)
            self._tell(kernel.__name__, compiled, time.perf_counter() - began)
        return compiled

    def _tell(self, name: str, compiled: Any, seconds: float) -> None:
        shared = compiled.metadata.shared / 1024
        needs = self._assembled(compiled.asm["ptx"])
        fits = shared <= SHARED[self.arch]
        if not fits:
            self.wrong.append(f"{name}: {shared:.0f} KB of shared memory, there are {SHARED[self.arch]}")
        units = next((unit for unit in ("wgmma", "mma") if unit in compiled.asm["ptx"]), "")
        warps = compiled.metadata.num_warps
        mark = "" if fits else " TOO MUCH"
        print(f"{name:18}{warps:3} warps{shared:8.1f} KB{mark} {units:6}{needs:44}{seconds:6.1f} s", flush=True)

    def _assembled(self, ptx: str) -> str:
        """Registers and spills, as ptxas counts them."""
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(ptx)
            file.flush()
            name = f"sm_{self.arch}{'a' if self.arch >= 90 else ''}"
            command = [get_ptxas(self.arch).path, "-v", f"--gpu-name={name}", file.name, "-o", "/dev/null"]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        registers = re.search(r"Used (\d+) registers", said)
        spilled = re.search(r"(\d+) bytes spill stores", said)
        count = int(spilled[1]) if spilled else 0
        return f"{registers[1] if registers else '?':>4} registers" + (f", spills {count} bytes" if count else "")


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def passes(storage: str, head_dim: int, window: int | None, kv: torch.dtype, norms: bool = False) -> None:
    """A decode, a tree to verify and a prefill through one layer, and the head."""
    ops = TritonOps(CPU, storage)
    heads, kv_heads, width, inner = 8, 2, 1024, 2048
    layer = LayerSpec(
        qkv=ops.pack_linear(zeros((heads + 2 * kv_heads) * head_dim, width, dtype=BF16)),
        q_norm=zeros(head_dim, dtype=BF16) if norms else None,
        k_norm=zeros(head_dim, dtype=BF16) if norms else None,
        out=ops.pack_linear(zeros(width, heads * head_dim, dtype=BF16)),
        out_norm=None,
        mlp_norm=zeros(width, dtype=BF16),
        gate_up=ops.pack_linear(zeros(2 * inner, width, dtype=BF16)),
        down=ops.pack_linear(zeros(width, inner, dtype=BF16)),
        down_norm=None,
        next_norm=zeros(width, dtype=BF16),
        cos=zeros(1024, head_dim // 2),
        sin=zeros(1024, head_dim // 2),
        window=window,
    )
    embedding = ops.pack_embedding(zeros(512, width, dtype=BF16))
    stack = ops.stack(
        StackSpec([layer], heads, kv_heads, head_dim, "silu", embedding, 1.0, zeros(width, dtype=BF16), 1e-5, 0.1)
    )
    store = ops.make_kv(1, kv_heads, 80, head_dim, kv)
    for lengths in ([1] * 3, [5] * 9, [300, 1]):
        rows = [
            AttentionRow(20, n, range(20 * i, 20 * i + 20), [-1, *range(n - 1)] if n == 5 else None)
            for i, n in enumerate(lengths)
        ]
        rows = [row._replace(pages=range(20)) for row in rows]
        tokens = zeros(sum(lengths), dtype=torch.int64)
        hidden = stack(tokens, tokens, tokens, ops.plan_attention(rows, CPU), store)
        ops.head(hidden, ops.as_head(embedding))
    store.copy_pages([(1, 2, 5)])


def experts(storage: str) -> None:
    ops = TritonOps(CPU, storage)
    shape = [zeros(512, 1024, dtype=BF16)] * 8, [zeros(1024, 256, dtype=BF16)] * 8
    packed = ops.pack_experts(*shape)
    for tokens in (1, 300):
        ops.experts(zeros(tokens, 1024, dtype=BF16), zeros(tokens, 8, dtype=BF16), packed, 2, True)


def invariant() -> None:
    ops = TritonOps(CPU, "bfloat16", invariant=True)
    for tokens in (1, 100):
        ops.linear(zeros(tokens, 1024, dtype=BF16), ops.pack_linear(zeros(512, 1024, dtype=BF16)))


def blocks_of_fp8() -> None:
    packed = quantize.pack(zeros(512, 1024, dtype=BF16), None, "fp8_block")
    for tokens in (1, 300):
        linear.linear(quantize_rows.quantize(zeros(tokens, 1024, dtype=BF16), "fp8", blocks=True), packed)


def draws() -> None:
    ops, n, width = TritonOps(CPU), 4, 128_256
    ints, wide, odd = zeros(n, dtype=torch.int32), zeros(n, dtype=torch.int64), zeros(n, dtype=torch.float64)
    for u in (odd, philox.Counters(wide, ints, wide, 0)):
        rows = sampling.DrawRows(ints, zeros(n), ints, odd, odd, u, ints, zeros(n, width // 32, dtype=torch.int32))
        sampling.propose(zeros(n, width), rows)
        sampling.propose(zeros(n, width), rows._replace(bits=None))
    ops.apply_mask(zeros(n, width), zeros(2, width // 32, dtype=torch.int32), zeros(2, dtype=torch.int64))
    ops.gelu_mul(zeros(3, 2048, dtype=BF16))
    ops.rms_norm(zeros(8, 4, 128, dtype=BF16), zeros(128, dtype=BF16), 1e-6)
    verify.accept(wide, wide, ints, 5)
    verify.accept_tree(wide, wide, wide, ints, ints, 63)
    verify.accept_random(zeros(n, width), zeros(n, width), wide, odd, odd, ints, 5)


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    for storage in ("bfloat16", "int8", "int4", "fp8"):
        yield f"layer {storage}", partial(passes, storage, 128, None, BF16)
        yield f"experts {storage}", partial(experts, storage)
    for dim in (64, 96, 256):
        yield f"heads of {dim}", partial(passes, "bfloat16", dim, None, BF16, norms=True)
    yield "window", lambda: passes("bfloat16", 128, 64, BF16)
    yield "fp8 cache", lambda: passes("bfloat16", 128, None, FP8)
    yield "invariant", invariant
    yield "blocks of fp8", blocks_of_fp8
    yield "draws", draws


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, default=90, choices=SHARED)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args()
    book = Book(options.arch)
    driver.set_active(Driver(options.arch))
    JITFunction.run = lambda kernel, *args, **kwargs: book.run(kernel, *args, **kwargs)  # noqa: PLW0108 - binds
    tiles.architecture = lambda device: f"sm{options.arch}"  # type: ignore[assignment]
    chosen = [(name, work) for name, work in cases() if options.only in name]
    if not chosen:
        parser.error(f"--only {options.only}: there are {', '.join(name for name, _ in cases())}")
    for name, work in chosen:
        if "fp8" in name and options.arch < 89:
            print(f"-- {name}: not on sm{options.arch}")
            continue
        print(f"-- {name}", flush=True)
        try:
            work()
        except Exception:
            book.wrong.append(f"{name}: {traceback.format_exc(limit=-3)}")
            print("   FAILED", flush=True)
    for fault in book.wrong:
        print(fault)
    print(f"sm{options.arch}: {len(chosen)} cases, {len(book.wrong)} wrong")
    return bool(book.wrong)


if __name__ == "__main__":
    sys.exit(main())
