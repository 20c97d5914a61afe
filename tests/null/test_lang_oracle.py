"""Random programs against a sequential oracle, in every way that a program can be run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lang_oracle import (
    Fork,
    Gen,
    Jumbled,
    Line,
    Select,
    Sub,
    Text,
    Turn,
    backend_for,
    chat_bodies,
    chat_waiting,
    compare,
    generations,
    perform,
    plain_bodies,
    plain_waiting,
)

import bosquet.lang as bosquet
from bosquet.errors import ProgramError
from bosquet.lang import Call


@bosquet.program(temperature=0)
def sync(s: bosquet.State, body: tuple[Any, ...]) -> None:
    perform(s, body, [0])


@bosquet.program(temperature=0)
async def coroutine(s: bosquet.State, body: tuple[Any, ...]) -> None:
    perform(s, body, [0])


def awaited(program: bosquet.Program[None], body: tuple[Any, ...], backend: Jumbled) -> bosquet.Result[None]:
    return asyncio.run(program.arun(body, backend=backend))


def mapped(program: bosquet.Program[None], body: tuple[Any, ...], backend: Jumbled) -> bosquet.Result[None]:
    first, second = program.map([body, body], backend=backend)
    assert first.ids == second.ids
    return first


def streamed(program: bosquet.Program[None], body: tuple[Any, ...], backend: Jumbled) -> bosquet.Result[None]:
    stream = program.stream(body, backend=backend)
    text = "".join(stream)
    values = [stream.result[name] for name in main_names(body, [0])]
    assert text == "".join(value if isinstance(value, str) else value[0] for value in values)
    return stream.result


def main_names(body: tuple[Any, ...], counter: list[int]) -> Iterator[str]:
    """The variables of the main branch."""
    for op in body:
        if isinstance(op, Gen | Select):
            counter[0] += 1
            yield f"v{counter[0]}"
        elif isinstance(op, Turn | Sub):
            yield from main_names(op.body, counter)
        elif isinstance(op, Fork):
            for inner in op.branches:
                list(main_names(inner, counter))


def compiled(program: bosquet.Program[None], body: tuple[Any, ...], backend: Jumbled) -> bosquet.Result[None]:
    program.compile(body)
    return program.run(body, backend=backend)


WAYS: dict[str, Callable[..., bosquet.Result[None]]] = {
    "run": lambda program, body, backend: program.run(body, backend=backend),
    "start": lambda program, body, backend: program.start(body, backend=backend).result(),
    "arun": awaited,
    "map": mapped,
    "stream": streamed,
    "compile": compiled,
}


@pytest.mark.parametrize(
    ("program", "bodies"),
    [(sync, plain_waiting), (sync, chat_waiting), (coroutine, plain_bodies), (coroutine, chat_bodies)],
    ids=["sync-plain", "sync-chat", "async-plain", "async-chat"],
)
def test_random_programs_do_what_the_oracle_does_however_they_are_run(
    program: bosquet.Program[None], bodies: st.SearchStrategy[Any]
) -> None:
    @settings(max_examples=120, deadline=None)
    @given(bodies, st.sampled_from(sorted(WAYS)))
    def check(body: tuple[Any, ...], way: str) -> None:
        body = (Text("" if bodies in (chat_bodies, chat_waiting) else "Go. "), *body)
        backend = backend_for(body)
        result = WAYS[way](program, body, backend)
        assert result.error is None
        compare(body, result, backend)
        assert all(isinstance(call.ids, tuple) for call in backend.calls)

    check()


@given(chat_bodies)
@settings(max_examples=60, deadline=None)
def test_every_prompt_extends_the_one_before_it_in_its_branch(body: tuple[Any, ...]) -> None:
    backend = backend_for(body)
    sync.run(body, backend=backend)
    last: dict[str, tuple[int, ...]] = {"": ()}
    for call in sorted(backend.calls, key=lambda call: int(call.origin.step[1:])):
        branch, ids = call.origin.branch, tuple(call.ids)
        while branch not in last:  # the first call of a branch extends what its ancestors had at least begun with
            branch = branch.rpartition(".")[0]
        if branch == call.origin.branch:
            assert ids[: len(last[branch])] == last[branch]
        last[call.origin.branch] = ids


@pytest.mark.parametrize("bodies", [plain_bodies, chat_bodies], ids=["plain", "chat"])
def test_a_program_in_two_parts_with_a_file_between_them_is_the_whole_program(
    bodies: st.SearchStrategy[Any], tmp_path: Path
) -> None:
    @bosquet.program(temperature=0)
    def part(s: bosquet.State, body: tuple[Any, ...], counter: list[int]) -> None:
        perform(s, body, counter)

    @settings(max_examples=40, deadline=None)
    @given(bodies, bodies)
    def check(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
        whole = (Text("" if bodies is chat_bodies else "Go. "), *first, *second)
        counter = [0]
        before, after = backend_for(whole), backend_for(whole)
        part.run(whole[: len(first) + 1], counter, backend=before).save(tmp_path / "state")
        state = bosquet.load_state(tmp_path / "state")
        result = part.run(second, counter, resume=state, backend=after)
        after.calls, after.scored = before.calls + after.calls, before.scored + after.scored
        compare(whole, result, after)

    check()


@given(chat_waiting, st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_what_a_cancelled_program_had_come_to_is_right_and_the_rest_raises(body: tuple[Any, ...], after: int) -> None:
    class Cut(Jumbled):
        """Cancels the run after so many chunks."""

        chunks = 0

        async def generate(self, call: Call) -> Any:
            async for chunk in super().generate(call):
                self.chunks += 1
                if self.chunks == after:
                    states[0]._branch.run.cancel()
                yield chunk

    backend = Cut(dict(generations(body, [0])))
    states: list[bosquet.State] = []

    @bosquet.program(temperature=0)
    def watched(s: bosquet.State) -> None:
        states.append(s)
        with suppress(ProgramError):  # where it waits for what was cancelled
            perform(s, body, [0])

    watched.run(backend=backend)
    line = Line({})
    line.perform(body, [0])
    assert backend.active == 0
    for name in states[0]:
        with suppress(ProgramError) if backend.chunks >= after else nullcontext():
            assert states[0][name] == line.values[name]
    assert {tuple(call.ids) for call in backend.calls} <= {tuple(ids) for ids in line.seen.values()}
