"""`bosquet explain` on a server and on files; nothing that a prompt holds reaches the terminal as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner
from why_bed import LocalEngine, Server, system, user

from bosquet.cli import app
from bosquet.errors import ConfigError
from bosquet.runtime.terminal_explain import printable, read_prompt

NASTY = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\u202eevil\u2066\x00\x9b31m\r\x08"
RULES = "Be brief, name your sources, and never guess where you can look it up. "


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with texts, which the command's HTTP calls reach without a network."""
    with Server(LocalEngine(), capture_text=True) as server:

        def request(method: str, url: str, json: Any, headers: dict[str, str], timeout: float) -> httpx.Response:
            assert url.startswith("http://here/")
            return server.call(method, url.removeprefix("http://here"), json, **headers)

        monkeypatch.setattr(httpx, "request", request)
        yield server


def explain(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *words])
    if isinstance(result.exception, Exception):
        raise result.exception
    return result.exit_code, result.output


def test_the_newest_request_is_explained(served: Server):
    served.chat([system(f"Now 08:00:01. {RULES}"), user("Hi")])
    request = served.chat([system(f"Now 08:00:09. {RULES}"), user("Hi")])["id"]
    code, said = explain("--last", "--url", "http://here")
    assert code == 0
    lines = said.splitlines()
    shared = len("system\nNow 08:00:0") + 1  # the marker is one token
    assert lines[0].startswith(f"{request}: {shared} of ")
    assert "diverged: timestamp" in lines[1]
    assert f"token {shared}: the system message, character 4" in lines[2]
    assert "'9. Be brief" in said
    assert "'1. Be brief" in said
    assert "Move what changes to the end" in said
    assert explain(request, "--url", "http://here")[1] == said


def test_control_characters_markup_and_directions_do_nothing_to_the_terminal(served: Server):
    served.chat([system(RULES), user(f"one {NASTY} two")])
    served.chat([system(RULES), user(f"one {NASTY[:4]}x{NASTY} three")])
    _, said = explain("--last", "--url", "http://here")
    assert all(each.isprintable() or each == "\n" for each in said)
    assert "\\x1b" in said
    assert "[2J" in said  # shown, not obeyed


def test_two_files_are_compared_by_a_server(served: Server, tmp_path: Path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps({"messages": [system(RULES), user(f"one{NASTY}")], "temperature": 0.3}))
    b.write_text(json.dumps([system(RULES), user(f"One{NASTY}")]))
    code, said = explain(str(a), str(b), "--url", "http://here")
    assert code == 0
    assert all(each.isprintable() or each == "\n" for each in said)
    assert "cause   case" in said
    assert "message 1 (user), character 0" in said


def test_equal_files_are_the_same(served: Server, tmp_path: Path):
    a = tmp_path / "a.txt"
    a.write_text(RULES)
    _, said = explain(str(a), str(a), "--url", "http://here")
    assert f"reuses {len(RULES)} of its {len(RULES)} tokens" in said
    assert "cause   same" in said


@pytest.mark.parametrize("words", [(), ("a", "b", "c"), ("id", "--last")])
def test_other_words_are_refused(words: tuple[str, ...]):
    with pytest.raises(ConfigError, match="explain takes the id of a request, --last, or two files"):
        explain(*words)


def test_an_unknown_request_is_said(served: Server):
    with pytest.raises(ConfigError, match="there is no request 'cmpl-x'"):
        explain("cmpl-x", "--url", "http://here")


def test_files_that_are_no_prompts_are_refused(tmp_path: Path):
    (tmp_path / "a.json").write_text('{"model": "x"}')
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.txt").write_bytes(b"\xff")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name, why in (
        ("a.json", "neither"),
        ("b.json", "not JSON"),
        ("deep.json", "not JSON"),
        ("c.txt", "cannot read"),
        ("d", "cannot read"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_prompt(tmp_path / name)


def test_printable_leaves_letters_of_all_scripts():
    assert printable("Grüße, 東京, مرحبا 🌲") == "Grüße, 東京, مرحبا 🌲"
    assert printable(NASTY).isprintable()


def test_random_bytes_never_get_through():
    text = os.urandom(4000).decode("latin-1")
    assert printable(text).isprintable()
