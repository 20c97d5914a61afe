"""`bench programs`: the programs and their twins on a client, what is counted of them, agents, forks and tables."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import io
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes_lang import FakeBackend
from fakes_lang_http import bosquet_server
from fakes_openai import FakeOpenAI
from rich.console import Console
from typer.testing import CliRunner

from bosquet.cli import app
from bosquet.errors import BosquetError, ConfigError
from bosquet.lang.classics import PROGRAMS
from bosquet.lang.classics_measured import Asked, Null, OnServer, overhead
from bosquet.runtime.bench import programs_report
from bosquet.runtime.bench.programs import Language, Programs, Replays, measure
from bosquet.runtime.bench.programs_agents import (
    COMMON,
    OWN,
    POOL,
    TURNS,
    Agents,
    Fork,
    Real,
    fork,
    measured,
    pool_pages,
    trace,
)
from bosquet.runtime.bench.programs_cases import CASES, Case, chosen
from bosquet.runtime.bench.programs_client import PROGRAMS as TWINS
from bosquet.runtime.bench.programs_report import Findings, targets
from bosquet.runtime.bench.programs_served import CLIENT, LANGUAGE, Reading, Served, Side, in_language, on_client
from bosquet.runtime.bench.progress import Progress
from bosquet.runtime.bench.replay_optimum import reused
from bosquet.runtime.bench.replay_policies import POLICIES
from bosquet.runtime.bench.replay_simulation import Model
from bosquet.runtime.bench.target import Target
from bosquet.runtime.bench.transcripts import Row
from bosquet.runtime.plan import Sampled
from bosquet.types import PAGE, Call, Chunk, Message

Arguments = dict[str, Any]


def small(case: Case) -> Arguments:
    """The arguments of a run, cut down: every text five words, three items of everything, one token an answer."""
    given = case.draw(0, LANGUAGE)[0]
    cut: Arguments = {}
    for name, value in given.items():
        if isinstance(value, str):
            cut[name] = " ".join(value.split()[:5])
        elif isinstance(value, list):
            cut[name] = [0.0 if isinstance(item, float) else " ".join(item.split()[:5]) for item in value[:3]]
        else:
            cut[name] = min(value, 2)
    return cut


class Written(Null):
    """Keeps what each call was asked, as text."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float]] = []

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        sampling = call.sampling
        assert sampling.ignore_eos
        self.asked.append((bytes(call.ids).decode(), sampling.max_tokens, sampling.temperature))
        async for chunk in super().generate(call):
            yield chunk


async def client(url: str, name: str, arguments: Arguments) -> None:
    from bosquet.runtime.bench.programs_client import Client

    target = Target(url)
    await target.look()
    try:
        await TWINS[name](Client(target), **arguments)
    finally:
        target.client.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_and_its_twin_ask_the_same(case: Case) -> None:
    arguments = small(case)
    written = Written()
    PROGRAMS[case.name].run(**arguments, backend=written)
    with FakeOpenAI(word="a").running() as server:
        asyncio.run(client(server.url, case.name, arguments))
    asked = []
    for _, body in server.bodies:
        assert body["ignore_eos"] is True
        messages: list[Message] = body["messages"]
        segments = asyncio.run(Null().render(messages, add_generation_prompt=True))
        asked.append(("".join(part.text for part in segments), body["max_tokens"], body["temperature"]))
    assert Counter(written.asked) == Counter(asked)
    assert len(asked) > 2


def test_trees_have_the_shape_that_was_asked_for() -> None:
    """Three thoughts from each, four deep, and a rating of the last ones."""
    (case,) = chosen(["tree_of_thought"])
    assert overhead(case.name, case.draw(0, LANGUAGE)[0], 1).calls == 3 + 9 + 27 + 81 + 81


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_asks_second_has_other_texts_of_the_same_sizes(case: Case) -> None:
    def sizes(drawn: Sequence[Arguments]) -> list[Any]:
        return [
            {
                name: [len(str(item).split()) for item in ([v] if not isinstance(v, list) else v)]
                for name, v in one.items()
            }
            for one in drawn
        ]

    mine, again, other = case.draw(0, LANGUAGE), case.draw(0, LANGUAGE), case.draw(0, CLIENT)
    assert mine == again != other
    assert len(mine) == case.runs
    if case.name != "chat":  # whose questions have lengths of their own
        assert sizes(mine) == sizes(other)


# ---- what is counted ------------------------------------------------------------------------------------------------


def test_calls_are_recorded_as_the_server_had_them() -> None:
    backend = FakeBackend()
    program = OnServer("http://fake", bosquet_server(backend))
    arguments = small(CASES[1])
    asyncio.run(program.run("skeleton_of_thought", arguments))
    assert [list(asked.prompt) for asked in program.calls] == [list(call.ids) for call in backend.calls]
    assert all(
        len(asked.generated) == call.sampling.max_tokens
        for asked, call in zip(program.calls, backend.calls, strict=True)
    )
    assert sum(asked.cached for asked in program.calls) > 0


class Scripted:
    """Programs on a server: each run makes the next two calls of a script."""

    def __init__(self, calls: Sequence[Asked] = ()) -> None:
        self._script = list(calls)
        self.calls: list[Asked] = []

    async def run(self, name: str, arguments: Mapping[str, Any]) -> None:
        self.calls += self._script[len(self.calls) : len(self.calls) + 2]


def calls() -> list[Asked]:
    first = Asked([1] * 20, [2] * 4, 0)
    return [first, Asked([*[1] * 20, *[2] * 4, 3], [5], 20), Asked([1] * 10, [6], 9), Asked([7] * 8, [6, 6], 0)]


def test_hits_are_held_against_an_endless_cache() -> None:
    """It has what earlier cases have left, too; the last token of an answer was never computed."""
    side = Side(Target("http://127.0.0.1:1", "ours"), Scripted(calls()))
    case = Case("chat", "", 1, lambda random: {}, lambda random: {})
    first, second = (asyncio.run(in_language(case, 0, side)) for _ in range(2))
    assert (first.calls, first.prompt, first.cached, first.generated, first.best) == (2, 45, 20, 5, 23)
    assert (first.computed, first.hit_rate, first.of_optimum) == (30, 20 / 45, 20 / 23)
    assert (second.calls, second.prompt, second.cached, second.best) == (2, 18, 9, 9)


def test_a_client_counts_what_the_server_tells() -> None:
    with FakeOpenAI(cached=3).running() as server:

        async def read() -> Reading:
            target = Target(server.url, "fake")
            await target.look()
            try:
                return await on_client(chosen(["judge"])[0], 0, target)
            finally:
                target.client.close()
                await asyncio.sleep(0)

        reading = asyncio.run(read())
    assert (reading.way, reading.calls, reading.cached, reading.generated) == (CLIENT, 40, 120, 40 * 48)
    assert reading.best is None
    assert reading.of_optimum is None
    assert len(reading.run_s) == 8
    assert max(reading.run_s) <= reading.seconds


def test_a_run_that_fails_says_why() -> None:
    with FakeOpenAI(fails=lambda n: 500 if n == 3 else None).running() as server:
        sides = [Side(Target(server.url, "fake"))]
        with pytest.raises(BosquetError, match="fake: 500: planted"):
            asyncio.run(Served(sides, chosen(["chat"]), 1, Progress()).run())


# ---- agents, forks and overhead -------------------------------------------------------------------------------------


def test_agents_have_the_same_work_under_every_policy() -> None:
    played = trace(agents=6)
    pages = pool_pages(played)
    assert pages == round(POOL * (COMMON + 6 * (OWN + (TURNS - 1) * 96)) / PAGE)
    rows = list(measured(played, lambda pages: Model()))
    assert [row.cell.policy for row in rows] == [policy.name for policy in POLICIES]
    assert len({row.cell.prompt_tokens for row in rows}) == 1
    for row in rows:
        assert row.cell.reuse <= row.cell.optimum + 15 / COMMON
        assert row.cell.reuse <= row.prefix <= 1


def test_a_real_model_computes_and_draws_what_is_written() -> None:
    """Its runner has another opinion, which does not count."""

    class Runner(Model):
        passes = 0

        def submit(self, plan: Any) -> Any:
            self.passes += 1
            return super().submit(plan)

        def written(self, draws: Sequence[Any]) -> list[Any]:
            return [Sampled(0) for _ in draws]

    class Timed(Real):
        """On the clock of its runner."""

        def clock(self) -> float:
            return runner.clock()

        def wait_until(self, when: float) -> None:
            runner.wait_until(when)

    runner = Runner()
    (real,) = measured(trace(agents=5), lambda pages: Timed(runner), POLICIES[:1])
    (simulated,) = measured(trace(agents=5), lambda pages: Model(), POLICIES[:1])
    assert runner.passes == real.cell.steps > 0
    assert real.cell.prompt_tokens == 5 * sum(COMMON + OWN + turn * 96 for turn in range(TURNS))
    assert dataclasses.replace(real.cell, replay_s=0) == dataclasses.replace(simulated.cell, replay_s=0)


def test_pages_of_a_fork() -> None:
    # six whole pages and a part of one, of which each branch has a copy; with 15 more tokens it fills two pages
    assert fork(prefix=100, branches=3, tokens=8, own=8) == Fork(100, 3, 8, one=6 + 1 + 2, all=6 + 1 + 3 * 2)
    # whole pages only: nothing is copied
    assert fork(prefix=64, branches=4, tokens=8, own=8) == Fork(64, 4, 8, one=5, all=8)
    assert fork().ratio <= 1.2


def test_overhead_learns_nothing_and_asks_all() -> None:
    cost = overhead("judge", small(CASES[2]), 1)
    assert cost.calls == 3 + 1
    assert cost.compile_s > 0
    assert cost.dispatch_s > 0


# ---- tables and options ---------------------------------------------------------------------------------------------


def reading(case: str, way: str, seconds: float, cached: int | None, best: int | None = None) -> Reading:
    return Reading(case, "ours", way, 0, seconds, [seconds], 10, 1000, cached, 100, best)


@functools.cache
def agents() -> list[Agents]:
    return list(measured(trace(agents=4), lambda pages: Model()))


def findings() -> Findings:
    found = Findings(cases=chosen(["judge", "chat"]), settings={"ours": "as it comes"})
    found.readings += [reading("judge", LANGUAGE, 2, 930, 940), reading("judge", CLIENT, 5, None)]
    found.readings += [reading("chat", LANGUAGE, 2, 600, 700)]
    found.agents += agents()
    found.fork = Fork(4000, 8, 32, 253, 320)
    found.overhead["judge"] = overhead("judge", small(CASES[2]), 1)
    found.transcripts += [
        Row("newline moved", "template", False, 100, 50),
        Row("newline moved", "template", True, 100, 90),
        Row("newline moved", "append_only", True, 100, 100),
    ]
    return found


def test_targets() -> None:
    rows = {row.what: row for row in targets(findings())}
    assert rows["judge: hits, of the optimum"].met is True
    assert rows["chat: hits, of the optimum"].met is False
    assert rows["8 branches of 4,000 tokens: pages, of those of one"].met is False
    assert rows["newline moved, append_only: prefix hit"].met is True
    assert "newline moved, template: prefix hit" not in rows
    assert sum("agents" in what for what in rows) == 2 * (len(POLICIES) - 1)


def test_tables_and_json() -> None:
    found = findings()
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    programs_report.show(found, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert "2.50×" in shown
    for policy in POLICIES:
        assert policy.name in shown
    document = json.loads(json.dumps(programs_report.document(found)))
    assert [row["of_optimum"] for row in document["readings"]] == [930 / 940, None, 600 / 700]
    assert document["fork"]["ratio"] == 320 / 253


def test_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "say", lambda self, what, outcome: None)
    script = calls()
    with FakeOpenAI(cached=1).running() as server, FakeOpenAI(owner="another").running() as another:
        programs = Programs(names=["chat", "fork"], url=server.url, against=[f"other={another.url}"])
        language = Language(lambda url: Scripted(script * 4), overhead)
        measure(Replays(traces=[]), programs, language, str(tmp_path / "out.json"))
    document = json.loads((tmp_path / "out.json").read_text())["programs"]
    assert [(row["way"], row["server"]) for row in document["readings"]] == [
        (LANGUAGE, "fake"),
        (CLIENT, "fake"),
        (CLIENT, "other"),
    ]
    assert document["fork"]["ratio"] < 1.2
    assert document["agents"] == document["transcripts"] == []
    assert len(another.bodies) == 1 + 8 * 4  # the first does not count


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-p", "nope"), "no program 'nope'; there are tree_of_thought"),
        (("-p", "chat", "--against", "nope"), "--against nope: expected NAME=URL or one of vllm"),
        (("-p", "chat", "--url", "http://127.0.0.1:1"), "cannot reach http://127.0.0.1:1"),
        (("-p", "fork", "--out", "/nowhere/x.json"), "--out /nowhere/x.json: not a file in an existing folder"),
    ],
)
def test_wrong_options(options: Sequence[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", "programs", *options])
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)


def test_reuse_of_agents_is_what_the_optimum_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for all, nothing is computed twice."""
    monkeypatch.setattr("bosquet.runtime.bench.programs_agents.POOL", 2.0)
    (row,) = measured(trace(agents=3), lambda pages: Model(), POLICIES[:1])
    assert row.prefix == 1.0
    assert row.cell.reuse == row.cell.optimum
    assert reused([], None) == []
