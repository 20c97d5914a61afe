"""Programs as graphs: what tracing sees, where it ends, and that it runs nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import module_at
from fakes_lang import FakeBackend, aecho, echo

import bosquet.lang as bosquet
from bosquet.errors import Unsupported
from bosquet.lang import State, gen, passes, select
from bosquet.lang.graph import Graph, Node

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    return module_at(EXAMPLES / f"{name}.py", f"compiled_{name}")


def line_with(name: str, text: str) -> int:
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


# What each example does for these arguments, as its text says: nodes of each kind, and the words of the line that needs
# a value which only a run has.
KNOWN: dict[str, tuple[str, dict[str, Any], dict[str, int], str]] = {
    "quickstart": ("tell", {"topic": "tea"}, {"text": 1, "gen": 1}, ""),
    "chat": ("talk", {"questions": ["a", "b", "c"]}, {"text": 4, "gen": 3}, ""),
    "extract": ("extract", {"text": "Ada is 36."}, {"text": 1, "gen": 1}, ""),
    "judge": ("judge", {"review": "Good."}, {"text": 2, "select": 1}, ""),
    "batch": ("capital", {"country": "Peru"}, {"text": 3, "gen": 1}, ""),
    "skeleton": ("advise", {"question": "Why?", "points": 2}, {"text": 9, "gen": 4, "fork": 1, "join": 1}, ""),
    "structured": ("triage", {"message": "Help."}, {"text": 5, "gen": 4}, "s.meta(name).relaxed"),
    "tool_agent": ("shop", {"question": "How much?"}, {"text": 1, "tool": 1}, "acted.calls"),
    "tree_of_thought": (
        "search",
        {"task": "A story.", "depth": 3, "width": 2},
        {"text": 9, "gen": 2, "select": 2, "fork": 3},
        'judge.meta("rating").scores',
    ),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_an_example_is_what_its_text_says(name: str) -> None:
    program, arguments, counts, ending = KNOWN[name]
    graph = getattr(load(name), program).compile(**arguments)
    assert Counter(node.kind for node in graph.nodes) == counts
    assert graph.is_static == (not ending)
    if graph.ending is not None:
        assert graph.ending.file == str(EXAMPLES / f"{name}.py")
        assert graph.ending.line == line_with(name, ending)


def test_every_example_with_a_program_is_known() -> None:
    with_programs = {path.stem for path in EXAMPLES.glob("*.py") if "@bosquet.program" in path.read_text()}
    assert set(KNOWN) == with_programs


def test_the_lines_where_examples_need_a_run() -> None:
    ending = load("structured").triage.compile(message="Help.").ending
    assert (ending.function, ending.variable) == ("triage", "meta(tags)")
    assert load("tool_agent").shop.compile(question="?").ending.variable == "act"


# -- what a graph says ------------------------------------------------------------------------------------------------


@bosquet.program(temperature=0, max_tokens=5)
def story(s: State, topic: str, parts: int = 2) -> str:
    s.system("Be brief.")
    s.user(f"Tell of {topic}.")
    s.assistant(gen("plan", stop="\n"))
    branches = s.fork(parts)
    for i, branch in enumerate(branches):
        branch.user(f"Part {i} of {s['plan'].strip()}")
        branch.assistant("It " + select("mood", [" good", " bad"]) + gen("part", max_tokens=9))
    s.join(branches)
    s.user("\n".join(f"- {part}" for part in s["part"]))
    s.assistant(gen("end"))
    return s["end"]


def one(graph: Graph, name: str, branch: str = "") -> Node:
    return next(node for node in graph.nodes if (node.name, node.branch) == (name, branch) and node.kind != "join")


def test_a_graph_has_roles_names_sampling_and_edges() -> None:
    graph = story.compile(topic="bees")
    assert graph.is_static
    plan, end = one(graph, "plan"), one(graph, "end")
    assert (plan.kind, plan.role, plan.place) == ("gen", "assistant", 1)
    assert plan.sampling is not None
    assert (plan.sampling.temperature, plan.sampling.max_tokens, plan.sampling.stop) == (0, 5, (b"\n",))
    parts = [one(graph, "part", branch) for branch in ("0", "1")]
    assert [node.sampling.max_tokens for node in parts if node.sampling] == [9, 9]
    (fork,), (join,) = graph.of_kind("fork"), graph.of_kind("join")
    assert fork.branches == join.branches == ("0", "1")
    assert set(join.after[1:]) == {node.id for node in parts}
    question = graph.nodes[one(graph, "mood", "1").after[0] - 1]
    assert question.text == "Part 1 of {plan.strip()}"
    assert question.needs == (plan.id,)
    listing = graph.nodes[end.after[0]]
    assert listing.text == "- {part}\n- {part}"
    assert set(listing.needs) == {node.id for node in parts}
    assert [node.branch for node in graph.lineage(parts[1])].count("0") == 0


def test_an_argument_that_is_not_given_stays_open() -> None:
    graph = story.compile()
    assert graph.is_static
    assert "Tell of {topic}." in [node.text for node in graph.nodes]
    assert [node.kind for node in graph.nodes] == [node.kind for node in story.compile(topic="bees").nodes]
    with pytest.raises(TypeError, match="story"):
        story.compile(nonsense=1)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda s: bool(s["x"]), "a condition"),
        (lambda s: s["x"] == "yes", "'=='"),
        (lambda s: "a" in s["x"], "'in'"),
        (lambda s: s["x"] in "abc", "TypeError"),
        (lambda s: s["x"] in {"a": 1}, "a look-up"),
        (lambda s: str(s["x"]) == "yes", "'=='"),
        (lambda s: f"{s['x']}".split(), ".split"),
        (lambda s: "a" in str(s["x"]), "'in'"),
        (lambda s: repr(s["x"])[0], "[...]"),
        (lambda s: int(s["x"]), "int()"),
        (lambda s: float(s["x"]), "float()"),
        (lambda s: len(s["x"]), "len()"),
        (lambda s: list(s["x"]), "iteration"),
        (lambda s: s["x"][0], "[...]"),
        (lambda s: s["x"].split(), ".split"),
        (lambda s: s["x"] < "b", "'<'"),
        (lambda s: s["x"] * 2, "'*'"),
        (lambda s: json.loads(s["x"]), ".startswith"),
        (lambda s: re.search("a", s["x"]), "TypeError"),
        (lambda s: Path(s["x"]), "a path"),
        (lambda s: s.ready("x"), "known in a run"),
        (lambda s: s.text, "known in a run"),
        (lambda s: s.usage.calls, "known in a run"),
        (lambda s: s.meta("x").finish, ".finish"),
        (lambda s: echo.run("now", backend=FakeBackend()), "echo is run"),
        (lambda s: lookup("a"), "the tool lookup is called"),
    ],
)
def test_what_needs_the_value_ends_the_static_part(use: Callable[[State], Any], why: str) -> None:
    @bosquet.program
    def asks(s: State) -> Any:
        s.user("Hello.")
        s.assistant(gen("x"))
        try:
            use(s)
        except Exception:
            s.user("A program's own handlers must not take it for an answer.")
        s.user("After.")

    graph = asks.compile()
    if why == "TypeError":  # of the library that was handed the placeholder: the handler gets it, as it would in a run
        assert [node.kind for node in graph.nodes] == ["text", "gen", "text", "text"]
        return
    assert graph.ending is not None
    assert why in graph.ending.why
    assert [node.kind for node in graph.nodes] == ["text", "gen"]
    assert (graph.ending.function, graph.ending.file) == ("<lambda>", __file__)


def test_what_a_library_raises_for_a_placeholder_ends_it_too() -> None:
    @bosquet.program
    def parses(s: State) -> Any:
        s.user("A number, please.")
        s.assistant(gen("x"))
        return re.search("[0-9]", s["x"])

    ending = parses.compile().ending
    assert ending is not None
    assert ending.why.startswith("TypeError: expected string")
    assert (ending.function, ending.variable) == ("parses", "x")


def test_the_functions_own_errors_are_raised() -> None:
    @bosquet.program
    def broken(s: State) -> None:
        s += "a"
        s.user("a turn after plain text")

    with pytest.raises(RuntimeError, match="cannot follow plain text"):
        broken.compile()


def test_texts_stay_texts() -> None:
    @bosquet.program
    def writes(s: State, name: str) -> Any:
        s += "Hello, " + gen("x", max_tokens=3)
        s += s["x"]
        s += s["x"] + "." + gen("y", choices=["a", "b"])
        s += f"{s['x']:>9}|{s['x'].upper()!s}|" + s["y"].replace("a", name) + str(s["x"])
        s["kept"] = s["x"]
        s += "{}".format(s["kept"])
        assert isinstance(s["x"], str)
        return s["y"]

    graph = writes.compile("b")
    texts = [node.text for node in graph.of_kind("text")]
    assert graph.is_static
    assert texts == ["Hello, ", "{x}", "{x}.", "{x:>9}|{x.upper()}|{y.replace('a', 'b')}{x}", "{x}"]
    assert writes.compile().of_kind("text")[3].text.endswith("{y.replace('a', name)}{x}")


def test_no_tool_model_or_backend_runs() -> None:
    backend = FakeBackend()
    graph = acting.compile("q", backend=backend)
    assert [node.kind for node in graph.nodes] == ["text", "tool", "text", "gen"]
    assert called == []
    assert (backend.calls, backend.encoded, backend.rendered, backend.ended) == ([], [], [], [])


called: list[str] = []


@bosquet.tool
def lookup(word: str) -> str:
    """Look a word up."""
    called.append(word)
    return word


@bosquet.program
def acting(s: State, question: str) -> str:
    s.user(question)
    s.act([lookup], max_steps=2)
    s.user(f"Sum up {s['act']}.")
    s.assistant(gen("sum"))
    return s["sum"]


def test_what_the_backend_cannot_do_is_refused() -> None:
    backend = FakeBackend(capabilities=bosquet.TOKEN_CAPABILITIES - {"regex"})

    @bosquet.program
    def counts(s: State) -> None:
        s += "1, 2, " + gen("n", regex="[0-9]")

    with pytest.raises(Unsupported, match="regex"):
        counts.compile(backend=backend)
    assert counts.compile().is_static


def test_samples_are_a_list_of_known_length() -> None:
    @bosquet.program
    def votes(s: State) -> None:
        s.user("Draw.")
        s.assistant(gen("vote", n=3, max_tokens=4))
        s.user(" ".join(str(vote) for vote in s["vote"]))

    graph = votes.compile()
    assert graph.is_static
    assert graph.nodes[-1].text == "{vote[0]} {vote[1]} {vote[2]}"


# -- sub-programs and async -------------------------------------------------------------------------------------------


def test_a_sub_program_is_a_node_around_its_own() -> None:
    @bosquet.program(max_tokens=3)
    def inner(s: State) -> Any:
        s.user("Inside.")
        s.assistant(gen("word"))
        return s["word"]

    @bosquet.program
    def outer(s: State) -> None:
        word = inner(s)
        s.user(f"You said {word}.")

    graph = outer.compile()
    (node,) = graph.of_kind("program")
    assert node.name == "inner"
    assert [n.within for n in graph.nodes] == [(), (node.id,), (node.id,), ()]
    word = one(graph, "word")
    assert word.sampling is not None
    assert word.sampling.max_tokens == 3
    assert graph.nodes[-1].needs == (word.id,)


@bosquet.program
async def team(s: State, names: list[str]) -> list[Any]:
    s.user("Go.")
    branches = s.fork(len(names))

    async def talk(branch: State, name: str) -> Any:
        await aecho(branch, name)  # type: ignore[misc]
        return await branch.get("reply")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(talk(branch, name)) for branch, name in zip(branches, names, strict=True)]
    s.join(branches)
    s.user(" ".join(f"{task.result()}" for task in tasks))
    s.assistant(gen("all"))
    return [task.result() for task in tasks]


def test_an_async_program_compiles_with_its_tasks() -> None:
    graph = team.compile(["a", "b"])
    assert graph.is_static
    assert Counter(node.kind for node in graph.nodes) == {"text": 4, "fork": 1, "program": 2, "gen": 3, "join": 1}

    async def inside() -> Graph:
        return team.compile(["a", "b"])

    assert [node.kind for node in asyncio.run(inside()).nodes] == [node.kind for node in graph.nodes]


def test_a_task_that_waits_for_its_branch_keeps_no_other_waiting() -> None:
    graph = team.compile(["a", "b"])
    groups = [[(node.name, node.branch) for node in group] for group in passes.parallel_groups(graph)]
    assert groups == [[("reply", "0"), ("reply", "1")], [("all", "")]]
    left = {(node.name, node.branch): passes.steps_left(graph)[node.id] for node in graph.steps}
    assert left == {("reply", "0"): 2, ("reply", "1"): 2, ("all", ""): 1}

    @bosquet.program
    async def stages(s: State) -> None:
        s.user("Go.")
        s.assistant(gen("plan"))
        plan = await s.get("plan")
        one, two = s.fork(2)

        async def twice(branch: State) -> None:
            branch.user(f"{plan}?")
            branch.assistant(gen("a"))
            await branch.get("a")
            again = s.fork(1)[0]
            again.user("Once more.")
            again.assistant(gen("b"))

        async with asyncio.TaskGroup() as group:
            group.create_task(twice(one))
            group.create_task(twice(two))

    graph = stages.compile()
    assert [[node.name for node in group] for group in passes.parallel_groups(graph)] == [
        ["plan"],
        ["a", "a"],
        ["b", "b"],
    ]
    assert [passes.steps_left(graph)[node.id] for node in graph.steps] == [3, 2, 1, 2, 1]


def test_an_async_program_that_waits_for_others_ends_there() -> None:
    slept = False

    @bosquet.program
    async def sleeps(s: State) -> None:
        nonlocal slept
        s.user("Wait.")
        s.assistant(gen("x"))
        await asyncio.sleep(3600)
        slept = True

    graph = sleeps.compile()
    assert [node.kind for node in graph.nodes] == ["text", "gen"]
    assert graph.ending is not None
    assert (graph.ending.function, graph.ending.why) == ("sleeps", "it waits for something outside the program")
    assert not slept

    @bosquet.program
    async def branches(s: State) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(decides(s))

    async def decides(s: State) -> None:
        s.user("Yes or no?")
        s.assistant(gen("x"))
        if await s.get("x") == "yes":
            s.user("More.")

    ending = branches.compile().ending
    assert ending is not None
    assert (ending.function, ending.variable) == ("decides", "x")
