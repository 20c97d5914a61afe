"""`bench programs --trace`: traces of both forms, the clock of a replay, its reuse and the optimum, tables, options."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from bosquet.cli import app
from bosquet.errors import ConfigError
from bosquet.lang.classics_measured import OnServer, overhead
from bosquet.runtime.bench import replay_report
from bosquet.runtime.bench.programs import Language, Replays, measure
from bosquet.runtime.bench.progress import Progress
from bosquet.runtime.bench.replay import Cell, Spread, closed, jobs, played, replayed
from bosquet.runtime.bench.replay_optimum import reused
from bosquet.runtime.bench.replay_policies import BASELINE, POLICIES, engine
from bosquet.runtime.bench.replay_simulation import DECODE_S, PREFILL_S, STEP_S, Model, Observed, Pace, Replay, pace
from bosquet.runtime.bench.replay_traces import Run, Trace, read
from bosquet.types import PAGE

Requests = list[tuple[list[int], list[int]]]


def written(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def agent(conversation: str, at: int, length: int, ids: Sequence[int], out: int = 8, **more: Any) -> dict[str, Any]:
    row = {"conversation": conversation, "agent": 0, "timestamp": at, "input_length": length, "output_length": out}
    return {**row, "hash_ids": list(ids), "stop": "", "api_time_ms": 100, "think_time_ms": 1000, **more}


def mooncake(at: int, length: int, ids: Sequence[int], out: int = 8) -> dict[str, Any]:
    return {"timestamp": at, "input_length": length, "output_length": out, "hash_ids": list(ids)}


def prompts(trace: Trace, run: Run) -> list[list[int]]:
    return [turn.prompt(trace.block).tolist() for turn in run.turns]


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# ---- the optimum ----------------------------------------------------------------------------------------------------


def tokens(symbols: Sequence[int]) -> list[int]:
    """Each symbol is a page."""
    return [16 * symbol + at for symbol in symbols for at in range(PAGE)]


def random_requests(rng: random.Random, count: int) -> Requests:
    """Pages of few symbols; some prompts end inside a page, some go on from an earlier prompt and its answer."""
    known: list[list[int]] = [[]]
    made: Requests = []
    for _ in range(count):
        head = rng.choice(known)[: PAGE * rng.randint(0, 3)]
        prompt = head + tokens([rng.randint(1, 3) for _ in range(rng.randint(0, 2))]) + [1000 + rng.randint(0, 1)]
        prompt = prompt[: rng.choice([len(prompt), max(1, len(prompt) - 1)])]
        answer = tokens([rng.randint(4, 5)])[: rng.choice([0, 3, PAGE])]
        made.append((prompt, answer))
        known.append(prompt + answer)
    return made


def best_by_force(requests: Requests, pages: int) -> int:
    """The most whole pages that any choice of what to keep would reuse, found by trying all."""
    caches: dict[frozenset[tuple[int, ...]], int] = {frozenset(): 0}  # content → the most reused so far
    for prompt, answer in requests:
        whole = prompt + answer
        held = [tuple(whole[:end]) for end in range(PAGE, len(whole) + 1, PAGE)]
        after: dict[frozenset[tuple[int, ...]], int] = {}
        for cache, sofar in caches.items():
            hits = 0
            while hits < (len(prompt) - 1) // PAGE and held[hits] in cache:
                hits += 1
            there = sorted(cache | set(held))
            for kept in itertools.combinations(there, min(pages, len(there))):
                content = frozenset(kept)
                after[content] = max(after.get(content, 0), sofar + hits)
        caches = after
    return max(caches.values())


def arrays(requests: Requests) -> list[tuple[Any, Any]]:
    return [(np.array(prompt, np.int32), np.array(answer, np.int32)) for prompt, answer in requests]


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_no_choice_of_what_to_keep_reuses_more_than_the_optimum_and_one_reuses_as_much(pages: int) -> None:
    rng = random.Random(pages)
    tight = 0
    for _ in range(60):
        requests = random_requests(rng, 7)
        found = sum(tokens // PAGE for tokens in reused(arrays(requests), pages))
        assert found == best_by_force(requests, pages)
        tight += found < sum(tokens // PAGE for tokens in reused(arrays(requests), None))
    assert tight > 10  # room was short in many of them


def test_without_a_bound_all_is_reused_that_was_ever_computed() -> None:
    rng = random.Random(1)
    for _ in range(50):
        requests = random_requests(rng, 8)
        naive = []
        for at, (prompt, _) in enumerate(requests):
            before = [shared(prompt, earlier + answer) for earlier, answer in requests[:at]]
            naive.append(min(len(prompt) - 1, max(before, default=0)))
        assert reused(arrays(requests), None) == naive == reused(arrays(requests), 1000)


# ---- traces ---------------------------------------------------------------------------------------------------------


def test_a_trace_that_names_conversations(tmp_path: Path) -> None:
    rows = [
        agent("a", 0, 70, [1], out=20),
        agent("a", 9000, 200, [1, 2, 3], think_time_ms=None),
        agent("b", 0, 64, [1]),
        agent("a", 20_000, 70, [9], agent=1),
    ]
    trace = read(written(tmp_path / "t.jsonl.gz", rows), 4)
    assert (trace.block, trace.scale, trace.inferred, trace.requests) == (16, 4, False, 4)
    a, b = trace.runs
    first, second, sub = prompts(trace, a)
    assert [len(ids) for ids in (first, second, sub)] == [70 // 4, 200 // 4, 70 // 4]
    answer = next(a.turns).answer.tolist()
    assert len(answer) == 5
    assert first + answer == second[: len(first) + 5]  # a conversation appends
    assert shared(first, sub) == 0
    assert shared(first, prompts(trace, b)[0]) == 0  # ids are local to a conversation
    assert [turn.pause_s for turn in a.streams[0].turns] == [0.0, 8.9]  # 9 s without what the server took
    assert [stream.after for stream in a.streams] == [None, 1]  # a sub-agent begins after the turn before it


def test_a_trace_without_conversations(tmp_path: Path) -> None:
    rows = [
        mooncake(0, 1000, [1, 2]),  # a text and a question
        mooncake(10, 2000, [7, 8, 9, 10]),  # a conversation
        mooncake(1000, 1010, [1, 3]),  # another question about the text
        mooncake(2000, 2600, [7, 8, 9, 11, 12, 13]),  # the conversation goes on, from inside its last block
        mooncake(3000, 2300, [7, 20, 21, 22, 23]),  # the same system prompt, another conversation
        mooncake(4000, 1000, [1, 2]),  # the first question again
    ]
    trace = read(written(tmp_path / "t.jsonl", rows), 4)
    assert (trace.block, trace.inferred) == (128, True)
    assert [len(run.streams[0].turns) for run in trace.runs] == [3, 2, 1]
    text, talk, other = (prompts(trace, run) for run in trace.runs)
    assert text[0] == text[2]
    assert shared(text[0], text[1]) == 128
    assert shared(talk[0], talk[1]) == len(talk[0]) == 500
    assert shared(talk[0], other[0]) == 128  # ids are the file's
    assert [turn.pause_s for turn in trace.runs[0].streams[0].turns] == [0.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("text", "scale", "said"),
    [
        (b"", 4, "there is no request in it"),
        (b'{"a": 1}\n', 4, "a line is not in the form of a trace"),
        (b"\x1f\x8b\x00", 4, "a line is not in the form of a trace"),
        (json.dumps(mooncake(0, 10_000, [1])).encode(), 4, "no length of block"),
        (json.dumps(mooncake(0, 1000, [1, 2])).encode(), 3, "--scale 3: it must divide the 512 tokens"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: bytes, scale: int, said: str) -> None:
    (tmp_path / "t").write_bytes(text)
    with pytest.raises(ConfigError, match=said):
        read(str(tmp_path / "t"), scale)


def test_a_trace_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read("nowhere.jsonl", 4)


# ---- the replay -----------------------------------------------------------------------------------------------------


def replay(
    trace: Trace, pages: int, *, policy: int = 1, live: int = 24, stretch: float = 1.0
) -> tuple[Replay, Observed]:
    model, chosen = Model(), POLICIES[policy]
    made = engine(chosen, pages, model)
    run = Replay(trace, Pace(stretch, 0.0, 0), made, model, live=live, told=chosen.told, ends=chosen.ends, seed=1)
    seen = run.run()
    made.check_integrity()
    return run, seen


def conversations(path: Path, count: int, turns: int) -> Trace:
    rows = [
        agent(f"c{c}", 10_000 * turn, 300 + 200 * turn, range((300 + 200 * turn) // 64), out=100)
        for c in range(count)
        for turn in range(turns)
    ]
    return read(written(path / "t.jsonl", rows), 4)


def test_the_clock(tmp_path: Path) -> None:
    rows = [agent("a", 0, 2400, range(37), out=12), agent("a", 9000, 2480, range(38), out=4)]
    _, seen = replay(read(written(tmp_path / "t.jsonl", rows), 4), 100, stretch=0.5)
    # 600 tokens in two passes, the last of which draws the first of three tokens; then half of a second's pause
    first = 2 * STEP_S + 600 * PREFILL_S + 2 * (STEP_S + DECODE_S)
    # the second prompt has 620 tokens, of which the prompt and two tokens of the answer are cached
    second = STEP_S + 18 * PREFILL_S
    assert seen.latencies == pytest.approx([first, second])
    assert seen.completions == pytest.approx([first + 0.5 + second])
    assert seen.waits == [0.0, 0.0]
    assert (seen.prompt_tokens, seen.cached_tokens, seen.computed_tokens) == (1220, 602, 620)


@pytest.mark.parametrize("policy", range(len(POLICIES)))
def test_with_room_for_all_reuse_is_the_optimum(tmp_path: Path, policy: int) -> None:
    trace = conversations(tmp_path, 4, 5)
    run, seen = replay(trace, 1000, policy=policy, live=2)
    assert seen.cached_tokens == sum(reused(run.requests(), None)) > 0
    assert len(seen.latencies) == len(seen.waits) == len(seen.admitted) == trace.requests == 20
    assert len(seen.completions) == 4
    assert seen.evicted_pages == seen.preemptions == seen.shortened == 0


@pytest.mark.parametrize("policy", range(len(POLICIES)))
def test_under_pressure_reuse_stays_below_the_optimum(tmp_path: Path, policy: int) -> None:
    trace = conversations(tmp_path, 12, 5)
    run, seen = replay(trace, 40, policy=policy, stretch=0.01)
    assert len(seen.completions) == 12
    assert seen.evicted_pages > 0
    assert seen.cached_tokens <= sum(reused(run.requests(), 40)) < sum(reused(run.requests(), None))


def test_the_baseline_admits_in_the_order_of_arrival(tmp_path: Path) -> None:
    trace = conversations(tmp_path, 12, 4)
    run, _ = replay(trace, 40, policy=0, stretch=0.01)
    assert POLICIES[0] is BASELINE
    turns = {id(turn): at for run in trace.runs for stream in run.streams for at, turn in enumerate(stream.turns)}
    order = [turns[id(turn)] for turn, _ in run.observed.admitted]
    assert order == sorted(order)  # all were asked for at once, so everyone has a turn before anyone has the next


def test_a_sub_agent_begins_when_its_turn_has_ended(tmp_path: Path) -> None:
    rows = [
        agent("a", 0, 640, range(10)),
        agent("a", 50_000, 704, range(11)),
        agent("a", 20_000, 640, range(100, 110), agent=1),
        agent("a", 30_000, 704, range(100, 111), agent=1),
    ]
    run, seen = replay(read(written(tmp_path / "t.jsonl", rows), 4), 100)
    lengths = [length for _, length in run.observed.admitted]
    assert lengths == [160, 160, 176, 176]  # the sub-agent's first comes before the main agent's second
    assert len(seen.completions) == 1


def test_a_prompt_that_does_not_fit_is_shortened(tmp_path: Path) -> None:
    _, seen = replay(read(written(tmp_path / "t.jsonl", [agent("a", 0, 6400, range(100))]), 4), 20)
    assert seen.shortened == 1
    assert seen.prompt_tokens == 19 * PAGE - 2


def test_pauses_are_stretched_to_the_load(tmp_path: Path) -> None:
    """With a cache without bound, so many runs ask for `load` times what can be computed."""
    trace = conversations(tmp_path, 24, 5)
    for load in (0.5, 0.9, 1.2):
        found = pace(trace, 24, load)
        paused = found.stretch * sum(run.pauses_s for run in trace.runs) / 24
        assert 24 * (found.length_s - paused) / found.length_s == pytest.approx(load)
    assert found.working_set == 24 * ((300 + 4 * 200) // 64)


# ---- the grid, tables and options -----------------------------------------------------------------------------------


def cell(policy: str, reuse: float, optimum: float, mean: float, pool: float = 0.1) -> Cell:
    return Cell(
        trace="t", load=0.9, pool=pool, policy=policy, pages=100, reuse=reuse, optimum=optimum,
        run_s=Spread(mean, mean, 2 * mean, 3 * mean), request_s=Spread(1, 1, 1, 1), longest_wait_s=1, preemptions=0,
        evicted_pages=1, prompt_tokens=1, computed_tokens=1, shortened=0, steps=1, replay_s=1,
    )  # fmt: skip


def test_the_gap_is_that_to_the_higher_optimum() -> None:
    baseline = cell(BASELINE.name, 0.2, 0.5, 30)
    assert closed(cell("x", 0.4, 0.6, 10), baseline) == pytest.approx(0.5)
    assert closed(cell("x", 0.35, 0.4, 10), baseline) == pytest.approx(0.5)
    assert closed(baseline, baseline) is None
    assert closed(cell("x", 0.2, 0.2, 10), cell(BASELINE.name, 0.2, 0.2, 30)) is None


def test_targets_are_held_against_the_baseline_of_the_same_pool() -> None:
    cells = [cell(BASELINE.name, 0.2, 0.5, 30), cell("x", 0.4, 0.6, 10), cell("x", 0.4, 0.6, 10, pool=0.25)]
    assert [(row.value, row.met) for row in replay_report.targets(cells)] == [
        (pytest.approx(0.5), True),
        (3.0, True),
        (pytest.approx(1 / 3), True),
    ]
    slower = [cell(BASELINE.name, 0.2, 0.5, 30), cell("x", 0.3, 0.6, 40)]
    assert [row.met for row in replay_report.targets(slower)] == [False, False, False]


def test_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "short.jsonl"
    conversations(tmp_path, 6, 3)
    (tmp_path / "t.jsonl").rename(trace)
    monkeypatch.setattr(Progress, "say", lambda self, what, outcome: None)
    out = tmp_path / "out.json"
    replays = Replays(traces=[str(trace)], pools="0.25,1", loads="0.9", runs=4, processes=1)
    measure(replays, None, Language(OnServer, overhead), str(out))
    found = json.loads(out.read_text())["replay"]
    (about,) = found["traces"]
    assert (about["runs"], about["requests"], about["scale"], about["inferred"]) == (4, 12, 4, False)
    assert [(row["pool"], row["policy"]) for row in found["cells"]] == [
        (pool, policy.name) for pool in (0.25, 1.0) for policy in POLICIES
    ]
    for row in found["cells"]:
        assert 0 <= row["reuse"] <= row["optimum"] <= 1
        assert row["run_s"]["most"] >= row["run_s"]["p99"] >= row["run_s"]["p50"] > 0


def test_the_tables(tmp_path: Path) -> None:
    conversations(tmp_path, 6, 3)
    todo = jobs([str(tmp_path / "t.jsonl")], 4, 0, [1.2], [0.5])
    cells = list(replayed(todo, 1))
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    replay_report.show(played(todo), cells, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "t, load 1.2: 6 runs, 18 requests, lengths divided by 4" in " ".join(shown.split())
    assert "…" not in shown
    for policy in POLICIES:
        assert policy.name in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pools", "a"), "--pools a: expected numbers"),
        (("--pools", "0"), "--pools: a pool must be more than 0"),
        (("--loads", "-1"), "--loads: a load must be more than 0"),
        (("--trace", "nowhere.jsonl"), "--trace nowhere.jsonl: No such file"),
    ],
)
def test_wrong_options(tmp_path: Path, options: tuple[str, str], said: str) -> None:
    trace = written(tmp_path / "t.jsonl", [agent("a", 0, 640, range(10))])
    result = CliRunner().invoke(app, ["bench", "programs", "--trace", trace, *options])
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
