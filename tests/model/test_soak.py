"""A short soak: many clients, random requests and cancels, and afterwards nothing is left. And a soak can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType

import pytest
from by_path import module_at
from live_engine import serving

pytestmark = pytest.mark.alone
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    return module_at(ROOT / "benchmarks" / "soak.py")


def test_random_clients_leave_nothing_behind(soak: ModuleType) -> None:
    with serving("--cache-tokens", "4096") as served:
        report = asyncio.run(soak.soak(served.url, served.process.pid, clients=16, seconds=12.0, seed=7))
    assert report.failures() == []
    done = report.outcomes
    assert done["streamed, answered"] + done["whole, answered"] >= 10, done
    assert done["streamed, given up"] + done["whole, given up"] >= 1, done
    assert set(report.memory) == {"API process", "engine"}


def calm(soak: ModuleType, **changes: float) -> object:
    final = {"requests_running": 0, "requests_waiting": 0, "pages_running": 0, "pages_free": 3, "pages_cached": 5}
    return soak.Report(final={**final, "pages_capacity": 8, **changes}, seconds=120.0)


def test_each_judgement_can_fail(soak: ModuleType) -> None:
    assert calm(soak).failures() == []
    assert calm(soak, requests_running=1).failures() == ["requests_running is 1 at the end"]
    assert calm(soak, pages_free=2).failures() == ["7 pages are free or cached, of 8"]
    report = calm(soak)
    # 100 MB at once before the last minute is a warm start; two a minute since is a leak
    report.memory = {"engine": [(float(s), 100.0 * (s > 40) + s / 30) for s in range(120)]}
    assert report.slopes()["engine"] == pytest.approx(2.0)
    assert report.failures() == ["engine grows by 2.00 MB a minute"]
    report.memory = {"engine": [(float(s), 100.0 + (s % 7) / 7) for s in range(120)]}
    assert report.failures() == []


@pytest.mark.parametrize(
    ("body", "text", "finish"),
    [
        ({"regex": "…"}, "no match!", "stop"),
        ({"choice": ["…"]}, "maybe", "stop"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, '{"name": "x"}', "stop"),
        ({"response_format": {"type": "json_object"}}, "[]", "stop"),
        ({"response_format": {"type": "json_object"}}, "{", "stop"),
        ({}, "x", None),
    ],
)
def test_wrong_answers_are_noticed(soak: ModuleType, body: dict[str, object], text: str, finish: str | None) -> None:
    with pytest.raises(soak.Wrong):
        soak.check_answer(body, text, finish)
