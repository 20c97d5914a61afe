"""The command line: every setting is an option, help teaches, mistakes are one line and exit code 2."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes_engine import info
from typer.testing import CliRunner, Result

import bosquet.cli
import bosquet.runtime.bench.command
import bosquet.runtime.launch
import bosquet.runtime.terminal_chat
from bosquet.cli import app
from bosquet.errors import ConfigError
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.settings import EngineConfig
from bosquet.types import ModelInfo

BOSQUET = Path(sys.executable).with_name("bosquet")


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"})


def shell(*words: str) -> tuple[int, list[str]]:
    """Exit code and lines of standard error of the real command."""
    done = subprocess.run([BOSQUET, *words], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, [line for line in done.stderr.splitlines() if line.strip()]


class Calls(list[tuple[tuple[Any, ...], dict[str, Any]]]):
    """Stands in for a function and keeps what it was called with."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.append((args, kwargs))


def knobs(config: type, basic: bool) -> list[str]:
    return [
        f"--{field.name.replace('_', '-')}"
        for field in dataclasses.fields(config)
        if field.metadata["basic"] is basic and field.name != "model"
    ]


def test_help_shows_the_usual_options_only() -> None:
    result = invoke("serve", "--help")
    assert result.exit_code == 0
    for config in (EngineConfig, ServerConfig):
        assert [name for name in knobs(config, basic=True) if name not in result.output] == []
        assert [name for name in knobs(config, basic=False) if name in result.output] == []


def test_help_all_shows_every_option_in_full_with_its_choices() -> None:
    done = subprocess.run(
        [BOSQUET, "serve", "--help-all"], capture_output=True, text=True, check=True, env={"COLUMNS": "80"}
    )
    for config in (EngineConfig, ServerConfig):
        for name in knobs(config, basic=True) + knobs(config, basic=False):
            assert f"  {name} " in done.stdout
    assert "<lru|lfu>" in done.stdout
    assert "\n  bosquet serve ./my-model --port 9000\n" in done.stdout


@pytest.mark.parametrize("command", ["serve", "chat", "run", "bench", "export"])
def test_help_gives_an_example(command: str) -> None:
    result = invoke(command, "-h")
    assert result.exit_code == 0
    assert f" bosquet {command} " in result.output
    assert "[dim]" not in result.output


def test_help_lists_the_commands() -> None:
    result = invoke("--help")
    for command in ("serve", "chat", "run", "bench", "export", "doctor", "version"):
        assert f" {command} " in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serve", "--dtype", "int3"), "'int3' is not one of"),
        (("serve", "--port", "http"), "Invalid value for '--port'"),
        (("serve", "--frobnicate"), "No such option: --frobnicate"),
        (("serve", "a", "b"), "unexpected extra argument"),
        (("bench", "--rounds", "0"), "Invalid value for '--rounds'"),
        (("chat", "--temperature", "-1"), "Invalid value for '--temperature'"),
        (("chat", "--max-tokens", "0"), "Invalid value for '--max-tokens'"),
        (("run",), "Missing argument"),
        (("frobnicate",), "No such command 'frobnicate'"),
    ],
)
def test_wrong_options_are_named(words: tuple[str, ...], message: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("bosquet: ")
    assert message in line


# ---- what reaches the functions behind the commands ---------------------------------------------------------------


def test_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(bosquet.runtime.launch, "serve", calls)
    words = (
        "serve some/model --port 0 --dtype float32 --no-prefix-cache --cors-origins * --cors-origins a://b --threads 3"
    )
    assert invoke(*words.split()).exit_code == 0
    assert invoke("serve").exit_code == 0
    (engine, server, *_), _ = calls[0]
    assert engine == EngineConfig(model="some/model", dtype="float32", prefix_cache=False, threads=3)
    assert server == ServerConfig(port=0, cors_origins=("*", "a://b"))
    assert calls[1][0][:2] == (EngineConfig(), ServerConfig())


@pytest.mark.parametrize("keys", [(), ("--keys-file", "keys")])
def test_serve_shows_a_command_that_the_server_answers(keys: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def serving(engine: Any, server: Any, listening: Callable[[str], None], ready: Callable[[ModelInfo], None]) -> None:
        listening("http://127.0.0.1:8000")
        ready(info(name="it's a model"))

    monkeypatch.setattr(bosquet.runtime.launch, "serve", serving)
    _, _, shown = invoke("serve", *keys).output.partition("try:\n")
    words = shlex.split(shown)
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    headers = [value for option, value in pairwise(words) if option == "-H"]
    assert sorted(headers) == ["Authorization: Bearer KEY"] * bool(keys) + ["Content-Type: application/json"]
    assert json.loads(words[-1])["model"] == "it's a model"


def test_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(bosquet.runtime.bench.command, "measure", calls)
    words = "bench -w single -w json --url u --against a=b --against c=d,vllm --peers p --rounds 3 --out f --profile"
    assert invoke(*words.split()).exit_code == 0
    given = {"url": "u", "against": ["a=b", "c=d,vllm"], "peers": "p", "rounds": 3, "out": "f", "profile": True}
    assert calls == [((["single", "json"],), given)]


def test_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, backends = Calls(), Calls()
    monkeypatch.setattr(bosquet.runtime.terminal_chat, "converse", calls)
    monkeypatch.setattr(bosquet.cli, "_backend", lambda *given: backends(*given) or nullcontext("backend"))
    assert invoke("chat", "m", "--system", "s", "--max-tokens", "9", "--temperature", "0").exit_code == 0
    assert backends == [(("m", ""), {})]
    (args, given) = calls[0]
    assert args == ("backend",)
    assert {**given, "run": None} == {"system": "s", "max_tokens": 9, "temperature": 0.0, "run": None}


PROGRAM = """
from bosquet.lang import Program

class Result(dict):
    text = "a [b]"
    value = None

class Fake(Program):
    def __init__(self):
        self.name = "tell"

    def check(self, **arguments):
        if "n" not in arguments:
            raise TypeError("tell(n): missing a required argument: 'n'")

    def run(self, *, backend, **arguments):
        print(backend, arguments)
        return Result(n=3)

tell = Fake()
other = 1
"""


def test_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bosquet.cli, "_backend", lambda *given: nullcontext(given))
    (tmp_path / "p.py").write_text(PROGRAM)
    result = invoke("run", f"{tmp_path}/p.py:tell", "-a", "n=3", "-a", "topic=green tea", "--url", "u")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["('embedded', 'u') {'n': 3, 'topic': 'green tea'}", "a [b]", "n = 3"]


def test_run_without_an_argument_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bosquet.cli, "_backend", lambda *given: nullcontext(given))
    (tmp_path / "p.py").write_text(PROGRAM)
    result = invoke("run", f"{tmp_path}/p.py:tell")
    assert isinstance(result.exception, ConfigError)
    assert "missing a required argument: 'n'" in str(result.exception)


REAL_PROGRAM = """
import bosquet

@bosquet.program
def tell(s, n=1):
    s.user(str(n))
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-a", "nope=1"), "tell(n=1): got an unexpected keyword argument 'nope'"),
        (("-a", "backend=1"), "tell(n=1): got an unexpected keyword argument 'backend'"),
        (("-a", "self=1"), "tell(n=1): got an unexpected keyword argument 'self'"),
        (("-a", "=1"), "tell(n=1): got an unexpected keyword argument ''"),
        (("-a", "deep=" + "[" * 5000), "tell(n=1): got an unexpected keyword argument 'deep'"),
    ],
)
def test_run_with_an_argument_that_the_program_does_not_take_is_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(REAL_PROGRAM)
    code, lines = shell("run", f"{tmp_path}/p.py:tell", *arguments)
    assert (code, lines) == (2, [f"bosquet: {message}; give arguments with -a name=value"])


# ---- exit codes of the real command --------------------------------------------------------------------------------


def test_version() -> None:
    done = subprocess.run([BOSQUET, "version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"bosquet {bosquet.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bench", "-w", "nope"), "bosquet: no workload 'nope'; there are single, prefill, streams, agents, json"),
        (("bench", "--url", "http://127.0.0.1:1"), "bosquet: cannot reach http://127.0.0.1:1: "),
        (("run", "missing.py:x"), "bosquet: missing.py:x: expected FILE:PROGRAM, with an existing file"),
        (("run", "FILE:other"), "p.py has no program named other; it has tell"),
        (("compile", "FILE:"), "of which program? it has tell"),
        (("run", "FILE:tell", "-a", "n=1", "--url", "127.0.0.1:1"), "has no scheme; write 'http://127.0.0.1:1'"),
        (("run", "FILE:tell", "-a", "x"), "bosquet: --arg x: expected name=value"),
        (("serve", "--keys-file", "/missing"), "/missing"),
    ],
)
def test_what_the_user_can_mend_is_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    code, lines = shell(*(word.replace("FILE", str(tmp_path / "p.py")) if "FILE:" in word else word for word in words))
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


def failures_of(words: tuple[str, ...]) -> list[str]:
    code, lines = shell(*words)
    assert code == 2
    assert not any("Traceback" in line for line in lines)
    return [line for line in lines if line.startswith("bosquet: ")]


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "/no/such/model", "--port", "0"),
        ("chat", "/no/such/model"),
        ("export", "/no/such/model", "OUT"),
    ],
    ids=lambda words: words[0],
)
def test_an_unknown_model_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    found = failures_of(tuple(str(tmp_path / "o") if word == "OUT" else word for word in words))
    assert len(found) == 1
    assert found[0].startswith("bosquet: /no/such/model: no such file or folder")


ERRORS: list[tuple[str, int]] = [
    ("errors.ConfigError('x')", 2),
    ("errors.ModelLoadError('x')", 2),
    ("errors.BosquetError('x')", 1),
    ("KeyboardInterrupt()", 130),
]


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_exit_codes(error: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raised = eval(error, {"errors": bosquet.errors})

    def fail() -> None:
        raise raised

    monkeypatch.setattr(bosquet.cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        bosquet.cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == ("" if code == 130 else "bosquet: x\n")
