"""Loops of a tool-using client, and what its habits cost in the prefix cache: with transcripts and without.

The server's own application, tokenizer and template, in this process; only the model is not: its answers are scripted,
so that every token of a prompt that the cache has, or has not, is down to the prompt. An endless cache is assumed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
from rich import box
from rich.table import Table

from ...grammar import reasoning
from ...grammar.tools import detect
from ...prompts.shared import shared_length
from ...types import EngineState, ModelInfo, Output, Relaxed, Request, Segment, Stats, StopMatch
from ..cache_view import Reuse, Tree
from ..models.source import EMBEDDED, resolve
from ..server.app import create_app
from ..server.config import ServerConfig
from ..server.services import Text, TextServices
from ..templates import ChatTemplate
from ..text_stream import TextStream
from ..tokenizer import Tokenizer
from ..tokenizer_files import read_tokenizer_files
from ..trace import Trace
from .words import text as words

TURNS = 20

_CALLS = """{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}"""
CHAT = """{% if tools %}<|im_start|>system
Call tools like this: <tool_call></tool_call>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}CALLS<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""".replace("CALLS", _CALLS)
"""A template that writes past turns as they are given."""
THINKING = CHAT.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""One that opens the reasoning of the turn to come, and shows none of past turns."""

_TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Looks through the archive.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"}},
            "required": ["query", "limit", "exact"],
        },
    },
}

Message = dict[str, Any]


def _as_it_came(message: Message) -> Message:
    return {key: message[key] for key in ("role", "content", "tool_calls", "reasoning_content") if key in message}


def _without_thoughts(message: Message) -> Message:
    return {key: value for key, value in _as_it_came(message).items() if key != "reasoning_content"}


def _arguments_anew(message: Message) -> Message:
    """Keys in another order, no spaces: what a client does that parses calls and writes them again."""
    calls = []
    for call in message["tool_calls"]:
        arguments = dict(reversed(json.loads(call["function"]["arguments"]).items()))
        written = json.dumps(arguments, separators=(",", ":"))
        calls.append({**call, "function": {**call["function"], "arguments": written}})
    return {**_as_it_came(message), "tool_calls": calls}


def _newline_moved(message: Message) -> Message:
    return {**_as_it_came(message), "content": f"{message['content'].strip()}\n"}


@dataclass(frozen=True, slots=True)
class Habit:
    """One workload: the template, what the model writes before its text, and how the client sends a turn back."""

    name: str
    template: str
    opening: Callable[[Random], str]
    echo: Callable[[Message], Message]
    history: str = "template"


HABITS = (
    Habit("reasoning stripped", THINKING, lambda random: f"{words(random, 40)}\n</think>\n\n", _without_thoughts),
    Habit("arguments re-serialised", CHAT, lambda random: "", _arguments_anew),
    Habit("newline moved", CHAT, lambda random: "\n\n", _newline_moved),
)
KEPT = Habit("reasoning stripped", THINKING, HABITS[0].opening, _without_thoughts, "append_only")


@dataclass(frozen=True, slots=True)
class Row:
    """`live` counts the tokens that were computed by the last turn of the same conversation, `hit` those of them that
    the next prompt begins with; over all turns but the first."""

    habit: str
    history: str
    transcripts: bool
    live: int
    hit: int

    @property
    def share(self) -> float:
        return self.hit / self.live


def measure(folder: Path | None = None, turns: int = TURNS) -> list[Row]:
    """Each habit without transcripts and with. `folder`: whose tokenizer to use; the embedded model's if None."""
    folder = folder or resolve(EMBEDDED, weights=False).path
    runs = [(habit, kept) for habit in HABITS for kept in (False, True)] + [(KEPT, True)]
    return [asyncio.run(_run(folder, habit, turns, transcripts=kept)) for habit, kept in runs]


def table(rows: Sequence[Row]) -> Table:
    """For people."""
    made = Table(box=box.SIMPLE, title=f"Prefix tokens hit in tool loops of {TURNS} turns")
    for name in ("client", "history", "transcripts"):
        made.add_column(name)
    for name in ("tokens", "hit", "share"):
        made.add_column(name, justify="right")
    for row in rows:
        kept = "yes" if row.transcripts else "no"
        made.add_row(row.habit, row.history, kept, f"{row.live:,}", f"{row.hit:,}", f"{row.share:.1%}")
    return made


async def _run(folder: Path, habit: Habit, turns: int, *, transcripts: bool) -> Row:
    text = _text(folder, habit.template)
    engine = ScriptedEngine(text, habit, turns)
    config = ServerConfig(transcripts_mb=64 if transcripts else 0, check_share=0.0)
    app = create_app(engine, TextServices(text), config)
    random = Random(7)
    messages: list[Message] = [{"role": "user", "content": words(random, 30)}]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bench") as client:
        for _ in range(turns):
            body = {"messages": messages, "tools": [_TOOL], "history": habit.history, "temperature": 0}
            response = await client.post("/v1/chat/completions", json=body)
            response.raise_for_status()
            message = response.json()["choices"][0]["message"]
            messages.append(habit.echo(message))
            call = message["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": call, "content": words(random, 60)})
    return Row(habit.name, habit.history, transcripts, *engine.hits())


def _text(folder: Path, template: str) -> Text:
    tokenizer = Tokenizer.from_folder(folder)
    files = read_tokenizer_files(folder)
    shown = ChatTemplate({"default": template}, files.named, files.markers(), files.controls())

    def stream(stop: Sequence[bytes], specials: Set[int]) -> TextStream:
        return TextStream(tokenizer, stop, shown=specials)

    end = tokenizer.id_of_special("<|im_end|>")
    assert end is not None, "a tokenizer for ChatML is needed"
    info = ModelInfo(
        name="scripted", folder=str(folder), vocab_size=tokenizer.size, context_length=1 << 20, dtype="", device="",
        kernels="", pages=1 << 16, max_waiting=64, end_ids=(end,),
    )  # fmt: skip
    return Text(tokenizer, shown, info, stream, detect(template, shown.specials), reasoning.detect(template))


class ScriptedEngine:
    """Says the next line of a script to each request, and remembers all sequences that it has had."""

    state: EngineState = "ready"
    on_trace: Callable[[Trace], None] | None = None

    def __init__(self, text: Text, habit: Habit, turns: int) -> None:
        self.info = text.info
        self._tokenizer = text.tokenizer
        self._lines = _script(habit, turns)
        self._live: list[tuple[list[int], list[int]]] = []  # prompt, and what of prompt and answer was computed

    async def submit(self, request: Request) -> ScriptedStream:
        segment = Segment(next(self._lines), False)
        ids = [*self._tokenizer.encode_segments([segment]), self.info.end_ids[0]]
        cached = max((shared_length(request.ids[:-1], live) for _, live in self._live), default=0)
        self._live.append((request.ids, request.ids + ids[:-1]))
        return ScriptedStream(Output(request.id, 0, ids, None, "stop", StopMatch(token=ids[-1]), cached))

    async def end_run(self, tenant: str, run: str) -> None:
        """Nothing is kept for runs here."""

    async def stats(self) -> Stats:
        return Stats()

    async def tree(self, tenant: str | None = None) -> Tree:
        return Tree([], 0, 0, 0, 0)

    async def reuse(self) -> Reuse:
        return Reuse([], 0, 0, 1)

    def hits(self) -> tuple[int, int]:
        """Tokens that each turn left to the next, and those that it took."""
        pairs = list(zip(self._live, self._live[1:], strict=False))
        return sum(len(live) for (_, live), _ in pairs), sum(shared_length(live, ids) for (_, live), (ids, _) in pairs)


class ScriptedStream:
    """One output."""

    relaxed: tuple[Relaxed, ...] = ()

    def __init__(self, output: Output) -> None:
        self._output = output

    async def __aiter__(self) -> AsyncIterator[list[Output]]:
        yield [self._output]

    async def cancel(self) -> None:
        """It is over already."""


def _script(habit: Habit, turns: int) -> Iterator[str]:
    random = Random(11)
    for turn in range(turns):
        arguments = json.dumps({"query": words(random, 8), "limit": turn, "exact": turn % 2 == 0})
        call = f'<tool_call>\n{{"name": "search", "arguments": {arguments}}}\n</tool_call>'
        yield f"{habit.opening(random)}{words(random, 12)}\n{call}"
