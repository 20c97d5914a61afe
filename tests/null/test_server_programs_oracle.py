"""Random programs over HTTP against an oracle that knows none of their machinery."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes_engine import logprob_of
from fakes_lang import (
    SPECIAL,
    Made,
    continuation,
    encode_segments,
    encode_text,
    generation,
)
from fakes_programs import Handle, Place, toy_engine, toy_text
from hypothesis import given, settings
from hypothesis import strategies as st
from lang_oracle import kept

from bosquet.errors import Overloaded
from bosquet.runtime.server.program_steps import BranchState, state_of
from bosquet.types import Segment

TEXTS = ["ab", "c", "a", "aa", " the", "is", "er\n\n", "\n", "<|im_end|>", "ü", "日本", "x", ". "]
STOPS = [None, "a", "b\n", "bc", "x", "he", "\n\n"]
CHOICES = [["ab", "abc"], ["the", "a", "ü"], ["x", "x\n", "er"]]
BEGIN_TURN, END_TURN = "<|im_start|>{}\n", "<|im_end|>\n"

# -- the oracle -------------------------------------------------------------------------------------------------------


@dataclass
class Line:
    """A branch, step by step. Knows ChatML by heart, and cuts stop strings by counting bytes."""

    ids: list[int] = field(default_factory=list)
    pending: list[Segment] = field(default_factory=list)
    role: str | None = None
    borrowed: bool = False
    chat: bool | None = None
    values: dict[str, Any] = field(default_factory=dict)
    children: int = 0

    def copy(self) -> Line:
        return Line([*self.ids], [*self.pending], self.role, self.borrowed, self.chat)

    def open(self, role: str) -> bool:
        if self.borrowed:
            self.close()
        if self.role is not None or self.chat is False:
            return False
        self.chat, self.role = True, role
        self.pending.append(Segment(BEGIN_TURN.format(role), True))
        return True

    def close(self) -> bool:
        if self.role is None:
            return False
        self.role, self.borrowed = None, False
        self.pending.append(Segment(END_TURN, True))
        return True

    def write(self, text: str) -> bool:
        if self.chat and self.role is None:
            return False
        self.chat = bool(self.chat)
        self.pending.append(Segment(text, False))
        return True

    def encode(self) -> None:
        if self.chat is not True and not self.ids:
            self.ids = [SPECIAL["<s>"]]
        self.ids += encode_segments(self.pending)
        self.pending = []

    def prompt(self) -> bool:
        """Whether a turn was begun for the answer."""
        begins = bool(self.chat) and self.role is None
        self.chat = bool(self.chat)
        if begins:
            self.open("assistant")
        self.encode()
        return begins


def words(ids: Sequence[int], choice: int, most: int, stop: str | None) -> Made:
    wanted = [*([97 + choice] if choice else []), *continuation(ids, most)]
    return generation(wanted, [] if stop is None else [stop.encode()], most)


# -- random steps, some of which cannot be ----------------------------------------------------------------------------

texts = st.sampled_from(TEXTS)
roles = st.sampled_from(["system", "user", "assistant"])
steps = st.one_of(
    st.tuples(st.just("text"), texts),
    st.tuples(st.just("turns"), st.lists(st.tuples(roles, texts | st.just("")), min_size=1, max_size=2)),
    st.tuples(st.just("open"), roles, texts),
    st.tuples(st.just("close")),
    st.tuples(st.just("ids"), st.lists(st.sampled_from([97, 98, 259, 1002]), min_size=1, max_size=3)),
    st.tuples(
        st.just("generate"), st.integers(1, 7), st.sampled_from(STOPS), st.sampled_from([1, 1, 1, 2]), st.booleans()
    ),
    st.tuples(st.just("select"), st.sampled_from(CHOICES)),
    st.tuples(st.just("fork"), st.integers(1, 3)),
    st.tuples(st.just("join")),
    st.tuples(st.just("cancel"), st.booleans()),
    st.tuples(st.just("refused")),
)
programs = st.lists(st.tuples(st.integers(0, 50), steps), max_size=14)


class Both:
    """Does each step over HTTP and in the oracle, and compares."""

    def __init__(self, run: Handle) -> None:
        self.run = run
        self.engine = run.place.engine
        self.lines = {"": Line()}
        self.count = 0

    def state(self) -> list[BranchState]:
        return [state_of(branch) for branch in self.run.place.programs.find("", self.run.id).branches.values()]

    async def do(self, which: int, step: tuple[Any, ...]) -> None:
        path = list(self.lines)[which % len(self.lines)]
        before = self.state()
        line = self.lines[path]
        spare = line.copy()
        name, *args = step
        done = await getattr(self, f"do_{name}")(path, spare, *args)
        if done:
            spare.values, spare.children = line.values, line.children
            self.lines[path] = spare
        elif done is False:
            assert self.state() == before
        assert [(state.branch, state.tokens, state.open, state.variables) for state in self.state()] == [
            (at, len(line.ids), line.role, list(line.values)) for at, line in self.lines.items()
        ]

    async def append(self, path: str, possible: bool, **body: Any) -> bool:
        await self.run("append", branch=path, status=200 if possible else 400, **body)
        return possible

    async def do_text(self, path: str, line: Line, text: str) -> bool:
        return await self.append(path, line.write(text), text=text)

    async def do_turns(self, path: str, line: Line, turns: list[tuple[str, str]]) -> bool:
        possible = all(line.open(role) and (not text or line.write(text)) and line.close() for role, text in turns)
        return await self.append(path, possible, messages=[{"role": r, "content": t} for r, t in turns])

    async def do_open(self, path: str, line: Line, role: str, text: str) -> bool:
        return await self.append(path, line.open(role) and line.write(text), open=role, text=text)

    async def do_close(self, path: str, line: Line) -> bool:
        return await self.append(path, line.close(), close=True)

    async def do_ids(self, path: str, line: Line, ids: list[int]) -> bool:
        possible = not (line.chat and line.role is None)
        if possible:
            if line.pending:
                line.encode()
            line.chat = bool(line.chat)
            line.ids += ids
        return await self.append(path, possible, token_ids=ids)

    async def do_generate(
        self, path: str, line: Line, most: int, stop: str | None, n: int, stream: bool
    ) -> bool | None:
        begun = line.prompt()
        self.count += 1
        name = f"v{self.count}"
        body = {"branch": path, "name": name, "max_tokens": most, "n": n, "stream": stream, "stop": stop}
        response = await self.run.place.http.post(f"/v1/programs/{self.run.id}/generate", json=body)
        assert response.status_code == 200, response.text
        assert self.engine.requests[-1].ids == line.ids
        for choice in range(n):
            made = words(line.ids, choice, most, stop)
            if not stream:
                assert response.json()["choices"][choice]["text"] == made.text
            after = line if n == 1 else line.copy()
            after.ids = [*line.ids, *kept(made)]
            if begun:
                after.close()
            after.borrowed = after.role is not None and (n > 1 or after.borrowed)
            if n > 1:
                self.fork(path, after)
            (self.lines[path] if n == 1 else after).values[name] = made.text
        return n == 1 or None

    def fork(self, path: str, line: Line) -> None:
        parent = self.lines[path]
        self.lines[f"{path}.{parent.children}".lstrip(".")] = line
        parent.children += 1

    async def do_select(self, path: str, line: Line, choices: list[str]) -> bool:
        begun = line.prompt()
        found = await self.run("select", branch=path, choices=choices)
        rows = [encode_text(choice) for choice in choices]
        means = [sum(logprob_of(token, 0).logprob for token in row) / len(row) for row in rows]
        assert found["scores"] == pytest.approx(means)
        assert [r.ids for r in self.engine.requests[-len(choices) :]] == [[*line.ids, *row] for row in rows]
        line.ids += rows[means.index(max(means))]
        if begun:
            line.close()
        return True

    async def do_fork(self, path: str, line: Line, count: int) -> bool:
        await self.run("fork", branch=path, count=count)
        if line.pending:
            line.encode()
        for _ in range(count):
            child = line.copy()
            child.borrowed = child.role is not None
            self.fork(path, child)
        return True

    async def do_join(self, path: str, line: Line) -> bool:
        joined = [at for at in self.lines if at and at.rpartition(".")[0] == path]
        if not joined:
            return False
        found = await self.run("join", branch=path, branches=joined)
        names = dict.fromkeys(name for at in joined for name in self.lines[at].values)
        expected = {name: [self.lines[at].values.get(name) for at in joined] for name in names}
        assert found == {"variables": expected}
        self.lines[path].values.update(expected)
        for at in [at for at in self.lines if any(at == j or at.startswith(f"{j}.") for j in joined)]:
            del self.lines[at]
        return True

    async def do_cancel(self, path: str, line: Line, stream: bool) -> bool:
        self.engine.delay = 0.01
        if line.chat is None:
            return False
        step = asyncio.create_task(
            self.run("generate", branch=path, max_tokens=200, ignore_eos=True, stream=stream, n=2)
        )
        while not self.engine.running:
            await asyncio.sleep(0)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        self.engine.delay = 0.0
        assert not self.engine.running
        return False

    async def do_refused(self, path: str, line: Line) -> bool:
        self.engine.reject = Overloaded("full")
        await self.run("generate", branch=path, status=429)
        self.engine.reject = None
        return False


def test_random_steps_do_what_the_oracle_does():
    @settings(max_examples=30, deadline=None)
    @given(programs)
    def check(program: list[tuple[int, tuple[Any, ...]]]) -> None:
        async def work() -> None:
            both = Both(await place.open())
            for which, step in program:
                await both.do(which, step)
            await both.run.close()
            assert len(place.programs) == 0
            assert not place.engine.running

        runner.run(work())

    with asyncio.Runner() as runner:
        place = Place(toy_engine(), toy_text(bos=True))
        check()
