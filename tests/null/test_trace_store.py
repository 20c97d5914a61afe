"""The store of records: bounded, quick with many, whole after a kill, refused where it cannot be read."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bosquet.errors import ConfigError
from bosquet.runtime.server.ledger import ledger
from bosquet.runtime.server.trace_records import Captured, RequestRecord
from bosquet.runtime.server.trace_ring import TraceRing, Wanted
from bosquet.runtime.server.trace_store import TraceStore
from bosquet.runtime.trace import ChoiceTrace, Miss, Prefill, Trace


def record(number: int, **changes: Any) -> RequestRecord:
    """As a real one, in size and shape."""
    facts: dict[str, Any] = {
        "id": f"chatcmpl-{number:032x}", "request_id": f"req-{number:032x}", "tenant": f"tenant-{number % 3}",
        "program": f"program-{number % 7}", "run": f"run-{number // 8}", "step": "#1", "branch": "main",
        "route": "/v1/chat/completions", "model": "model", "arrival": 1e9 + number, "seconds": 0.5,
        "prompt_tokens": 1000, "cached_tokens": 900, "completion_tokens": 40, "params": {"max_tokens": 40},
        "engine": Trace(
            request=f"chatcmpl-{number:032x}", arrival=1e9 + number, prompt_tokens=1000, pace=0.001,
            choices=[
                ChoiceTrace(
                    admitted=0.01, first_token=0.1, ended=0.5, finish="length", cached=900, computed=100, generated=40,
                    prefills=[Prefill(100, 0.01, 0.09)], prefill_seconds=0.09, prefill_cost=0.05, decodes=30,
                    decode_seconds=0.4, drafts={"suffix": (20, 10)}, miss=Miss(cause="cold"),
                )
            ],
        ),
    }  # fmt: skip
    return RequestRecord(**{**facts, **changes})


def nothing(record: RequestRecord) -> None:
    """There is nothing to add."""


@pytest.fixture(scope="module")
def full() -> TraceStore:
    store = TraceStore("", 64 << 20)
    for number in range(10_000):
        store.put(record(number), nothing)
    assert asyncio.run(store.count()) == 10_000
    return store


@pytest.mark.alone
def test_each_question_to_ten_thousand_records_takes_less_than_a_second(full: TraceStore) -> None:
    """Of a processor, which others may use as well."""
    questions = [
        lambda: full.last(Wanted(), 1000),
        lambda: full.last(Wanted(tenant="tenant-1", program="program-2"), 100),
        lambda: full.last(Wanted(run="run-3"), 100),
        lambda: full.get(f"req-{5000:032x}", None),
        lambda: full.get("no such", "tenant-1"),
    ]
    for question in questions:
        began = time.process_time()
        asyncio.run(question())  # type: ignore[arg-type]
        assert time.process_time() - began < 1
    for by in ("program", "run"):
        began = time.process_time()
        lines = ledger(asyncio.run(full.calls(Wanted())), by)  # type: ignore[arg-type]
        assert time.process_time() - began < 1
        assert sum(line.calls for line in lines) == 10_000
        assert sum(line.saved_seconds for line in lines) == pytest.approx(10_000 * 900 * 0.001)
        assert sum(line.compute_seconds for line in lines) == pytest.approx(10_000 * 0.05)


def test_what_is_asked_for_is_what_was_put(full: TraceStore) -> None:
    page = asyncio.run(full.last(Wanted(tenant="tenant-1"), 5))
    assert [one.id for _, one in page] == [record(number).id for number in (9997, 9994, 9991, 9988, 9985)]
    older = asyncio.run(full.last(Wanted(tenant="tenant-1", before=page[-1][0]), 1))
    assert older[0][1] == record(9982)
    assert asyncio.run(full.get(record(7).request_id, None)) == record(7)
    assert asyncio.run(full.get(record(7).id, "tenant-1")) == record(7)
    assert asyncio.run(full.get(record(7).id, "tenant-2")) is None


@pytest.mark.parametrize("megabytes", [1, 3])
def test_the_file_keeps_below_its_cap_and_the_newest_stay(tmp_path: Path, megabytes: int) -> None:
    path, most = tmp_path / "traces", megabytes << 20
    ring = TraceRing(str(path), most)
    random = Random(3)
    biggest = 0
    for number in range(0, 1_600, 200):
        texts = [Captured("x" * random.randrange(9_000), ["y" * 100]) for _ in range(200)]
        ring.write([record(number + i, text=text) for i, text in enumerate(texts)])
        biggest = max(biggest, sum(file.stat().st_size for file in tmp_path.iterdir()))
    assert biggest <= most
    kept = [one.id for _, one in ring.last(Wanted(), 10_000)]
    assert kept == [record(1_599 - i).id for i in range(len(kept))]
    assert len(kept) > 25 * megabytes
    ring.close()


def test_a_smaller_cap_shrinks_the_file(tmp_path: Path) -> None:
    path = tmp_path / "traces"
    ring = TraceRing(str(path), 8 << 20)
    ring.write([record(number, text=Captured("x" * 20_000)) for number in range(200)])
    ring.close()
    assert path.stat().st_size > 3 << 20
    TraceRing(str(path), 2 << 20).close()
    assert path.stat().st_size < 2 << 20


def test_a_text_that_would_fill_the_file_is_left_out() -> None:
    ring = TraceRing("", 2 << 20)
    assert ring.write([record(1, text=Captured("x" * (1 << 20)))]) == 0
    ((_, found),) = ring.last(Wanted(), 1)
    assert found == record(1)


def test_a_file_is_only_for_its_owner_and_for_one_server(tmp_path: Path) -> None:
    path = tmp_path / "traces"
    ring = TraceRing(str(path), 1 << 20)
    ring.write([record(1)])
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    with pytest.raises(ConfigError, match="another server has it open"):
        TraceRing(str(path), 1 << 20)
    ring.close()
    again = TraceRing(str(path), 1 << 20)
    assert again.count() == 1
    again.close()


@pytest.mark.parametrize("content", [b"no database, but text that is as long as a header has to be" * 20, "other"])
def test_what_is_no_store_is_refused_and_left_alone(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "mine"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE mine (name TEXT)")
        db.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="mine"):
        TraceRing(str(path), 1 << 20)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="No such file"):
        TraceRing(str(tmp_path / "no" / "folder"), 1 << 20)


KILLED = """
import asyncio
import sys
from bosquet.runtime.server.trace_store import TraceStore
sys.path.insert(0, sys.argv[2])
from null.test_trace_store import nothing, record

store = TraceStore(sys.argv[1], 4 << 20)
number = 0
while True:
    store.put(record(number), nothing)
    number += 1
    if number == 300:
        asyncio.run(store.count())
        print("well under way", flush=True)
"""


def test_a_server_that_is_killed_in_the_middle_leaves_a_store_that_opens(tmp_path: Path) -> None:
    path, tests = tmp_path / "traces", Path(__file__).parents[1]
    for pause in (0.02, 0.11):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path), str(tests)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"well under way\n"
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        ring = TraceRing(str(path), 4 << 20)
        kept = ring.last(Wanted(), 100_000)
        assert kept
        numbers = [int(one.id.removeprefix("chatcmpl-"), 16) for _, one in kept]
        assert kept[0][1] == record(numbers[0])
        ring.close()
        with sqlite3.connect(path) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.close()


def test_a_store_that_is_dropped_leaves_no_thread() -> None:
    store = TraceStore("", 1 << 20)
    assert asyncio.run(store.count()) == 0
    thread = store._thread
    assert thread is not None
    del store
    thread.join(5)
    assert not thread.is_alive()


def test_what_cannot_be_kept_is_counted() -> None:
    store = TraceStore("", 1 << 20)
    asyncio.run(store.count())
    store._keeper._ring._db.execute("DROP TABLE requests")  # type: ignore[union-attr]
    store.put(record(1), nothing)
    store.close()
    assert store.dropped == 1


def test_a_fault_while_a_record_is_completed_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def fails(record: RequestRecord) -> None:
        raise RuntimeError("a fault of ours")

    store = TraceStore("", 1 << 20)
    store.put(record(1), fails)
    store.put(record(2), nothing)
    assert [one.id for _, one in asyncio.run(store.last(Wanted(), 9))] == [record(2).id, record(1).id]
    assert "a fault of ours" in caplog.text
