"""Random programs of the language, and a sequential oracle that knows nothing of its machinery."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from hypothesis import strategies as st
from msgspec import structs

import bosquet.lang as bosquet
from bosquet.errors import Overloaded
from bosquet.lang import Call, Chunk
from bosquet.types import Segment

# -- programs ---------------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    text: str


class Gen(NamedTuple):
    """`n` samples, or one value; each fails so many times before it goes well."""

    max_tokens: int
    stop: str | None
    n: int | None = None
    fails: int = 0

    @property
    def seed(self) -> int | None:
        return 0 if self.n is not None or self.fails else None


class Select(NamedTuple):
    choices: tuple[str, ...]


class Quote(NamedTuple):
    """Wait for the newest variable of the branch, and write it if it is a text."""


class Fork(NamedTuple):
    branches: tuple[tuple[Any, ...], ...]
    join: bool


class Sub(NamedTuple):
    """A program inside the program, with a default stop string of its own."""

    body: tuple[Any, ...]


class Turn(NamedTuple):
    role: str
    body: tuple[Any, ...]


# Texts that merge with their neighbours, look like control tokens, or are several tokens a character.
texts = st.sampled_from(["ab", "c", "a", "aa", " the", "is", "er\n\n", "\n", "<|im_end|>", "ü", "日本", "x", "", ". "])
stops = st.sampled_from([None, "a", "b\n", "bc", "x", "he", "\n\n"])
sizes = st.integers(1, 7)
gens = st.builds(Gen, sizes, stops, st.none(), st.just(0)) | st.builds(
    Gen, sizes, stops, st.sampled_from([None, 1, 3]), st.integers(0, 2)
)
selects = st.builds(Select, st.sampled_from([("ab", "abc"), ("the", "a", "ü"), ("x", "x\n", "er")]))
leaves = st.one_of(st.builds(Text, texts), gens, selects)


def _below(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(Sub, inner) | st.builds(Fork, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans())


def _plain(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.lists(leaves, max_size=4).map(tuple),
        lambda inner: st.lists(leaves | _below(inner), max_size=4).map(tuple),
        max_leaves=8,
    )


def _chat(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    turns = st.builds(Turn, st.sampled_from(["system", "user", "assistant"]), st.lists(leaves, max_size=3).map(tuple))
    return st.recursive(
        st.lists(turns, max_size=3).map(tuple),
        lambda inner: st.lists(turns | _below(inner), max_size=4).map(tuple),
        max_leaves=6,
    )


plain_bodies, chat_bodies = _plain(leaves), _chat(leaves)
# Their programs wait in the middle, so that an async function must not perform them.
plain_waiting, chat_waiting = _plain(leaves | st.builds(Quote)), _chat(leaves | st.builds(Quote))


def perform(s: bosquet.State, body: tuple[Any, ...], counter: list[int]) -> None:
    """Write the program with the language. Variables are named by their place in the text of the program."""
    for op in body:
        if isinstance(op, Text):
            s += op.text
        elif isinstance(op, Gen):
            counter[0] += 1
            more: dict[str, Any] = {} if op.stop is None else {"stop": op.stop}
            more |= {} if op.seed is None else {"seed": op.seed, "n": op.n, "retry": op.fails}
            s += bosquet.gen(f"v{counter[0]}", max_tokens=op.max_tokens, **more)
        elif isinstance(op, Select):
            counter[0] += 1
            s += bosquet.select(f"v{counter[0]}", op.choices)
        elif isinstance(op, Quote):
            newest = next(reversed(s._branch.own), None)
            if newest is not None and isinstance(value := s[newest], str):
                s += value
        elif isinstance(op, Turn):
            with s.turn(op.role):
                perform(s, op.body, counter)
        elif isinstance(op, Sub):
            nested(s, op.body, counter)
        else:
            branches = s.fork(len(op.branches))
            for branch, inner in zip(branches, op.branches, strict=True):
                perform(branch, inner, counter)
            if op.join:
                s.join(branches)


@bosquet.program(stop="he")
def nested(s: bosquet.State, body: tuple[Any, ...], counter: list[int]) -> None:
    perform(s, body, counter)


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
    stop: str | None = None

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
                self.values[f"v{counter[0]}"] = self.value(op) if isinstance(op, Gen) else self.select(op)
            elif isinstance(op, Quote):
                value = self.values[next(reversed(self.values))] if self.values else None
                if isinstance(value, str):
                    self.pending.append(Segment(value, False))
            elif isinstance(op, Turn):
                self.pending.append(Segment(f"<|im_start|>{op.role}\n", True))
                self.perform(op.body, counter)
                self.pending.append(Segment("<|im_end|>\n", True))
            elif isinstance(op, Sub):
                before, self.stop = self.stop, "he"
                self.perform(op.body, counter)
                self.stop = before
            else:
                self.fork(op, counter)

    def value(self, op: Gen) -> Any:
        n = op.n or 1
        seeds = [None if op.seed is None else op.fails * n + place for place in range(n)]
        made = [self.generate(op, seed) for seed in seeds]
        self.ids += kept(made[0])
        return made[0].text if op.n is None else [sample.text for sample in made]

    def generate(self, op: Gen, seed: int | None) -> Made:
        stop = op.stop or self.stop
        stops = [] if stop is None else [stop.encode()]
        return generation(continuation(seeded(self.ids, seed), op.max_tokens), stops, op.max_tokens)

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
            line = Line(self.seen, f"{self.path}.{self.children}".lstrip("."), list(self.ids), stop=self.stop)
            self.children += 1
            line.perform(body, counter)
            lines.append(line)
        if op.join:
            for name in {name: None for line in lines for name in line.values}:
                self.values[name] = [line.values.get(name) for line in lines]


def seeded(ids: Sequence[int], seed: int | None) -> list[int]:
    """What the toy model goes on from: a seed is one more thing to see."""
    return [*ids, *([] if seed is None else [seed])]


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
    """Yields to other calls a different number of times before each answer, so that branches finish in any order. Fails
    as often as the program's text says, by the steps' names."""

    def __init__(self, fails: Mapping[str, Gen]) -> None:
        super().__init__()
        self.fails = fails

    def answer(self, call: Call) -> Made:
        asked, seed = self.fails[call.origin.step], call.sampling.seed
        if seed is not None and seed // (asked.n or 1) < asked.fails:
            raise Overloaded("busy", 0.0)
        return super().answer(structs.replace(call, ids=tuple(seeded(call.ids, seed))))

    async def generate(self, call: Call) -> Any:
        for _ in range(draw(tuple(call.ids), call.origin.branch) % 5):
            await asyncio.sleep(0)
        chunk: Chunk
        async for chunk in super().generate(call):
            yield chunk


def generations(body: tuple[Any, ...], counter: list[int]) -> Iterator[tuple[str, Gen]]:
    """Variable → what is asked for."""
    for op in body:
        if isinstance(op, Gen | Select):
            counter[0] += 1
            if isinstance(op, Gen):
                yield f"v{counter[0]}", op
        elif isinstance(op, Turn | Sub):
            yield from generations(op.body, counter)
        elif isinstance(op, Fork):
            for inner in op.branches:
                yield from generations(inner, counter)


def backend_for(body: tuple[Any, ...]) -> Jumbled:
    return Jumbled(dict(generations(body, [0])))


def compare(body: tuple[Any, ...], result: bosquet.Result[None], backend: FakeBackend) -> None:
    line = Line({})
    line.perform(body, [0])
    assert {name: result[name] for name in result} == line.values
    assert list(result.ids) == line.ids[: len(result.ids)]
    ids = {call.origin.step: list(call.ids) for call in backend.calls}
    assert ids == {name: line.seen[name] for name in ids}
    scored = {tuple(prefix) for prefix, _ in backend.scored}
    assert scored == {tuple(prompt) for name, prompt in line.seen.items() if name not in ids}
