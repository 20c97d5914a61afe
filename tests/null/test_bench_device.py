"""The measurement on a GPU, without one: floors worked out by hand, the table, targets, and processes that die."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import module_at

ROOT = Path(__file__).resolve().parents[2]
PARTS = ROOT / "benchmarks" / "gpu"


@pytest.fixture(scope="module")
def floors() -> ModuleType:
    return module_at(PARTS / "floors.py")


@pytest.fixture(scope="module")
def report() -> ModuleType:
    return module_at(PARTS / "report.py")


@pytest.fixture(scope="module")
def device() -> Iterator[ModuleType]:
    """The script itself, which looks for its parts beside it."""
    before = list(sys.path)
    yield module_at(ROOT / "benchmarks" / "device.py", "bench_device")
    sys.path[:] = before


# ---- floors ----------------------------------------------------------------------------------------------------------


def test_bytes_of_a_matrix(floors: ModuleType) -> None:
    """10 outs of 100, which are padded to 128 where they are quantized."""
    assert floors.matrix_bytes(10, 100, "bfloat16") == 2000
    assert floors.matrix_bytes(10, 100, "fp8") == floors.matrix_bytes(10, 100, "int8") == 1280 + 40
    assert floors.matrix_bytes(10, 100, "int4") == 640 + 40
    assert floors.matrix_bytes(130, 300, "fp8_block") == 130 * 384 + 4 * 2 * 3


def test_bytes_of_a_decode_pass(floors: ModuleType) -> None:
    """A layer of the 8B shape has 218,103,808 weights, the head 525,336,576."""
    big = floors.BIG
    assert sum(outs * width for outs, width in big.matrices.values()) == 218_103_808
    assert floors.weight_bytes(big, "bfloat16") == 2 * (32 * 218_103_808 + 525_336_576) == 15_009_316_864
    layer = 218_103_808 + 4 * (6144 + 4096 + 28_672 + 4096)
    assert floors.weight_bytes(big, "fp8") == 32 * layer + 525_336_576 + 4 * 128_256
    four_bits = 32 * 218_103_808 * (0.5 + 2 / 64)
    assert floors.weight_bytes(big, "int4") == four_bits + 525_336_576 + 4 * 128_256
    assert floors.token_bytes(big) == 131_072
    assert floors.token_bytes(big, 1) == 65_536
    assert floors.token_bytes(floors.SMALL) == 32_768
    assert floors.decode_bytes(big, "bfloat16", 64, 8192) == 15_009_316_864 + 64 * (1 << 30)


def test_operations_of_a_prompt(floors: ModuleType) -> None:
    assert floors.pairs(0, 4) == 1 + 2 + 3 + 4
    assert floors.pairs(3, 2) == 4 + 5
    assert floors.attention_flops(floors.TINY, 3, 2) == 4 * 2 * 32 * 9
    assert floors.matrix_flops(floors.BIG, 8192) == 114_349_209_288_704
    assert floors.prefill_flops(floors.BIG, 8192) == 131_944_593_489_920


def test_the_larger_floor_holds(floors: ModuleType) -> None:
    assert floors.floor_seconds(4e12, 1e12, 4e12, 8e14) == 1.0
    assert floors.floor_seconds(4e9, 8e14, 4e12, 8e14) == 1.0
    assert floors.rows_that_fit(100, 20, 2, 10, 4)
    assert not floors.rows_that_fit(100, 21, 2, 10, 4)


def test_tokens_of_a_verified_pass(floors: ModuleType) -> None:
    assert floors.tokens_a_pass(0.8, 4) == pytest.approx(1 + 0.8 + 0.64 + 0.512 + 0.4096)
    assert floors.tokens_a_pass(0.5, 1) == 1.5
    assert floors.tokens_a_pass(1, 3) == 4
    assert floors.tokens_a_pass(0.9, 0) == pytest.approx(1)


def test_chi_square(floors: ModuleType) -> None:
    assert floors.chi_square([10, 20, 30], [0.25, 0.25, 0.5]) == (pytest.approx(50 / 15), 2)
    assert floors.chi_square([50, 48, 1, 1], [0.5, 0.48, 0.01, 0.01]) == (0, 1), "two rare ones are still too rare"
    statistic, freedom = floors.chi_square([200, 192, 0, 0], [0.5, 0.48, 0.01, 0.01])
    assert (statistic, freedom) == (pytest.approx(16 / 196 + 3.84**2 / 188.16 + 7.84), 2)
    assert floors.chi_square([5, 5, 1], [0.5, 0.5, 0.0])[0] == math.inf
    # Of the tables: 5 % of chi-squares of 10 degrees are above 18.307, 1 % of 5 degrees above 15.086.
    assert floors.deviation(18.307, 10) == pytest.approx(1.645, abs=0.01)
    assert floors.deviation(15.086, 5) == pytest.approx(2.326, abs=0.03)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_lines_have_columns(report: ModuleType) -> None:
    plain = report.line("kernels", "copy", report.Finding("4.3 TB/s"))
    assert plain == "kernels    copy" + " " * 48 + "4.3 TB/s"
    whole = report.line("a", "b", report.Finding("c", "d", "e", "ok"))
    names = report.header().splitlines()[0]
    assert [whole.index(x) for x in ("b", "c", "d", "e ")] == [
        names.index(x) for x in ("case", "found", "held", "share")
    ]
    assert whole.index("ok") == names.index("verdict")


def test_numbers_are_said_in_their_unit(report: ModuleType) -> None:
    assert [report.seconds(x) for x in (2.5, 0.0123, 4.56e-5)] == ["2.50 s", "12.30 ms", "45.6 us"]
    assert report.share(0.876) == "88%"


def test_what_is_no_number_is_wrong(report: ModuleType) -> None:
    assert report.compared(1e-3, 1e-2).verdict == "ok"
    for bad in (1.1e-2, math.inf, math.nan):
        finding = report.compared(bad, 1e-2)
        assert finding.verdict == "WRONG"
        assert finding.facts["right"] is False


def test_targets_are_met_missed_or_not_run(report: ModuleType) -> None:
    share, step = report.TARGETS[0], report.TARGETS[2]
    assert report.judge(share, {}).verdict == "not run"
    assert report.judge(share, {share.figure: 0.85}).verdict == "met"
    assert report.judge(share, {share.figure: 0.8499}).verdict == "MISSED"
    assert report.judge(step, {step.figure: 1.2}).verdict == "met"
    assert report.judge(step, {step.figure: 1.21})[:2] == ("1.21x", "at most 1.20x")
    assert report.judge(step, {step.figure: 1.21}).verdict == "MISSED"
    assert len({target.figure for target in report.TARGETS}) == 8


def test_every_target_has_a_part_that_leaves_its_figure(report: ModuleType) -> None:
    """By the names in the sources: a figure under another name would be a target that is never run."""
    text = "".join(path.read_text() for path in PARTS.glob("time_*.py"))
    for figure in ("attention decode 64x8192", "draft model"):
        assert f'"{figure}"' in text, figure
    assert 'f"host gap {rows}"' in text
    for made in ('f"{name} {storage} {rows}x{context}"', 'f"decode {key}"', 'f"step {key}"', 'f"rate {key}"'):
        assert made in text, made
    assert 'f"prefill {label} {length}"' in text
    models = module_at(PARTS / "floors.py").MODELS
    decoded = [t.figure for t in report.TARGETS if t.figure.startswith(("decode", "step", "prefill"))]
    assert all(figure.split()[1] in models for figure in decoded)


def test_figures_that_are_made_of_others(report: ModuleType) -> None:
    rates = {"rate 8B bfloat16 1x1024": 200.0, "rate 8B fp8 1x1024": 350.0}
    assert report.derived(rates) == {"speed-up fp8": 1.75}
    assert report.derived({"rate 8B int4 1x1024": 1.0}) == {}
    assert report.derived({"host gap 1": 0.01, "host gap 64": 0.04}) == {"host gap": 0.04}


def test_time_is_dealt_out_and_what_is_left_goes_on(report: ModuleType) -> None:
    assert report.allotted(480, [20, 15, 30, 15]) == 120
    assert report.allotted(400, [15, 30, 15]) == 100, "the first part took 40 seconds less"
    assert report.allotted(-3, [1, 1]) == 0
    now = iter([10.0, 12.0, 19.5])
    countdown = report.Countdown(8, lambda: next(now))
    assert [countdown.left, countdown.left] == [6.0, -1.5]


# ---- processes -------------------------------------------------------------------------------------------------------

WRITE = """
import json, sys, time
path, ends = sys.argv[1:]
def say(case, **more):
    open(path, "a").write(json.dumps({"part": "engine", "case": case, **more}) + chr(10))
done = {json.loads(line)["case"] for line in open(path)} if __import__("os").path.exists(path) else set()
for case in "abc":
    if case not in done:
        say(case)
        if case == "b":
            if ends == "sleep": time.sleep(60)
            if ends == "poison": say(case, found="-", verdict="FAILED", facts={"right": False}); sys.exit(3)
            if ends == "die": sys.exit(9)
        say(case, found="1", against="", share="", verdict="", facts={"figures": {case: 1.0}})
"""


def run_of(device: ModuleType, folder: Path, ends: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of one part, whose process is a stand-in that ends in some way at its second case."""
    run = device.Run(folder, ["engine"], device.Countdown(60, lambda: 0.0), False, folder / "out.json")
    path = folder / "time_engine.jsonl"

    def start(*_: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-SPc", WRITE, str(path), ends])

    monkeypatch.setattr(run, "_start", start)
    return run


@pytest.mark.parametrize(("ends", "verdict", "wrong"), [("poison", "FAILED", 1), ("die", "died: exit code 9", 1)])
def test_a_process_that_dies_costs_one_case(
    device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, verdict: str, wrong: int
) -> None:
    run = run_of(device, tmp_path, ends, monkeypatch)
    run.part("engine", 30.0)
    assert run.end() == wrong
    found = json.loads((tmp_path / "out.json").read_text())
    assert [(case["case"], case["verdict"]) for case in found["found"]] == [("a", ""), ("b", verdict), ("c", "")]
    assert {target["verdict"] for target in found["targets"]} == {"not run"}


def test_a_process_that_does_not_end_is_stopped(
    device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "LEAST", 0.3)
    monkeypatch.setattr(device, "GRACE", 0.1)
    run = run_of(device, tmp_path, "sleep", monkeypatch)
    run.part("engine", 0.5)
    assert run.end() == 0, "a case that had no time is no fault"
    found = json.loads((tmp_path / "out.json").read_text())["found"]
    assert [(case["case"], case["verdict"]) for case in found] == [("a", ""), ("b", "stopped: the time is up")]


def test_a_part_without_time_is_skipped(
    device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(device, tmp_path, "poison", monkeypatch)
    run.part("engine", 3.0)
    assert "skipped: the time is up" in capsys.readouterr().out


def test_every_module_is_there_and_no_other(device: ModuleType) -> None:
    named = [module for _, modules in device.PARTS.values() for module in modules]
    assert sorted(named) == sorted(
        path.stem for path in PARTS.glob("*.py") if path.stem.startswith(("check_", "time_"))
    )
