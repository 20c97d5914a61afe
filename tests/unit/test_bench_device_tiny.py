"""The measurement on a GPU runs, with kernels in the interpreter, and what it counts by hand is what is there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from by_path import module_at

from bosquet.kernels.triton.quantize import pack

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(120)
def test_the_script_runs_without_a_gpu(tmp_path: Path) -> None:
    """Every kernel is right, and a model decodes; a mistake in typing must not wait for the device."""
    out = tmp_path / "found.json"
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "device.py"), "--tiny", "--out", str(out)]
    command += ["--only", "correct", "--only", "kernels", "--only", "models"]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["tiny"]
    assert {case["part"] for case in found["found"]} == {"correct", "kernels", "models"}
    assert not [case for case in found["found"] if case["verdict"].startswith(("skipped", "WRONG", "FAILED"))]
    assert {target["verdict"] for target in found["targets"]} == {"not run"}, "no time of an interpreter is a figure"


def test_cases_run_once_and_what_they_stand_on_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bed_module, journal, report = (importlib.import_module(f"gpu.{name}") for name in ("bed", "journal", "report"))
    ran: list[str] = []

    def good(name: str) -> Any:
        ran.append(name)
        return report.Finding("1")

    def bad() -> Any:
        raise ValueError("a fault\nof two lines")

    path = tmp_path / "found.jsonl"
    for _ in range(2):  # as after a process that died
        bed = bed_module.Bed("engine", journal.Journal(path), 60.0, True)
        bed.case("model", lambda: good("model"), sets_up=True)
        bed.case("step", lambda: good("step"))
        bed.case("bad", bad, sets_up=True)
    assert ran == ["model", "step", "model"]
    late = bed_module.Bed("engine", journal.Journal(path), 0.0, True)
    late.case("late", lambda: good("late"))
    found = [entry for entry in journal.Journal(path).entries() if entry.finding is not None]
    assert [(entry.case, entry.finding.verdict) for entry in found] == [
        ("model", ""),
        ("step", ""),
        ("bad", "FAILED ValueError: a fault of two lines"),
        ("late", "skipped: the part's time is up"),
    ]
    assert "ValueError" in found[2].finding.facts["traceback"]
    assert not journal.Journal(path).unfinished()


@pytest.mark.parametrize("storage", ["bfloat16", "fp8", "int8", "int4", "fp8_block"])
def test_bytes_are_those_of_packed_weights(storage: Any) -> None:
    floors = module_at(ROOT / "benchmarks" / "gpu" / "floors.py")
    for outs, width in ((130, 300), (64, 256)):
        assert floors.matrix_bytes(outs, width, storage) == pack(torch.ones(outs, width), None, storage).nbytes
