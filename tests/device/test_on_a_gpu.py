"""Every kernel on a real GPU against float64, at the sizes of an 8B model; skipped where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.timeout(400),
]


def test_kernels_are_right(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "device.py"), "--only", "correct", "--minutes", "5"]
    ran = subprocess.run([*command, "--out", str(tmp_path / "found.json")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
