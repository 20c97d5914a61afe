"""Every example does on the embedded model what it says: as a script, and through `bosquet run`.

The engine that an example starts is the shared server here, so that the model is loaded once; one is run for real.
What the model writes is never compared, only its shape and what it cost.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
from by_path import module_at
from live_engine import Served
from typer.testing import CliRunner

import bosquet
from bosquet import Meta
from bosquet.cli import app

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
PROGRAMS = [name for name in NAMES if name not in ("openai_client", "programs_http")]  # which need no bosquet here

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, served: Served) -> Load:
    """Imports an example by its name."""
    monkeypatch.setattr(bosquet, "Engine", lambda: bosquet.BosquetServer(served.url))

    return lambda name: module_at(ROOT / "examples" / f"{name}.py", f"example_{name}")


@pytest.fixture
def backend(served: Served) -> bosquet.BosquetServer:
    return bosquet.BosquetServer(served.url)


def computed(meta: Meta) -> int:
    """Tokens that a call leaves in the cache: the last one that it drew has not gone through the model."""
    return meta.prompt_tokens + meta.completion_tokens - 1


@pytest.mark.parametrize("name", NAMES)
def test_it_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert len(text.splitlines()) < 60
    assert f"    python examples/{name}.py" in text
    assert 'if __name__ == "__main__":\n    main(' in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_command_in_its_docstring_works(name: str, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "examples" / f"{name}.py").read_text()
    line = next(line for line in text.splitlines() if line.startswith(f"    bosquet run examples/{name}.py:"))
    done = CliRunner().invoke(app, [*shlex.split(line)[1:], "--url", served.url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert re.search(r"^(\w+ =|returned) ", done.output, re.MULTILINE), done.output


def test_one_as_a_script_with_an_engine_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    known, prompt = re.search(r"^(\d+) of (\d+) prompt tokens were known already$", done.stdout, re.M).groups()  # type: ignore[union-attr]
    assert 0 < int(known) < int(prompt)


def test_quickstart(load: Load, backend: bosquet.BosquetServer, capsys: pytest.CaptureFixture[str]) -> None:
    example = load("quickstart")
    example.main()
    printed = capsys.readouterr().out
    assert printed.startswith(example.tell.run("tea", backend=backend)["answer"])  # streamed and whole are one text


def test_chat_computes_only_what_is_new(load: Load, backend: bosquet.BosquetServer) -> None:
    example = load("chat")
    result = example.talk.run(example.QUESTIONS, backend=backend)
    metas = [result.meta(f"answer_{number}") for number in (1, 2, 3)]
    assert [message["role"] for message in result.messages] == ["system"] + ["user", "assistant"] * 3
    for before, after in itertools.pairwise(metas):
        assert computed(before) <= after.cached_tokens < after.prompt_tokens


def test_extract_gives_a_checked_object(load: Load, backend: bosquet.BosquetServer) -> None:
    example = load("extract")
    result = example.extract.run("Bob, a doctor of 50 years, lives in Oslo.", backend=backend)
    assert isinstance(result.value, example.Person)
    assert json.loads(result.meta("person").text) == result.value.model_dump()


def test_skeleton_shares_what_came_before_the_fork(load: Load, backend: bosquet.BosquetServer) -> None:
    example = load("skeleton")
    result = example.advise.run("How can I learn to cook?", points=2, backend=backend)
    assert len(result["reason"]) == len(result.value.splitlines()) == 2
    before = computed(result.meta("point_1"))
    assert all(before <= meta.cached_tokens < meta.prompt_tokens for meta in result.meta("reason"))


def test_tree_of_thought(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    load("tree_of_thought").main()
    *steps, costs = capsys.readouterr().out.splitlines()
    assert len(steps) == 2
    calls, cached, prompt = map(int, re.findall(r"\d+", costs))
    assert calls == 2 * 3 + 2 * 6  # three thoughts, then two times three; and as many ratings
    assert 0 < cached < prompt


def test_judge(load: Load, backend: bosquet.BosquetServer) -> None:
    example = load("judge")
    results = [example.judge.run(review, backend=backend) for review in example.REVIEWS]
    for result in results:
        scores = result.meta("mood").scores
        assert set(scores) == {" happy", " angry"}
        assert result.value == max(scores, key=scores.__getitem__).strip()
    assert len({json.dumps(result.meta("mood").scores) for result in results}) == len(results)


def test_batch(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    example = load("batch")
    example.main()
    captured = capsys.readouterr()
    *cities, last = captured.out.splitlines()
    assert [line.split(":")[0] for line in cities] == example.COUNTRIES
    assert all(re.fullmatch(r"[A-Z]\w+: [A-Z][a-z]+( [A-Z][a-z]+)?\.?", line) for line in cities)
    cached, prompt = map(int, re.findall(r"\d+", last))
    assert prompt / 2 < cached < prompt
    assert "8/8" in captured.err


def test_tool_agent(load: Load, backend: bosquet.BosquetServer) -> None:
    example = load("tool_agent")
    for question in ("What does one bread cost?", "How much is 12 times 34?"):
        acted = example.shop.run(question, backend=backend)["act"]
        first, *others = acted.steps
        assert len(first.calls) == 1  # it has to call, and makes one call at a time
        assert all(len(step.calls) <= 1 for step in others)
        for call in acted.calls:
            tool = {"price": example.price, "multiply": example.multiply}[call.name]
            jsonschema.validate(json.loads(call.arguments), tool.parameters)
            assert call.error is None or (call.name, call.text) == ("price", "KeyError: 'wine'")
        assert acted.steps[0].meta.prompt_tokens > 50
        for before, after in itertools.pairwise(acted.steps):
            assert computed(before.meta) <= after.meta.cached_tokens < after.meta.prompt_tokens


def test_structured(load: Load, backend: bosquet.BosquetServer) -> None:
    example = load("structured")
    result = example.triage.run("I lost my key card.", backend=backend)
    assert result["kind"] in ("broken", "lost", "question")
    assert result["priority"] in "12345"
    jsonschema.validate(result["tags"], example.TAGS)
    assert isinstance(result.value, example.Summary)
    assert len(result.value.title) <= 40


def test_openai_client(load: Load, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    load("openai_client").main(served.url)
    *greeting, answer, verdict = capsys.readouterr().out.splitlines()
    assert any(greeting)
    assert re.fullmatch(r"Answer\(city='.*', country='.*'\)", answer)
    assert verdict in ("yes", "no")


def test_programs_http(load: Load, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    load("programs_http").main(served.url)
    printed = capsys.readouterr().out
    known = [int(count) for count in re.findall(r" (\d+) tokens were there already\.$", printed, re.MULTILINE)]
    assert len(known) == 2
    assert min(known) > 20  # the question, which was sent once
    assert printed.count("\n- ") >= 1


@pytest.mark.parametrize("name", ["chat", "extract", "skeleton", "judge", "structured", "tool_agent"])
def test_main_prints(name: str, load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    load(name).main()
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert captured.err == ""
