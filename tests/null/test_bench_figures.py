"""Figures made of readings, against numpy and figures worked out by hand."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from fakes_openai import RECORD
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bosquet.runtime.bench import report
from bosquet.runtime.bench.answers import Answer
from bosquet.runtime.bench.figures import figure, percentile, rows, step_times
from bosquet.runtime.bench.machine import facts
from bosquet.runtime.bench.passes import Pass
from bosquet.runtime.bench.progress import Progress
from bosquet.runtime.bench.session import Session
from bosquet.runtime.bench.target import Target
from bosquet.runtime.bench.workloads import GROUPS

SINGLE, PREFILL, AGENTS, JSON = (GROUPS[name][0] for name in ("single", "prefill", "agents", "json"))
BAD = Answer(0.0, 0.1, error="503: full")


def answer(**facts: Any) -> Answer:
    given = {"sent": 0.0, "seconds": 1.0, "prompt_tokens": 10, "cached_tokens": 2}
    return Answer(**{"completion_tokens": 128, "asked": 128, **given, **facts})


def reading(workload: str, server: str, seconds: float, *answers: Answer, round: int = 0, **more: Any) -> Pass:
    return Pass(workload, server, round, more.pop("streamed", False), seconds, 0.01, list(answers), **more)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.sampled_from([0, 1, 25, 50, 90, 99, 100]))
def test_percentiles(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)


def test_each_metric() -> None:
    assert figure(SINGLE, reading("single", "a", 4.0, answer(), answer())) == 64.0
    assert figure(SINGLE, reading("single", "a", 4.0, answer(), BAD)) == 32.0
    assert figure(PREFILL, reading("prefill 512", "a", 2.0, answer(), answer(cached_tokens=None))) == 9.0
    assert figure(AGENTS, reading("agents", "a", 7.5, answer())) == 7.5
    valid = json.dumps(RECORD)
    assert figure(JSON, reading("json", "a", 2.0, answer(text=valid), answer(text="{}"), answer(text=valid))) == 1.0


def test_no_figure_without_answers_and_no_duration_with_gaps() -> None:
    assert figure(SINGLE, reading("single", "a", 1.0, BAD)) is None
    assert figure(AGENTS, reading("agents", "a", 1.0, answer(), BAD)) is None


def test_ratios_are_taken_round_by_round() -> None:
    """The rounds' own ratios are 2, 2 and 4. A slow or fast round of the machine's does not
    change them."""
    ours, theirs = (100.0, 10.0, 400.0), (50.0, 5.0, 100.0)
    passes = [
        reading("single", server, 1.0, answer(completion_tokens=round(rate)), round=number)
        for server, rates in (("a", ours), ("b", theirs))
        for number, rate in enumerate(rates)
    ]
    first, second = rows([SINGLE], ["a", "b"], passes)
    assert (first.figure, first.low, first.high, first.lead) == (100.0, 10.0, 400.0, 1.0)
    assert (second.figure, second.low, second.high, second.lead) == (50.0, 5.0, 100.0, 2.0)


def test_for_durations_the_ratio_is_turned_round() -> None:
    passes = [reading("agents", "a", 10.0, answer()), reading("agents", "b", 30.0, answer())]
    assert [row.lead for row in rows([AGENTS], ["a", "b"], passes)] == [1.0, 3.0]


def test_latencies_come_from_streamed_passes_only() -> None:
    streamed = [answer(first=0.1 * i, last=0.1 * i + 1.27) for i in range(1, 12)]
    passes = [
        reading("single", "a", 4.0, answer()),
        reading("single", "a", 1.0, *streamed, streamed=True),
    ]
    (row,) = rows([SINGLE], ["a"], passes)
    assert row.figure == 32.0
    assert row.ttft == pytest.approx((0.6, 1.0, 1.09))
    assert row.tpot == pytest.approx((0.01,) * 3)
    assert row.cached_share == 0.2


def test_for_one_token_the_whole_time_is_the_time_to_the_first() -> None:
    (row,) = rows([PREFILL], ["a"], [reading("prefill 512", "a", 2.0, *(answer(seconds=s) for s in (1, 2, 3)))])
    assert row.ttft == pytest.approx((2.0, 2.8, 2.98))
    assert row.tpot is None


def test_a_server_that_tells_no_cached_tokens() -> None:
    (row,) = rows([SINGLE], ["a"], [reading("single", "a", 1.0, answer(), answer(cached_tokens=None))])
    assert row.cached_share is None


def test_what_is_wrong_is_noted() -> None:
    passes = [
        reading("single", "a", 1.0, answer(), answer(completion_tokens=5), BAD, BAD),
        reading("json", "a", 1.0, answer(text="{}", completion_tokens=5), answer(text=json.dumps(RECORD))),
    ]
    single, records = rows([SINGLE, JSON], ["a"], passes)
    assert single.notes == (
        "2 failed: 503: full",
        "1 of 2 answers are shorter than asked: ignore_eos has no effect there",
    )
    assert (single.requests, single.failed) == (4, 2)
    assert records.notes == ("1 of 2 answers do not fit the schema",)


GROWN = {"steps": 100.0, "tokens": 3200.0, "step": 2.0, "forward": 1.5, "schedule": 0.05, "sample": 0.3, "mask": 0.1}


def test_where_a_steps_time_goes() -> None:
    passes = [reading("single", "a", 4.0, answer(), steps=GROWN) for _ in range(2)]
    (times,) = step_times([SINGLE], passes)
    assert (times.steps, times.tokens) == (200, 32.0)
    found = (times.total, times.forward, times.schedule, times.masks, times.sample, times.other, times.python)
    assert found == pytest.approx((20.0, 15.0, 0.5, 1.0, 3.0, 0.5, 2.0))


def session(passes: list[Pass]) -> Session:
    targets = [Target("http://a", "ours"), Target("http://b", "their[s]")]
    return Session(targets, [SINGLE, AGENTS], 2, True, Progress(), passes)


PASSES = [
    reading("single", "ours", 1.0, answer(), steps=GROWN),
    reading("single", "their[s]", 2.0, answer(), BAD),
    reading("single", "ours", 2.0, answer(first=0.25, last=1.0), streamed=True),
]


def test_the_tables() -> None:
    text = io.StringIO()
    report.show(session(PASSES), facts(), Console(file=text))
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert "single output tok/s ours 128.0 128.0 … 128.0 1.00× 128.0 20% 0" in lines
    assert "their[s] 64.0 64.0 … 64.0 2.00× 64.0 20% 1" in lines
    assert "single ours 250.0 250.0 250.0 5.91 5.91 5.91" in lines
    assert "their[s] – – – – – –" in lines
    assert "single, their[s]: 1 failed: 503: full" in lines
    assert "single ours 100 32.0 20.000 15.000 3.000 0.500 1.000 0.500 2.000" in lines
    assert "bosquet bench itself took at most 1.0% of one core" in lines
    assert not any("agents" in line for line in lines)


def test_a_profile_without_counters_says_so() -> None:
    text = io.StringIO()
    report.show(session(PASSES[1:]), facts(), Console(file=text, width=200))
    assert "no server told where its steps' time goes" in text.getvalue()


def test_the_document_is_json_and_holds_every_reading(tmp_path: Any) -> None:
    path = tmp_path / "out.json"
    report.write(session(PASSES), facts(), path)
    found = json.loads(path.read_text())
    assert [(r["server"], r["streamed"], len(r["answers"])) for r in found["readings"]] == [
        ("ours", False, 1),
        ("their[s]", False, 2),
        ("ours", True, 1),
    ]
    assert found["readings"][1]["answers"][1]["error"] == "503: full"
    assert [row["lead"] for row in found["summary"]] == [1.0, 2.0]
    assert found["steps"][0]["python"] == pytest.approx(2.0)
    assert found["machine"]["cores"] >= 1
    assert {w["name"] for w in found["settings"]["workloads"]} == {"single", "agents"}
    assert found["servers"][1]["name"] == "their[s]"
