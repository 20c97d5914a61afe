"""What one pass of a model costs beside what the machine allows, without server or scheduler.

    python benchmarks/forward.py [--rounds N] [--kv NAME] [--threads N] [--json FILE]

Prints the speed at which memory is read; the time of a decode step for several numbers of rows, with its share of that
speed; prefill; how a step grows with the context; forks of one prefix, with and without the cascade; and what a decode
step and a prefill chunk spend their time on. All cases run in turn in each round; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bosquet.kernels.cpu.library import default_threads
from bosquet.kernels.cpu.ops import CpuOps
from bosquet.kernels.table import PAGE, AttentionRow
from bosquet.runtime.bench.machine import facts
from bosquet.runtime.models.base import Batch, Model
from bosquet.runtime.models.registry import load_model
from bosquet.runtime.models.source import resolve

KV = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
ROWS = (1, 2, 4, 8, 16, 32, 64)
PROMPTS = (512, 4096)
SHORT, LONG, FORKED, FORKS = 500, 8000, 4000, 8
WORTH_NAMING = 0.03  # of a step's time

Case = Callable[[], object]


class Bench:
    """The embedded model with a pool of its own, and passes over it."""

    def __init__(self, kv: torch.dtype, threads: int, cascade: bool = True) -> None:
        self.ops = CpuOps(threads, cascade=cascade)
        folder = resolve("embedded", dtype="stored")
        self.model: Model = load_model(folder, torch.float32, self.ops, stored=True)
        shape = self.model.shape
        self.pages = (LONG + 64) // PAGE + max(ROWS) * (SHORT // PAGE + 2)
        self.kv = self.ops.make_kv(shape.layers, shape.kv_heads, self.pages, shape.head_dim, kv)
        self.token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * kv.itemsize

    def run(self, rows: Sequence[AttentionRow], *, head: bool = True) -> None:
        """One pass; the head on the last token of each row."""
        positions = torch.cat([torch.arange(row.start, row.start + row.length) for row in rows])
        pages = [torch.tensor(row.pages)[torch.arange(row.start, row.start + row.length) // PAGE] for row in rows]
        slots = torch.cat(pages) * PAGE + positions % PAGE
        tokens = positions * 31 % self.model.shape.vocab_size
        plan = self.ops.plan_attention(rows, torch.device("cpu"))
        hidden = self.model.forward(Batch(tokens, positions, slots, plan), self.kv)
        if head:
            last = torch.tensor([row.length for row in rows]).cumsum(0) - 1
            self.model.logits(hidden[last])

    def decode(self, rows: int, context: int) -> list[AttentionRow]:
        each = context // PAGE + 1
        return [AttentionRow(context, 1, range(i * each, (i + 1) * each)) for i in range(rows)]

    def forks(self, rows: int, prefix: int) -> list[AttentionRow]:
        """Rows that share all pages of a prefix and have one of their own."""
        shared = range(prefix // PAGE)
        return [AttentionRow(prefix, 1, [*shared, prefix // PAGE + i]) for i in range(rows)]

    def prompt(self, length: int) -> list[AttentionRow]:
        return [AttentionRow(0, length, range((length + PAGE - 1) // PAGE))]


def in_turn(cases: dict[str, Case], rounds: int) -> dict[str, float]:
    """Median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    for _ in range(rounds):
        for name, case in cases.items():
            begin = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - begin)
    return {name: median(each) for name, each in seconds.items()}


def reading(threads: int) -> float:
    """Bytes a second that `threads` threads read from memory: the best of several, since this is a limit."""
    memory = torch.zeros(2**28, dtype=torch.int32).add_(1)
    torch.set_num_threads(threads)
    best = min(in_turn({"read": memory.amax}, 1)["read"] for _ in range(9))
    torch.set_num_threads(1)
    return memory.nbytes / best


def stages(bench: Bench, rows: Sequence[AttentionRow], rounds: int) -> dict[str, float]:
    """Seconds of each stage of a pass, and of what is around it."""
    before, begin = bench.model.profile(), time.perf_counter()
    for _ in range(rounds):
        bench.run(rows, head=False)
    middle, after = time.perf_counter(), bench.model.profile()
    for _ in range(rounds):
        bench.run(rows)
    whole = (time.perf_counter() - middle) / rounds
    found = {stage: (after[stage] - before[stage]) / rounds for stage in after}
    found["plan and binding"] = (middle - begin) / rounds - sum(found.values())
    found["head"] = whole - (middle - begin) / rounds
    return found


def measure(kv: torch.dtype, threads: int, rounds: int) -> dict[str, Any]:
    bench, plain = Bench(kv, threads), Bench(kv, threads, cascade=False)
    speed = reading(threads)
    cases: dict[str, Case] = {
        **{f"decode {n}": partial(bench.run, bench.decode(n, 200)) for n in ROWS},
        "decode 1 short": lambda: bench.run(bench.decode(1, SHORT)),
        "decode 1 long": lambda: bench.run(bench.decode(1, LONG)),
        f"decode {FORKS} short": lambda: bench.run(bench.decode(FORKS, SHORT)),
        "forks": lambda: bench.run(bench.forks(FORKS, FORKED)),
        "forks, no cascade": lambda: plain.run(plain.forks(FORKS, FORKED)),
    }
    seconds = in_turn(cases, rounds)
    prompts: dict[str, Case] = {f"prefill {n}": partial(bench.run, bench.prompt(n)) for n in PROMPTS}
    seconds |= in_turn(prompts, max(3, rounds // 5))
    file = resolve("embedded", dtype="stored").gguf
    assert file is not None
    return {
        "machine": facts(),
        "read_bytes_per_second": speed,
        "weight_bytes": file.stat().st_size,
        "token_bytes": bench.token_bytes,
        "seconds": seconds,
        "attention": {
            f"{FORKS} short": stages(bench, bench.decode(FORKS, SHORT), rounds)["attention"],
            "forks": stages(bench, bench.forks(FORKS, FORKED), rounds)["attention"],
            "forks, no cascade": stages(plain, plain.forks(FORKS, FORKED), rounds)["attention"],
        },
        "stages": {
            "decode 1": stages(bench, bench.decode(1, 200), rounds),
            "decode 32": stages(bench, bench.decode(32, 200), rounds),
            "prefill 512": stages(bench, bench.prompt(512), 3),
        },
    }


def report(found: dict[str, Any]) -> str:
    seconds, speed, attention = found["seconds"], found["read_bytes_per_second"], found["attention"]
    lines = [
        f"memory is read at {speed / 1e9:.1f} GB/s",
        "",
        "| rows | ms | tok/s | bytes read, MB | share of reading |",
    ]
    lines.append("|---:|" + "---:|" * 4)
    for n in ROWS:
        took = seconds[f"decode {n}"]
        moved = found["weight_bytes"] + n * 200 * found["token_bytes"]
        lines.append(f"| {n} | {took * 1e3:.1f} | {n / took:.0f} | {moved / 1e6:.0f} | {moved / took / speed:.0%} |")
    lines.append("")
    for n in PROMPTS:
        took = seconds[f"prefill {n}"]
        lines.append(f"prefill of {n:,} tokens: {took:.2f} s, {n / took:,.0f} tok/s")
    extra = seconds["decode 1 long"] - seconds["decode 1 short"]
    least = (LONG - SHORT) * found["token_bytes"] / speed
    lines.append(
        f"a token at {LONG:,} of context: {extra * 1e3:.1f} ms more than at {SHORT}, "
        f"{extra / least:.2f} times the reading"
    )
    forks, short = seconds["forks"], seconds[f"decode {FORKS} short"]
    saved = attention["forks, no cascade"] / attention["forks"]
    lines.append(
        f"{FORKS} forks of {FORKED:,} tokens: {forks / short:.2f} times a step of {FORKS} short rows "
        f"({forks * 1e3:.1f} and {short * 1e3:.1f} ms); attention {saved:.1f} times cheaper than without the cascade"
    )
    for name, each in found["stages"].items():
        total = sum(each.values())
        named = [(stage, took) for stage, took in each.items() if took >= WORTH_NAMING * total]
        named.sort(key=lambda item: -item[1])
        parts = ", ".join(f"{stage} {took / total:.0%}" for stage, took in named)
        rest = 1 - sum(took for _, took in named) / total
        lines.append(f"{name} ({total * 1e3:.1f} ms): {parts}; the rest {rest:.0%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--kv", choices=KV, default="bfloat16")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the pool computes
    with torch.inference_mode():
        found = measure(KV[options.kv], options.threads, options.rounds)
    print(report(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
