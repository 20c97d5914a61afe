"""Triton's compiler, and not only its interpreter, takes the kernels: a layer and the draws, for an H100 or H200.
`benchmarks/compile_kernels.py` compiles all of them, for any architecture."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from triton import knobs

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compile_kernels.py"


@pytest.mark.skipif(not knobs.runtime.interpret, reason="a GPU is here, which compiles kernels itself")
@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        ("layer bfloat16", {"_norm", "_rotate", "_short", "_merge", "_gate", "_long"}),
        ("draws", {"choose", "filter_and_draw", "_mask", "_accept", "_accept_tree", "_settle"}),
    ],
)
def test_kernels_compile_without_a_gpu(case: str, kernels: set[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), "--arch", "90", "--only", case]
    ran = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert kernels <= set(re.findall(r"^(\w+) +\d+ warps", ran.stdout, re.M))
    assert "TOO MUCH" not in ran.stdout
