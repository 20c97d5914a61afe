"""Random programs: the graph, made before the run, says what the run then asks for."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any, NamedTuple

import pytest
from fakes_lang import FakeBackend, decode
from hypothesis import given, settings
from hypothesis import strategies as st

import bosquet.lang as bosquet
from bosquet.lang.graph import Graph, Node, Said
from bosquet.lang.passes import going_on, last_uses, merged, parallel_groups, steps_left
from bosquet.prompts.transcript import Open

# -- programs ---------------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    text: str
    reads: int  # how many variables before this one are quoted; 0: none


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


texts = st.builds(
    Text, st.sampled_from(["ab", "c", " the", "er\n\n", "<|im_end|>", "ü", "日本", ""]), st.integers(0, 3)
)
gens = st.builds(Gen, st.integers(1, 6), st.sampled_from([None, "a", "bc", "\n\n"]))
selects = st.builds(Select, st.sampled_from([("ab", "abc"), ("the", "a", "ü"), ("x", "x\n", "er")]))
leaves = st.one_of(texts, gens, selects)
turns = st.builds(Turn, st.sampled_from(["system", "user", "assistant"]), st.lists(leaves, max_size=4).map(tuple))
bodies = st.recursive(
    st.lists(turns, max_size=3).map(tuple),
    lambda inner: st.lists(
        turns | st.builds(Fork, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans()), max_size=4
    ).map(tuple),
    max_leaves=6,
)


class Writer:
    """Writes the program; every variable has a name of its own."""

    def __init__(self) -> None:
        self.count = 0
        self.states: list[bosquet.State] = []

    def write(self, s: bosquet.State, body: tuple[Any, ...]) -> None:
        self.states.append(s)
        for op in body:
            if isinstance(op, Text):
                known = [name for name in s if not isinstance(s[name], list)] if op.reads else []
                s += op.text + "".join(f"({s[name]})" for name in known[-op.reads :])
            elif isinstance(op, Gen):
                self.count += 1
                more: dict[str, Any] = {} if op.stop is None else {"stop": op.stop}
                s += bosquet.gen(f"v{self.count}", max_tokens=op.max_tokens, **more)
            elif isinstance(op, Select):
                self.count += 1
                s += bosquet.select(f"v{self.count}", op.choices)
            elif isinstance(op, Turn):
                with s.turn(op.role):
                    self.write(s, op.body)
            else:
                branches = s.fork(len(op.branches))
                for branch, inner in zip(branches, op.branches, strict=True):
                    self.write(branch, inner)
                if op.join:
                    s.join(branches)


@bosquet.program(temperature=0)
def chat(s: bosquet.State, body: tuple[Any, ...], writer: Writer) -> None:
    writer.write(s, body)


@bosquet.program(temperature=0)
async def achat(s: bosquet.State, body: tuple[Any, ...], writer: Writer) -> None:
    for name in s:  # none: what an async program reads, it awaits
        await s.get(name)
    writer.write(s, body)


def executed(body: tuple[Any, ...]) -> tuple[FakeBackend, dict[str, str]]:
    """What the backend was asked, and what each variable became."""
    backend, writer = FakeBackend(), Writer()
    assert chat.run(body, writer, backend=backend).error is None
    return backend, {name: s[name] for s in writer.states for name in s if isinstance(s[name], str)}


# -- a second reading of graphs, without the passes -------------------------------------------------------------------


def before(graph: Graph, node: Node) -> list[Node]:
    """The nodes of the node's branch up to it, those of its ancestors before the forks included, first first."""
    found = [node]
    while found[-1].after:
        found.append(graph.nodes[found[-1].after[0]])
    return found[::-1]


def prompt(graph: Graph, node: Node, values: dict[str, str]) -> str:
    """The text of a step's prompt in ChatML, with the control tokens left out, as `decode` leaves them out."""
    text = ""
    for one in before(graph, node):
        for part in one.written:
            if isinstance(part, Said):
                text += "".join(piece if isinstance(piece, str) else values[piece.label] for piece in part.parts)
            else:
                text += f"{part.role}\n" if isinstance(part, Open) else "\n"
        if one.is_step and one is not node:
            text += values[one.name]
    return text


def reaches(graph: Graph) -> dict[int, set[int]]:
    """Step → the steps that cannot begin before it has ended, at first hand."""
    found: dict[int, set[int]] = {node.id: set() for node in graph.steps}
    for late in graph.steps:
        line = [node.id for node in before(graph, late) if node.is_step and node is not late]
        if line:
            found[line[-1]].add(late.id)
        for node in graph.nodes[: late.id + 1]:
            for read in {*node.waits, *node.needs}:
                found[read].add(late.id)
    return found


# -- comparison -------------------------------------------------------------------------------------------------------


@given(bodies)
@settings(max_examples=60, deadline=None)
def test_the_calls_are_those_of_the_graph_in_their_order(body: tuple[Any, ...]) -> None:
    backend, values = executed(body)
    graph = chat.compile(body, Writer())
    assert graph.is_static
    asked: dict[str, list[tuple[str, Any, str]]] = defaultdict(list)
    for call in backend.calls:
        asked[call.origin.branch].append((call.origin.step, call.sampling, decode(call.ids)))
    foreseen: dict[str, list[tuple[str, Any, str]]] = defaultdict(list)
    for node in graph.of_kind("gen"):
        foreseen[node.branch].append((node.name, node.sampling, prompt(graph, node, values)))
    assert foreseen == asked
    planned, _ = executed(body)  # by now with a plan: what is told beforehand changes no answer
    prompts = [{(call.origin.step, tuple(call.ids)) for call in run.calls} for run in (planned, backend)]
    assert prompts[0] == prompts[1]
    assert all(call.ahead.steps > 0 and call.ahead.returns is not None for call in planned.calls)
    scored = sorted(decode(ids) for ids, _ in backend.scored)
    assert scored == sorted(prompt(graph, node, values) for node in graph.of_kind("select"))


@given(bodies)
@settings(max_examples=60, deadline=None)
def test_async_programs_and_open_arguments_give_the_same_graph(body: tuple[Any, ...]) -> None:
    graph = chat.compile(body, Writer())

    def facts(of: Graph) -> list[Any]:
        return [(n.kind, n.branch, n.name, n.text, n.after, n.needs, n.sampling) for n in of.nodes]

    assert facts(achat.compile(body, Writer())) == facts(graph)


@given(bodies)
@settings(max_examples=60, deadline=None)
def test_passes_agree_with_a_plain_reading(body: tuple[Any, ...]) -> None:
    graph = chat.compile(body, Writer())
    after = reaches(graph)

    @cache
    def longest(step: int) -> int:
        return 1 + max((longest(late) for late in after[step]), default=0)

    assert steps_left(graph) == {node.id: longest(node.id) for node in graph.steps}
    lines = {node.id: [one.id for one in before(graph, node) if one.is_step] for node in graph.steps}
    assert {step: line[-2] if len(line) > 1 else None for step, line in lines.items()} == going_on(graph)
    earliest = {id: number for number, group in enumerate(parallel_groups(graph)) for id in (n.id for n in group)}
    assert sorted(earliest) == [node.id for node in graph.steps]
    for step in earliest:
        earlier = [earliest[other] for other in earliest if step in after[other]]
        assert earliest[step] == max(earlier, default=-1) + 1
    for step, last in last_uses(graph).items():
        users = [other for other, line in lines.items() if step in line[:-1]]
        assert (last is None) == (not users)
        assert last is None or (last in users and earliest[last] == max(earliest[user] for user in users))


@given(bodies)
@settings(max_examples=40, deadline=None)
def test_merging_changes_no_prompt_and_leaves_no_neighbours(body: tuple[Any, ...]) -> None:
    graph = chat.compile(body, Writer())
    small = merged(graph)
    values = {node.name: f"<{node.name}>" for node in graph.steps}
    for old, new in zip(graph.steps, small.steps, strict=True):
        assert (old.name, old.branch, old.sampling) == (new.name, new.branch, new.sampling)
        assert prompt(small, new, values) == prompt(graph, old, values)
    assert [node.id for node in small.nodes] == list(range(len(small.nodes)))
    for node in small.of_kind("text"):
        assert not any(small.nodes[id].kind == "text" for id in node.after)
    assert sorted(steps_left(small).values()) == sorted(steps_left(graph).values())


def test_a_program_with_a_data_dependency_is_known_up_to_it() -> None:
    @bosquet.program
    def decides(s: bosquet.State) -> None:
        s.user("One.")
        s.assistant(bosquet.gen("x"))
        s.user("Two.")
        if s["x"] == "yes":
            s.assistant(bosquet.gen("y"))

    graph = decides.compile()
    assert [node.kind for node in graph.nodes] == ["text", "gen", "text"]
    with pytest.raises(KeyError):
        _ = steps_left(graph)[2]


def test_texts_on_both_sides_of_a_fork_stay_apart() -> None:
    @bosquet.program
    def forks(s: bosquet.State) -> None:
        s += "a"
        s += "b"
        (branch,) = s.fork(1)
        branch += "c"
        branch += bosquet.gen("x")
        s += "d"
        s += bosquet.gen("y")

    graph = merged(forks.compile())
    assert [(node.kind, node.text, node.after) for node in graph.nodes] == [
        ("text", "ab", ()),
        ("fork", "", (0,)),
        ("text", "c", (1,)),
        ("gen", "", (2,)),
        ("text", "d", (1,)),
        ("gen", "", (4,)),
    ]
