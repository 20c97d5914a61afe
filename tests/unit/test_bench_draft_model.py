"""The measurement of draft models runs, on a few tokens: it ends with 1 where an answer with drafts is another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(180)
def test_answers_are_the_same_and_a_pass_yields_what_guesses_give() -> None:
    """How many guesses pay depends on what the machine measures, so it is told. Of the ten tokens after the first, one
    comes of the pass in which the draft model reads the prompt; two right guesses make three of each pass after it."""
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "draft_model.py")]
    command += ["--rights", "0", "1", "--guesses", "2", "--tokens", "11", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.split()[:3] for line in done.stdout.splitlines()[1:]]
    assert found == [["0.0", "2", "1.00"], ["1.0", "2", "2.50"]], done.stdout
