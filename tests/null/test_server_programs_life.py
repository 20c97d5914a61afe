"""Runs of programs over HTTP: whose they are, how many, for how long, and one step at a time."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes_lang import chatml, encode_segments
from fakes_programs import Handle, Place, on, toy_engine, toy_text
from live_server import live, raw_post, wait_for

from bosquet.errors import Overloaded
from bosquet.prompts.transcript import Turn, Write
from bosquet.runtime.server import program_runs
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.program_schemas import AppendRequest, ForkRequest, JoinRequest
from bosquet.runtime.server.program_sizes import BRANCH_BYTES
from bosquet.runtime.server.program_steps import append, fork, join
from bosquet.runtime.server.served_text import ServedText
from bosquet.types import Segment

ASK = [{"role": "user", "content": "ab"}]


def error_of(answer: Any) -> tuple[str, str | None]:
    return answer["error"]["code"], answer["error"]["param"]


# -- whose, how many, how long ----------------------------------------------------------------------------------------


def test_handles_cannot_be_guessed_and_belong_to_their_tenant(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key-0001 alice\nbob-key-00002 bob operator\n")

    async def work(place: Place) -> None:
        place.http.headers["Authorization"] = "Bearer alice-key-0001"
        run, other = await place.open(), await place.open()
        assert len(run.id) >= 28
        assert run.id[4:] != other.id[4:]
        await run("append", text="ab")
        for headers, status in (({"Authorization": "Bearer bob-key-00002"}, 404), ({"Authorization": "no"}, 401)):
            place.http.headers.update(headers)
            for step, body in (
                ("append", {"text": "x"}), ("generate", {}), ("select", {"choices": ["a"]}),
                ("fork", {"count": 1}), ("join", {"branches": ["0"]}),
                *((step, {"branch": 0}) for step in ("append", "generate", "select", "fork", "join")),
            ):  # fmt: skip
                answer = await run(step, status=status, **body)
                if status == 404:  # whatever the body says
                    assert error_of(answer) == ("handle_not_found", None)
            await place.ask("GET", f"/v1/programs/{run.id}", status=status)
            await run.close(status)
        place.http.headers["Authorization"] = "Bearer bob-key-00002"
        await place.ask("DELETE", f"/v1/runs/{run.id}", status=204)  # his own run of that name, if there were one
        assert place.engine.ended == [("bob", run.id)]
        place.http.headers["Authorization"] = "Bearer alice-key-0001"
        await run("generate", max_tokens=1)
        assert [request.origin.tenant for request in place.engine.requests] == ["alice"]

    on(toy_engine(), work, config=ServerConfig(keys_file=str(keys)))


def test_runs_branches_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_runs, "MAX_RUNS", 2)
    monkeypatch.setattr(program_runs, "MAX_BRANCHES", 3)
    monkeypatch.setattr(program_runs, "MAX_BYTES", 100_000)

    async def work(place: Place) -> None:
        first, second = await place.open(), await place.open()
        refused = await place.http.post("/v1/programs", json={"name": "p"})
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        await first.close()
        first = await place.open()
        await first("append", text="x")
        await first("fork", count=2)
        await first("fork", count=1, status=429)
        await first("generate", n=2, status=429)
        await first("join", branches=["0", "1"])
        await first("fork", count=2)
        for _ in range(40):
            response = await place.http.post(f"/v1/programs/{second.id}/append", json={"text": "x" * 4000})
            if response.status_code != 200:
                break
        assert response.status_code == 429
        assert sum(run.size for run in place.programs._runs.values()) <= 100_000
        await second.close()
        await first("generate", max_tokens=1)

    on(toy_engine(), work, text=toy_text(context_length=100_000))


def test_what_is_counted_is_what_is_held():
    async def work(place: Place) -> None:
        run = await place.open()
        found = place.programs.find("", run.id)
        await run("append", text="x" * 1000)
        assert 1000 <= found.size - BRANCH_BYTES < 4000
        await run("generate", max_tokens=1)
        assert found.size >= 8 * 1000
        before = found.size
        await run("fork", count=3)
        assert found.size == before + 3 * BRANCH_BYTES
        await run("append", branch="1", token_ids=[97])
        assert found.size >= before + 3 * BRANCH_BYTES + 8 * 1000  # it has its own ids now
        await run("join", branches=["0", "1", "2"])
        assert found.size == before

    on(toy_engine(), work)


def test_forks_share_what_was_said_and_are_bounded_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_runs, "MAX_BYTES", 2_000_000)

    async def work(place: Place) -> None:
        run, other = await place.open(), await place.open()
        await run("append", text="ab " * 10_000)
        for _ in range(5):
            await run("fork", count=128)
        await other("append", text="x")
        held = sum(each.size for each in place.programs._runs.values())
        monkeypatch.setattr(program_runs, "MAX_BYTES", held + 100_000)
        refused = await other("fork", count=128, status=429)
        assert refused["error"]["message"] == "open runs hold 1 MiB, at most 1: close those that are over"
        await other("generate", n=64, status=429)
        await other("fork", count=2)
        await run.close()
        await other("fork", count=128)

    on(toy_engine(), work, text=toy_text(context_length=100_000))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_counted_stays_right_whatever_is_done(seed: int):
    """Against a count from the beginning of every object that is there, after each step."""
    draw = random.Random(seed)

    async def work(place: Place) -> None:
        services = place.app.state.services
        run = place.programs.open("", "p", ServedText(services.text.get(), None), None)
        for number in range(120):
            branch = draw.choice([*run.branches.values()])
            children = [each.path for each in run.branches.values() if each.is_forked_from(branch)]
            match draw.choice(("append", "fork", "join", "value")):
                case "append":
                    said = {"token_ids": [97 + number % 20]} if draw.random() < 0.5 else {"text": f"t{number} " * 9}
                    turns = branch.transcript.turns or (not branch.transcript.plain and draw.random() < 0.5)
                    said = {"messages": [{"role": "user", "content": f"m{number}"}]} if turns else said
                    await append(services, run, AppendRequest(branch=branch.path, **said))
                case "fork" if len(run.branches) < 40:
                    await fork(services, run, ForkRequest(branch=branch.path, count=draw.randint(1, 3)))
                case "join" if children:
                    some = draw.sample(children, draw.randint(1, len(children)))
                    join(run, JoinRequest(branch=branch.path, branches=some))
                case "value":
                    with run.step(branch):
                        branch.values[draw.choice("ab")] = f"value {number}"
            assert run.size == _all_that_is_held(run)
        for branch in [*run.branches.values()]:
            run.remove(branch)
        assert run.size == 0
        await place.programs.close(run)

    on(toy_engine(), work)


def _all_that_is_held(run: program_runs.OpenRun) -> int:
    there: dict[int, Any] = {}
    for branch in run.branches.values():
        said = branch.transcript
        texts = [op.text for op in said.pending if isinstance(op, Write)]
        turns = [part for turn in said.turns for part in (turn, turn.text, turn.content)]
        values = [part for value in branch.values.values() for part in _flat(value)]
        things = [said, said.ids, said.rendered, said.plain, *texts, *turns, *branch.values, *values]
        there |= {id(thing): thing for thing in things}
    turn_bytes = 1000 * sum(isinstance(thing, Turn) for thing in there.values())
    return len(run.branches) * BRANCH_BYTES + turn_bytes + sum(map(sys.getsizeof, there.values()))


def _flat(value: Any) -> list[Any]:
    return [value, *(part for each in value for part in _flat(each))] if isinstance(value, list) else [value]


def test_runs_that_nobody_uses_are_closed():
    async def work(place: Place) -> None:
        short, long = await place.open(idle_timeout=5), await place.open()
        await short("append", text="ab")
        place.now = 4
        await short("append", text="ab")
        place.now = 8.9
        await short.state()
        place.now = 14
        assert error_of(await short("append", text="x", status=404)) == ("handle_not_found", None)
        await long.state()
        place.programs.sweep()
        await asyncio.sleep(0)
        assert place.engine.ended == [("", short.id)]
        place.now = 1000
        place.programs._swept()
        await asyncio.sleep(0)
        assert len(place.programs) == 0
        assert place.programs._timer is None
        assert place.engine.ended[1:] == [("", long.id)]

    on(toy_engine(), work)


def test_a_run_is_not_idle_while_a_step_is_under_way():
    async def work(place: Place) -> None:
        run = await place.open(idle_timeout=1)
        await run("append", text="ab")
        step = asyncio.create_task(run("generate", max_tokens=20, ignore_eos=True))
        await _until(lambda: place.engine.running)
        place.now = 100
        place.programs.sweep()
        assert len(place.programs) == 1
        await step
        place.now = 100.5
        await run("generate", max_tokens=1)

    on(toy_engine(delay=0.002), work)


async def _until(fact: Any) -> None:
    for _ in range(2000):
        if fact():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come true in time")


# -- one step at a time, and its end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_one_step_at_a_time(stream: bool):
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", text="ab")
        await run("fork", count=2)
        step = asyncio.create_task(_post(run, "generate", branch="0", max_tokens=30, ignore_eos=True, stream=stream))
        await _until(lambda: place.engine.running)
        for name, body in (
            ("append", {"text": "x"}), ("generate", {}), ("select", {"choices": ["a"]}), ("fork", {"count": 1}),
        ):  # fmt: skip
            assert error_of(await run(name, branch="0", status=409, **body)) == ("branch_busy", "branch")
        assert error_of(await run("join", branches=["0"], status=409)) == ("branch_busy", "branches")
        await run("generate", branch="1", max_tokens=1)  # others go on
        assert (await step).status_code == 200
        await run("append", branch="0", text="x")

    on(toy_engine(delay=0.002), work)


async def _post(run: Handle, step: str, **body: Any) -> httpx.Response:
    return await run.place.http.post(f"/v1/programs/{run.id}/{step}", json=body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/programs/{}", "/v1/runs/{}"])
def test_closing_cancels_what_is_under_way(stream: bool, path: str):
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", text="ab")
        await run("fork", count=2)
        body = {"max_tokens": 400, "ignore_eos": True, "stream": stream}
        steps = [asyncio.create_task(_post(run, "generate", branch=branch, **body)) for branch in ("", "0")]
        steps.append(asyncio.create_task(_post(run, "select", branch="1", choices=["aa", "x"])))
        await _until(lambda: len(place.engine.running) == 4)
        await place.ask("DELETE", path.format(run.id), status=204)
        assert not place.engine.running
        assert place.engine.ended == [("", run.id)]
        assert len(place.programs) == 0
        for step in steps[:2]:
            answer = await step
            assert answer.status_code == (200 if stream else 404)
            *_, last = answer.text.strip().split("\n\n")
            assert error_of(json.loads(last.removeprefix("data: "))) == ("handle_not_found", None)
        assert (await steps[2]).status_code == 404
        await run.close(404)

    on(toy_engine(delay=0.03), work)


def test_closing_while_the_engine_has_not_accepted_yet():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", text="ab")
        place.engine.accepts = False
        step = asyncio.create_task(_post(run, "generate", max_tokens=400))
        await _until(lambda: place.engine.asked)
        await run.close()
        place.engine.accepts = True
        assert (await step).status_code == 404
        await _until(lambda: place.engine.cancelled)
        assert len(place.engine.cancelled) == 1
        assert not place.engine.running

    on(toy_engine(delay=0.01), work)


@pytest.mark.parametrize("fault", ["refused", "died", "late"])
def test_a_step_that_fails_leaves_its_branch_as_it_was(fault: str):
    async def work(place: Place) -> None:
        engine = place.engine
        run = await place.open()
        await run("append", messages=ASK, open="assistant", text="a")
        before = await run.state()
        body = {"max_tokens": 50, "ignore_eos": True, "timeout": 0.05 if fault == "late" else 60.0}
        engine.reject = Overloaded("full") if fault == "refused" else None
        step = asyncio.create_task(_post(run, "generate", **body))
        if fault == "died":
            await _until(lambda: engine.running)
            engine.die()
        assert (await step).status_code == {"refused": 429, "died": 503, "late": 504}[fault]
        engine.reject = None
        if fault == "died":
            engine.restart()
        assert await run.state() == before
        await run("append", text="b")
        await run("generate", max_tokens=1)
        begun = encode_segments([*chatml(ASK, True), Segment("ab", False)])
        assert engine.requests[-1].ids == begun

    on(toy_engine(delay=0.01), work)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_killed_leaks_nothing(stream: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_runs, "SWEEP_S", 0.02)
    engine = toy_engine(delay=0.02)
    with live(engine, text=toy_text()) as server:
        programs: program_runs.Programs = server.server.config.app.state.services.programs
        now = 0.0
        programs._clock = lambda: now
        client = httpx.Client(base_url=server.url)
        run = client.post("/v1/programs", json={"name": "p", "idle_timeout": 5}).json()["id"]
        path = f"/v1/programs/{run}"
        client.post(f"{path}/append", json={"text": "ab"})
        sock = server.connect()
        sock.sendall(raw_post(f"{path}/generate", {"max_tokens": 400, "ignore_eos": True, "stream": stream}))
        wait_for(lambda: engine.running)
        sock.close()
        wait_for(lambda: engine.cancelled)
        assert not engine.running
        assert not engine.finished
        assert client.post(f"{path}/append", json={"text": "ab"}).json()["characters"] == 4  # as it was, and free
        now = 5.1  # and then nobody comes any more
        wait_for(lambda: not len(programs))
        wait_for(lambda: engine.ended)
        assert engine.ended == [("", run)]
        client.close()
