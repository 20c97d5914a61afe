"""Every example comes to the same whichever way it is run: interpreted, compiled before, awaited, and over HTTP.

The first three run on an engine of this process, the last on a server with an engine of its own; both have the embedded
model. Two examples are about HTTP itself and have no program: they are the fourth way, and for the others the same is
written here as a program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import module_at
from live_engine import Served

import bosquet
from bosquet import Program, Result, State, gen
from bosquet.lang.loop import submit

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUNS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "batch": ("capital", ("Peru",)),
    "chat": ("talk", (["Name the capital of France.", "And of Italy?"],)),
    "extract": ("extract", ("Maria is 41 and teaches physics in Lisbon. She is a teacher.",)),
    "judge": ("judge", ("The soup was cold and the waiter was rude.",)),
    "quickstart": ("tell", ("tea", 12)),
    "skeleton": ("advise", ("How can I stay healthy?", 2)),
    "structured": ("triage", ("My laptop does not start since the update!",)),
    "tool_agent": ("shop", ("How much is 12 times 34?",)),
    "tree_of_thought": ("search", ("Tell me a story about the sea.", 2, 2, 1)),
}
"""The program of each example, and arguments."""
WITHOUT_PROGRAM = {"openai_client", "programs_http"}


@pytest.fixture(scope="module")
def engine() -> Iterator[bosquet.Engine]:
    with bosquet.Engine(cache_tokens=16384) as engine:
        submit(engine.text_start()).result()  # it is there
        yield engine


@pytest.fixture
def load() -> Callable[[str], ModuleType]:
    """Imports an example by its name, anew each time: what was compiled before is forgotten."""

    return lambda name: module_at(EXAMPLES / f"{name}.py", f"ways_{name}")


def outcome(result: Result[Any]) -> dict[str, Any]:
    """Whatever a run has come to, but for what it cost, and for the ids of calls, which are drawn."""
    variables = {name: repr(result[name]) for name in result if name != "act"}  # which tells how long tools took
    turns = [(message["role"], message["content"]) for message in result.messages]
    return {"value": repr(result.value), "text": result.text, "ids": result.ids, "turns": turns, **variables}


def ways(program: Program[Any], args: tuple[Any, ...], engine: bosquet.Engine) -> dict[str, Result[Any]]:
    """The three ways on an engine of this process."""
    assert not program._plans
    interpreted = program.run(*args, backend=engine)
    awaited = asyncio.run(program.arun(*args, backend=engine))
    assert program.compile(*args, backend=engine).steps
    assert program._plans
    return {"interpreted": interpreted, "awaited": awaited, "compiled": program.run(*args, backend=engine)}


def test_no_example_is_left_out() -> None:
    assert RUNS.keys() | WITHOUT_PROGRAM == {path.stem for path in EXAMPLES.glob("*.py")}
    for name in WITHOUT_PROGRAM:
        assert "@bosquet.program" not in (EXAMPLES / f"{name}.py").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_the_four_ways(name: str, engine: bosquet.Engine, served: Served, load: Callable[[str], ModuleType]) -> None:
    program_name, args = RUNS[name]
    program: Program[Any] = getattr(load(name), program_name)
    results = ways(program, args, engine)
    again: Program[Any] = getattr(load(name), program_name)
    results["HTTP"] = again.run(*args, backend=bosquet.BosquetServer(served.url))
    wanted = outcome(results["interpreted"])
    assert len(wanted["ids"]) > 10
    for way, result in results.items():
        assert outcome(result) == wanted, way


def test_an_openai_client_gets_what_programs_get(
    engine: bosquet.Engine, served: Served, load: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("openai_client")

    @bosquet.program(temperature=0)
    def greet(s: State) -> str:
        s.user("Say hello to the world.")
        s.assistant(gen("greeting", max_tokens=24))
        return str(s["greeting"])

    @bosquet.program(temperature=0)
    def city(s: State) -> Any:
        s.user("Name a big city and its country as JSON.")
        s.assistant(gen("city", schema=example.Answer, max_tokens=60))
        return s["city"]

    example.main(served.url)
    *greeting, answer, _ = capsys.readouterr().out.splitlines()
    for way, result in ways(greet, (), engine).items():
        assert result.value.rstrip("\n") == "\n".join(greeting), way
    for way, result in ways(city, (), engine).items():
        assert repr(result.value) == answer, way


def test_a_run_over_plain_http_comes_to_what_programs_come_to(
    engine: bosquet.Engine, served: Served, load: Callable[[str], ModuleType]
) -> None:
    """The first of its two branches: the seed of the other sample is the server's to choose."""

    @bosquet.program
    def advise(s: State, question: str) -> str:
        s.user(f"{question} Answer with one short line.")
        s.assistant(gen("point", temperature=0.8, seed=1, stop="\n", max_tokens=20))
        s.user(f"Say more about: {s['point']}")
        s.assistant(gen("reason", temperature=0, max_tokens=30))
        return str(s["reason"])

    question = "How can I learn to cook?"
    reason, _ = load("programs_http").advise(served.url, question)
    for way, result in ways(advise, (question,), engine).items():
        assert result.value == reason, way
