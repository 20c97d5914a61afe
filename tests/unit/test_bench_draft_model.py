"""The measurement of draft models runs, on a few tokens: it ends with 1 where an answer with drafts is another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(180)
def test_it_runs_and_answers_are_the_same() -> None:
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "draft_model.py")]
    command += ["--rights", "0.6", "--tokens", "8", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["0.6", "1"], done.stdout
