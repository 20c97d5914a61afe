"""A whole measurement: the order of passes, servers that fail, Ctrl-C, what is written and printed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes_openai import FakeOpenAI

from bosquet.errors import BosquetError, ConfigError, ModelLoadError
from bosquet.runtime.bench.command import measure
from bosquet.runtime.bench.own_server import own_server


def bench(workload: list[str], server: FakeOpenAI, out: Path | str = "", **more: Any) -> None:
    given: dict[str, Any] = {"against": [], "rounds": 1, "profile": False, "url": server.url}
    measure(workload, out=str(out), **{**given, **more})


def prompts(server: FakeOpenAI) -> list[tuple[str, bool]]:
    return [(body["prompt"], body["stream"]) for _, body in server.bodies]


def test_servers_take_turns_on_the_same_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []
    with (
        FakeOpenAI(owner="bosquet", on_post=lambda n: order.append("a")).running() as ours,
        FakeOpenAI(on_post=lambda n: order.append("b")).running() as theirs,
    ):
        bench(["single", "prefill"], ours, tmp_path / "o.json", against=[f"peer={theirs.url}/v1"], rounds=2)
    single = ["a", "b"] + ["aaa", "bbb"] * 4  # warm-up; then in each round whole and streamed
    prefill = ["a", "b"] + ["aaaaaa", "bbbbbb"] * 2 + ["a", "b"] + ["aaa", "bbb"] * 2
    assert "".join(order) == "".join(single + prefill)
    assert prompts(ours) == prompts(theirs)
    assert len(set(prompts(ours))) == len(prompts(ours))
    found = json.loads((tmp_path / "o.json").read_text())
    assert [server["name"] for server in found["servers"]] == ["bosquet", "peer"]
    assert [server["version"] for server in found["servers"]] == ["1.2.3", "1.2.3"]
    assert len(found["readings"]) == 2 * (4 + 2 + 2)
    assert "prefill 4096" in capsys.readouterr().out


def test_a_server_that_fails_is_reported_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeOpenAI(owner="bosquet").running() as ours, FakeOpenAI(fails=lambda n: 500).running() as theirs:
        bench(["single", "prefill"], ours, tmp_path / "o.json", against=[f"peer={theirs.url}"])
    shown = capsys.readouterr()
    assert "single, peer: 6 failed: 500: planted" in shown.out
    assert "no result, 3 failed" in shown.err
    summary = json.loads((tmp_path / "o.json").read_text())["summary"]
    assert [(row["server"], row["figure"] is None) for row in summary] == [("bosquet", False), ("peer", True)] * 3


def test_nothing_but_failures_is_an_error() -> None:
    with FakeOpenAI(fails=lambda n: 500).running() as server, pytest.raises(BosquetError, match="no request succeeded"):
        bench(["single"], server)


def test_a_server_that_dies_meanwhile(tmp_path: Path) -> None:
    with FakeOpenAI(owner="bosquet").running() as ours, FakeOpenAI().running() as theirs:
        ours.on_post = lambda n: setattr(theirs, "gate", 99) if n == 20 else None  # from then on it says nothing
        theirs.fails = lambda n: 503 if n > 3 else None
        bench(["single"], ours, tmp_path / "o.json", against=[f"peer={theirs.url}"])
    readings = json.loads((tmp_path / "o.json").read_text())["readings"]
    failed = {(r["server"], r["streamed"]): sum(a["error"] is not None for a in r["answers"]) for r in readings}
    assert failed == {("bosquet", False): 0, ("peer", False): 0, ("bosquet", True): 0, ("peer", True): 3}


def test_ctrl_c_shows_and_writes_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(n: int) -> None:
        if n == 5:  # warm-up, three of the first pass, one of the second
            os.kill(os.getpid(), signal.SIGINT)

    with FakeOpenAI(on_post=interrupt, first_s=0.5).running() as server, pytest.raises(KeyboardInterrupt):
        bench(["single"], server, tmp_path / "o.json")
    assert len(json.loads((tmp_path / "o.json").read_text())["readings"]) == 1
    assert "output tok/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": ["singel"]}, "no workload 'singel'"),
        ({"against": ["x"]}, "expected NAME=URL"),
        ({"against": ["fake=URL"]}, "two servers are called 'fake'"),
        ({"against": ["x=ftp://y"]}, "not the address of a server"),
        ({"rounds": 0}, "--rounds must be at least 1"),
        ({"out": "/nowhere/at/all.json"}, "not a file in an existing folder"),
    ],
)
def test_wrong_options_are_found_before_anything_is_measured(change: dict[str, Any], message: str) -> None:
    with FakeOpenAI().running() as server:
        change = json.loads(json.dumps(change).replace("URL", server.url)) if "two" in message else change
        given: dict[str, Any] = {"workload": ["single"], "url": server.url, "against": [], "rounds": 1, "out": ""}
        with pytest.raises(ConfigError, match=message):
            measure(profile=False, **{**given, **change})
    assert server.bodies == []


def test_a_server_of_our_own_that_cannot_start_says_why() -> None:
    with pytest.raises(ModelLoadError, match=r"^/no/such/model: no such"), own_server("/no/such/model"):
        pytest.fail("it cannot have started")
