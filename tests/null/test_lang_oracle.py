"""Random programs against a sequential oracle that knows nothing of the language's machinery."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from fakes_lang import (
    END,
    FakeBackend,
    Made,
    continuation,
    draw,
    encode_segments,
    encode_text,
    generation,
    score,
    token_bytes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import bosquet.lang as bosquet
from bosquet.lang import Call, Chunk
from bosquet.types import Segment

# -- programs ---------------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    text: str


class Gen(NamedTuple):
    max_tokens: int
    stop: str | None


class Select(NamedTuple):
    choices: tuple[str, ...]


class Fork(NamedTuple):
    branches: tuple[tuple[Any, ...], ...]
    join: bool


class Turn(NamedTuple):
    role: str
    body: tuple[Any, ...]


# Texts that merge with their neighbours, look like control tokens, or are several tokens a character.
texts = st.sampled_from(["ab", "c", "a", "aa", " the", "is", "er\n\n", "\n", "<|im_end|>", "ü", "日本", "x", "", ". "])
gens = st.builds(Gen, st.integers(1, 7), st.sampled_from([None, "a", "b\n", "bc", "x", "he", "\n\n"]))
selects = st.builds(Select, st.sampled_from([("ab", "abc"), ("the", "a", "ü"), ("x", "x\n", "er")]))
leaves = st.one_of(st.builds(Text, texts), gens, selects)
plain_bodies = st.recursive(
    st.lists(leaves, max_size=4).map(tuple),
    lambda inner: st.lists(
        leaves | st.builds(Fork, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans()), max_size=4
    ).map(tuple),
    max_leaves=8,
)
turns = st.builds(Turn, st.sampled_from(["system", "user", "assistant"]), st.lists(leaves, max_size=3).map(tuple))
chat_bodies = st.recursive(
    st.lists(turns, max_size=3).map(tuple),
    lambda inner: st.lists(
        turns | st.builds(Fork, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans()), max_size=4
    ).map(tuple),
    max_leaves=6,
)


def perform(s: bosquet.State, body: tuple[Any, ...], counter: list[int]) -> None:
    """Write the program with the language. Variables are named by their place in the text of the program."""
    for op in body:
        if isinstance(op, Text):
            s += op.text
        elif isinstance(op, Gen):
            counter[0] += 1
            more: dict[str, Any] = {} if op.stop is None else {"stop": op.stop}
            s += bosquet.gen(f"v{counter[0]}", max_tokens=op.max_tokens, **more)
        elif isinstance(op, Select):
            counter[0] += 1
            s += bosquet.select(f"v{counter[0]}", op.choices)
        elif isinstance(op, Turn):
            with s.turn(op.role):
                perform(s, op.body, counter)
        else:
            branches = s.fork(len(op.branches))
            for branch, inner in zip(branches, op.branches, strict=True):
                perform(branch, inner, counter)
            if op.join:
                s.join(branches)


# -- the oracle -------------------------------------------------------------------------------------------------------


@dataclass
class Line:
    """A branch, executed step by step. Knows ChatML by heart, and cuts stop strings by counting bytes."""

    seen: dict[str, list[int]]  # variable → ids of its prompt
    path: str = ""
    ids: list[int] = field(default_factory=list)
    pending: list[Segment] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    children: int = 0

    def encode(self) -> None:
        self.ids += encode_segments(self.pending)
        self.pending = []

    def perform(self, body: tuple[Any, ...], counter: list[int]) -> None:
        for op in body:
            if isinstance(op, Text):
                self.pending.append(Segment(op.text, False))
            elif isinstance(op, Gen | Select):
                counter[0] += 1
                self.encode()
                self.seen[f"v{counter[0]}"] = list(self.ids)
                self.values[f"v{counter[0]}"] = self.generate(op) if isinstance(op, Gen) else self.select(op)
            elif isinstance(op, Turn):
                self.pending.append(Segment(f"<|im_start|>{op.role}\n", True))
                self.perform(op.body, counter)
                self.pending.append(Segment("<|im_end|>\n", True))
            else:
                self.fork(op, counter)

    def generate(self, op: Gen) -> str:
        stops = [] if op.stop is None else [op.stop.encode()]
        made = generation(continuation(self.ids, op.max_tokens), stops, op.max_tokens)
        self.ids += kept(made)
        return made.text

    def select(self, op: Select) -> str:
        def likelihood(choice: str) -> float:
            logprobs = score(self.ids, encode_text(choice))
            return sum(logprobs) / len(logprobs)

        best = max(op.choices, key=likelihood)
        self.ids += encode_text(best)
        return best

    def fork(self, op: Fork, counter: list[int]) -> None:
        self.encode()
        lines = []
        for body in op.branches:
            line = Line(self.seen, f"{self.path}.{self.children}".lstrip("."), list(self.ids))
            self.children += 1
            line.perform(body, counter)
            lines.append(line)
        if op.join:
            for name in {name: None for line in lines for name in line.values}:
                self.values[name] = [line.values.get(name) for line in lines]


def kept(made: Made) -> list[int]:
    """Whole tokens before the cut, then the rest of the text encoded alone; never the end token."""
    if not isinstance(made.stop, str):
        return [token for token in made.ids if token != END]
    ids: list[int] = []
    size = 0
    for token in made.ids[:-1]:
        if size + len(token_bytes(token)) > made.cut:
            break
        ids.append(token)
        size += len(token_bytes(token))
    rest = b"".join(map(token_bytes, made.ids))[size : made.cut]
    return ids + encode_text(rest.decode())


# -- comparison -------------------------------------------------------------------------------------------------------


class Jumbled(FakeBackend):
    """Yields to other calls a different number of times before each answer, so that branches finish in any order."""

    async def generate(self, call: Call) -> Any:
        for _ in range(draw(tuple(call.ids), call.origin.branch) % 5):
            await asyncio.sleep(0)
        chunk: Chunk
        async for chunk in super().generate(call):
            yield chunk


def compare(body: tuple[Any, ...], result: bosquet.Result[None], backend: FakeBackend) -> None:
    line = Line({})
    line.perform(body, [0])
    assert {name: result[name] for name in result} == line.values
    assert list(result.ids) == line.ids[: len(result.ids)]
    ids = {call.origin.step: list(call.ids) for call in backend.calls}
    assert ids == {name: line.seen[name] for name in ids}
    scored = {tuple(prefix) for prefix, _ in backend.scored}
    assert scored == {tuple(prompt) for name, prompt in line.seen.items() if name not in ids}


@pytest.mark.parametrize("bodies", [plain_bodies, chat_bodies], ids=["plain", "chat"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_random_programs_do_what_the_oracle_does(bodies: st.SearchStrategy[Any], is_async: bool) -> None:
    @bosquet.program(temperature=0)
    def sync(s: bosquet.State, body: tuple[Any, ...]) -> None:
        s += "" if bodies is chat_bodies else "Go. "
        perform(s, body, [0])

    @bosquet.program(temperature=0)
    async def coroutine(s: bosquet.State, body: tuple[Any, ...]) -> None:
        s += "" if bodies is chat_bodies else "Go. "
        perform(s, body, [0])

    @settings(max_examples=80, deadline=None)
    @given(bodies)
    def check(body: tuple[Any, ...]) -> None:
        backend = Jumbled()
        result = (coroutine if is_async else sync).run(body, backend=backend)
        assert result.error is None
        compare((Text("" if bodies is chat_bodies else "Go. "), *body), result, backend)
        prompts = [call.ids for call in backend.calls]
        assert all(isinstance(ids, tuple) for ids in prompts)

    check()


@given(chat_bodies)
@settings(max_examples=60, deadline=None)
def test_every_prompt_extends_the_one_before_it_in_its_branch(body: tuple[Any, ...]) -> None:
    @bosquet.program(temperature=0)
    def chat(s: bosquet.State) -> None:
        perform(s, body, [0])

    backend = Jumbled()
    chat.run(backend=backend)
    last: dict[str, tuple[int, ...]] = {"": ()}
    for call in sorted(backend.calls, key=lambda call: int(call.origin.step[1:])):
        branch, ids = call.origin.branch, tuple(call.ids)
        while branch not in last:  # the first call of a branch extends what its ancestors had at least begun with
            branch = branch.rpartition(".")[0]
        if branch == call.origin.branch:
            assert ids[: len(last[branch])] == last[branch]
        last[call.origin.branch] = ids
