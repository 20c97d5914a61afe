"""The terminal chat: what is sent, what is shown, Ctrl-C, and text that must not command the terminal."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import bosquet.cli
from bosquet.errors import BosquetError, ConfigError, ModelLoadError, PromptTooLong
from bosquet.lang.loop import submit
from bosquet.runtime.terminal_chat import HELP, clean, converse
from bosquet.types import Call, Chunk, Message, Segment

Answer = Callable[[], AsyncGenerator[Chunk, None]]


def says(*pieces: str, cached: int | None = 7) -> Answer:
    async def answer() -> AsyncGenerator[Chunk, None]:
        for number, piece in enumerate(pieces):
            yield Chunk(piece, [number], completion_tokens=number + 1, cached_tokens=cached)
        yield Chunk(finish="stop")

    return answer


class Messages:
    """Carries messages; answers from a list."""

    capabilities = frozenset({"messages"})

    def __init__(self, *answers: Answer) -> None:
        self.answers = iter(answers)
        self.calls: list[Call] = []

    def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        self.calls.append(call)
        return next(self.answers)()


class Tokens(Messages):
    """Carries tokens: a token is a character of the rendered text."""

    capabilities = frozenset({"tokens"})
    started = 0

    async def text_start(self) -> list[int]:
        self.started += 1
        return []

    async def encode(self, segments: Sequence[Segment]) -> list[int]:
        return [ord(character) for segment in segments for character in segment.text]

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[Segment]:
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return [Segment(text + "<assistant>" * add_generation_prompt, False)]


def talk(backend: Messages, *said: str | type[BaseException], system: str = "", **more: Any) -> str:
    lines: Iterator[str | type[BaseException]] = iter([*said, EOFError])

    def ask(prompt: str) -> str:
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    shown = io.StringIO()
    given: dict[str, Any] = {"max_tokens": 64, "temperature": 0.5, **more}
    converse(backend, system=system, run=submit, console=Console(file=shown, width=200), ask=ask, **given)
    return shown.getvalue()


def sent(call: Call) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in call.messages]


def test_a_conversation_carries_what_was_said() -> None:
    backend = Messages(says("he", "llo"), says("fine"))
    shown = talk(backend, "hi", "", "how are you?", system="be kind")
    first = [("system", "be kind"), ("user", "hi")]
    assert sent(backend.calls[0]) == first
    assert sent(backend.calls[1]) == [*first, ("assistant", "hello"), ("user", "how are you?")]
    assert (backend.calls[0].sampling.max_tokens, backend.calls[0].sampling.temperature) == (64, 0.5)
    assert backend.calls[0].origin.program == "chat"
    lines = shown.splitlines()
    assert lines[0] == HELP
    assert lines[1] == "hello"
    assert lines[2].startswith("(2 tokens, 7 cached, ")
    assert lines[2].endswith(" tok/s)")
    assert lines[4].startswith("(1 token, 7 cached, ")


def test_a_token_backend_is_sent_the_rendered_ids() -> None:
    backend = Tokens(says("a"), says("b"))
    talk(backend, "x", "y")
    assert backend.started == 1  # the model was loaded before the first question
    prompts = ["".join(map(chr, call.ids)) for call in backend.calls]
    assert prompts == ["<user>x<assistant>", "<user>x<assistant>a<user>y<assistant>"]
    assert list(backend.calls[0].messages) == []


def test_reset_keeps_the_system_prompt_and_quit_ends() -> None:
    backend = Messages(says("a"), says("b"))
    shown = talk(backend, "x", "/reset", "y", "/what", "/quit", "never", system="s")
    assert sent(backend.calls[1]) == [("system", "s"), ("user", "y")]
    assert len(backend.calls) == 2
    assert f"no command /what: {HELP}" in shown


def test_what_is_no_character_is_replaced_before_it_is_sent() -> None:
    backend = Messages(says("a"))
    talk(backend, "caf\udce9 \ud83d", system="\udcff")
    assert sent(backend.calls[0]) == [("system", "\ufffd"), ("user", "caf\ufffd \ufffd")]


def test_input_that_is_not_utf8_is_replaced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Messages(says("a"), says("b"))
    monkeypatch.setattr(bosquet.cli, "_backend", lambda *_: nullcontext(backend))
    done = CliRunner().invoke(bosquet.cli.app, ["chat"], input=b"\xff\xfe\ncaf\xc3\xa9\n")
    assert done.exception is None
    assert sent(backend.calls[1]) == [("user", "\ufffd\ufffd"), ("assistant", "a"), ("user", "café")]


def test_what_is_not_known_is_left_out() -> None:
    async def counts() -> AsyncGenerator[Chunk, None]:
        yield Chunk("ab", [1, 2])
        yield Chunk("c", [3], finish="length")

    shown = talk(Messages(counts), "x")
    assert "(3 tokens, " in shown
    assert "cached" not in shown


def test_ctrl_c_stops_the_answer_and_stays() -> None:
    cancelled = []

    async def endless() -> AsyncGenerator[Chunk, None]:
        try:
            yield Chunk("half an ans", [1])
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            cancelled.append(True)

    backend = Messages(endless, says("fine"))
    shown = talk(backend, "x", "go on")
    assert cancelled == [True]
    assert " stopped" in shown
    assert sent(backend.calls[1]) == [("user", "x"), ("assistant", "half an ans"), ("user", "go on")]
    assert "fine" in shown


def test_ctrl_c_at_the_prompt_stays() -> None:
    backend = Messages(says("a"))
    assert talk(backend, KeyboardInterrupt, "x").count(HELP) == 2
    assert len(backend.calls) == 1


async def too_long() -> AsyncGenerator[Chunk, None]:
    raise PromptTooLong("the prompt has 9000 tokens [really]")
    yield Chunk()


def test_a_failed_turn_is_undone() -> None:
    backend = Messages(too_long, says("a"))
    shown = talk(backend, "long", "short")
    assert "the prompt has 9000 tokens [really]; /reset starts over" in shown
    assert sent(backend.calls[1]) == [("user", "short")]


def test_a_model_that_cannot_be_loaded_ends_it() -> None:
    class Broken(Tokens):
        async def text_start(self) -> list[int]:
            raise ModelLoadError("no such model")

    with pytest.raises(ModelLoadError):
        talk(Broken(), "x")


def test_our_own_bugs_are_not_hidden() -> None:
    async def bug() -> AsyncGenerator[Chunk, None]:
        raise ZeroDivisionError
        yield Chunk()

    with pytest.raises(ZeroDivisionError):
        talk(Messages(bug), "x")
    assert not issubclass(ZeroDivisionError, BosquetError)


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"temperature": -0.1}])
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        talk(Messages(), **wrong)


def test_the_terminal_obeys_no_model() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x9b31m\rgone [red]x[/red] :smile:\b\x7f"
    shown = talk(Messages(says(evil[:3], evil[3:])), "x")
    assert "␛]0;title␇␛[2J\ufffd31m␍gone [red]x[/red] :smile:␈␡" in shown


@given(st.text())
def test_no_control_character_is_left(text: str) -> None:
    shown = clean(text)
    assert len(shown) == len(text)
    assert not any((c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f" for c in shown)
    assert all(a == b for a, b in zip(text, shown, strict=True) if a.isprintable() or a in "\n\t")
