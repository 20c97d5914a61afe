"""What a graph costs, how it is drawn, and what `bosquet compile` prints."""

from __future__ import annotations

import asyncio
import json
import re
import time
import xml.etree.ElementTree as ElementTree
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fakes_lang import FakeBackend, encode_segments, until
from typer.testing import CliRunner

import bosquet.lang as bosquet
from bosquet.cli import app
from bosquet.errors import BosquetError, ConfigError
from bosquet.lang import State, drawing, gen, learnt, select
from bosquet.lang.estimate import Estimate, estimate
from bosquet.lang.graph import Graph
from bosquet.lang.learnt import Habit, Habits
from bosquet.lang.loop import submit
from bosquet.lang.report import report
from bosquet.types import Segment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def cost_of(graph: Graph, backend: FakeBackend | None = None, habits: Habits | None = None) -> Estimate:
    return submit(estimate(graph, backend, habits)).result(timeout=20)


@bosquet.program(temperature=0, max_tokens=6)
def debate(s: State, topic: str) -> None:
    s.system("Be fair to the other side.")
    s.user(f"Is {topic} good?")
    s.assistant(gen("first"))
    s.user("Why?")
    s.assistant(gen("why"))
    sides = s.fork(2)
    for i, side in enumerate(sides):
        side.user(f"Side {i}.")
        side.assistant(gen("case", max_tokens=9))
    s.join(sides)
    s.user("Decide.")
    s.assistant("It is" + select("verdict", [" good", " bad."]))


# -- what it costs ----------------------------------------------------------------------------------------------------


class Exact(FakeBackend):
    """Every answer is as long as it may be, and calls are answered one after the other, as branches that share a prefix
    are by an engine."""

    turn: asyncio.Lock | None = None

    async def generate(self, call: Any) -> Any:
        self.turn = self.turn or asyncio.Lock()
        async with self.turn:
            async for chunk in super().generate(call):
                yield chunk

    def answer(self, call: Any) -> Any:
        made = super().answer(call)
        return made._replace(
            ids=[97] * call.sampling.max_tokens, cut=call.sampling.max_tokens, finish="length", stop=None
        )


def test_with_a_tokenizer_the_estimate_is_what_a_run_costs() -> None:
    graph = debate.compile("tea")
    cost = cost_of(graph, FakeBackend())
    assert cost.exact
    backend = Exact()
    result = debate.run("tea", backend=backend)
    prompts = {(call.origin.branch, call.origin.step): len(call.ids) for call in backend.calls}
    for node in graph.of_kind("gen"):
        assert cost.steps[node.id].prompt == prompts[node.branch, node.name]
        assert cost.steps[node.id].generated == (9 if node.name == "case" else 6)
    (choice,) = graph.of_kind("select")
    assert cost.steps[choice.id].prompt == len(backend.scored[0][0])
    assert cost.prompt == result.usage.prompt_tokens + cost.steps[choice.id].prompt
    saved = sum(cost.steps[node.id].cached for node in graph.of_kind("gen"))
    assert saved == result.usage.cached_tokens
    assert cost.computed == cost.prompt - cost.saved
    assert cost.by_turns == sum(cost.steps[n.id].cached for n in graph.steps if n.branch == "")
    assert cost.by_forks == sum(cost.steps[n.id].cached for n in graph.steps if n.branch != "")


def test_samples_compute_their_prompt_once() -> None:
    @bosquet.program(max_tokens=4)
    def votes(s: State) -> None:
        s += "abcabcabc"
        s += gen("vote", n=5)

    (cost,) = cost_of(votes.compile(), FakeBackend()).steps.values()
    assert cost == (15, 8, 20)  # three tokens each, of which the last is always computed


def test_without_one_four_characters_are_a_token_and_it_says_so() -> None:
    cost = cost_of(debate.compile("tea"))
    assert not cost.exact
    assert cost.counted_by.startswith("4 characters a token")
    first = next(iter(cost.steps.values()))
    assert first.prompt == -(-len("Be fair to the other side.Is tea good?") // 4)
    assert cost_of(debate.compile()).prefix == -(-len("Be fair to the other side.Is ") // 4)


def test_what_runs_have_shown_replaces_what_is_allowed() -> None:
    graph = debate.compile("tea")
    cost = cost_of(graph, None, Habits(steps={"why": Habit(seen=3, tokens=2.2)}))
    assert {node.name: cost.steps[node.id].generated for node in graph.of_kind("gen")} == {
        "first": 6, "why": 2, "case": 9,
    }  # fmt: skip


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_every_node_and_edge_is_drawn() -> None:
    graph = drawing.merged(debate.compile("tea"))
    boxes = len(graph.nodes)
    lines = len(list(drawing.edges(graph)))
    mermaid = drawing.as_mermaid(graph)
    assert len(re.findall(r"^    n\d+[\[(]", mermaid, re.M)) == boxes
    assert len(re.findall(r"^    n\d+ (-->|-\. \".*\" \.->) n\d+$", mermaid, re.M)) == lines
    assert '"' not in re.sub(r'\["[^"]*"\]|"\]|\["', "", mermaid.replace('(["', "").replace('"])', ""))
    dot = drawing.as_dot(graph)
    assert len(re.findall(r"^  n\d+ \[", dot, re.M)) == boxes
    assert len(re.findall(r"^  n\d+ -> n\d+", dot, re.M)) == lines
    picture = ElementTree.fromstring(drawing.own_svg(graph))
    name = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{name}rect")) == boxes
    assert len(picture.findall(f"{name}path")) == lines
    places = {(box.get("x"), box.get("y")) for box in picture.findall(f"{name}rect")}
    assert len(places) == boxes  # none hides another


def test_what_a_text_says_draws_nothing() -> None:
    @bosquet.program
    def odd(s: State) -> None:
        s += 'a "b" <i>\\[x]\n'
        s += gen('x]"-->', max_tokens=2)

    graph = odd.compile()
    assert r'label="a \"b\" <i>\\[x]"' in drawing.as_dot(graph)
    assert drawing.as_mermaid(graph).splitlines()[1:4] == [
        '    n0["a #34;b#34; #60;i#62;#92;#91;x#93;"]',
        '    n1(["gen x#93;#34;--#62;"])',
        "    n0 --> n1",
    ]
    texts = ElementTree.fromstring(drawing.own_svg(graph)).findall("{http://www.w3.org/2000/svg}text")
    assert [text.text for text in texts] == ['a "b" <i>\\[x]', 'gen x]"-->']


def test_where_the_static_part_ends_is_drawn_too() -> None:
    @bosquet.program
    def decides(s: State) -> None:
        s.user("One.")
        s.assistant(gen("x"))
        if s["x"] == "yes":
            s.user("Two.")

    graph = decides.compile()
    for picture in (drawing.as_mermaid(graph), drawing.as_dot(graph), drawing.own_svg(graph)):
        assert "needs the value of x" in picture


# -- the command ------------------------------------------------------------------------------------------------------


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["compile", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_prints_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    said = run(f"{EXAMPLES}/skeleton.py:advise", "-a", "points=2", "-a", "question=How do I sleep well?")
    assert said.startswith("advise: 4 steps in 3 groups, 1 fork\nstatic: known to its end\n")
    assert len(re.findall(r"^ +3 +gen +reason in [01] ", said, re.M)) == 2
    assert (
        "tokens (4 characters a token, without the template's text; texts that only a run knows are guessed)"
        in " ".join(said.split())
    )
    said = run(f"{EXAMPLES}/tree_of_thought.py:search")
    assert "static up to line 24, in score: .scores needs the value of meta(rating)" in said
    said = run(f"{EXAMPLES}/batch.py:capital")
    assert "every run begins with 16 tokens: You know the capitals of all countries.What is the capital of" in said


def test_the_command_draws_and_writes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no Graphviz
    target = f"{EXAMPLES}/skeleton.py:advise"
    assert run(target, "-f", "mermaid").startswith("flowchart TD\n")
    assert run(target, "--format", "dot").startswith('digraph "advise" {\n')
    assert run(target, "-f", "svg", "-o", str(tmp_path / "plan.svg")) == ""
    assert ElementTree.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")
    run(target, "-o", str(tmp_path / "plan.txt"))
    assert (tmp_path / "plan.txt").read_text().startswith("advise: 6 steps")
    found = json.loads(run(target, "-f", "json", "-a", "points=2"))
    assert (found["program"], found["static"], found["ending"]) == ("advise", True, None)
    assert [len(group) for group in found["groups"]] == [1, 1, 2]
    point = next(node for node in found["nodes"] if node.get("name") == "point_0")
    assert point["sampling"]["stop"] == ["\n", ":", ".", ","]
    assert point["steps_left"] == 3


def test_tokens_are_counted_by_a_model_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    monkeypatch.setattr("bosquet.cli._backend", lambda model, url: nullcontext(backend))
    found = json.loads(run(f"{EXAMPLES}/quickstart.py:tell", "-a", "topic=ü", "-f", "json", "--model", "toy"))
    text = "<|im_start|>user\nExplain in about 20 words what ü is.<|im_end|>\n<|im_start|>assistant\n"
    assert found["tokens"]["counted_by"] == "as toy counts"
    assert found["tokens"]["exact"] is True
    assert found["tokens"]["prompt"] == len(encode_segments([Segment(text, True)]))
    assert found["constant_prefix"] == "Explain in about 20 words what "
    assert backend.calls == []


def test_mistakes_of_the_command_are_one_line() -> None:
    for words, said in (
        ((f"{EXAMPLES}/skeleton.py:nothing",), "no program named nothing; it has advise"),
        ((f"{EXAMPLES}/skeleton.py", "-f", "svg"), "of which program? it has advise"),
        ((f"{EXAMPLES}/programs_http.py",), "has no program; decorate one with @bosquet.program"),
        (
            (f"{EXAMPLES}/skeleton.py:advise", "-a", "points=three"),
            "line 20, in advise: TypeError: 'str' object cannot",
        ),
        (
            (f"{EXAMPLES}/skeleton.py:advise", "-a", "points=three", "-a", "question=a"),
            "advise: line 20, in advise: TypeError: 'str' object cannot be interpreted as an integer",
        ),
        ((f"{EXAMPLES}/skeleton.py:advise", "-a", "colour=red"), "unexpected keyword argument 'colour'"),
        (("nowhere.py:advise",), "existing file"),
        ((f"{EXAMPLES}/skeleton.py:advise", "-a", "points"), "expected name=value"),
    ):
        done = CliRunner().invoke(app, ["compile", *words])
        assert isinstance(done.exception, ConfigError), words
        assert said in str(done.exception)


FAULTY = """import bosquet
from bosquet import gen

@bosquet.program
def loop(s, n=1):
    \"\"\"Never ends.

    Really.\"\"\"
    while True:
        s.user("x")

@bosquet.program
def boom(s, n=1):
    s.user("hi")
    if n == 1:
        raise ValueError("no\\ngood")

@bosquet.program
def deep(s):
    s.user("hi")
    deep(s)
"""


def failing(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words)
    if isinstance(done.exception, ConfigError):  # `main` says it on one line
        return 2, str(done.exception)
    assert isinstance(done.exception, BosquetError), done.output
    return 1, str(done.exception)


def test_what_a_file_or_a_program_raises_is_one_line_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bosquet.cli._backend", lambda model, url: nullcontext(FakeBackend()))
    for name, text, said in (
        ("syntax.py", "import os\ndef f(:\n", ", line 2: SyntaxError: invalid syntax"),
        ("raises.py", "import os\n\n1 / 0\n", ", line 3: ZeroDivisionError: division by zero"),
        ("leaves.py", "import sys\nsys.exit(3)\n", ", line 2: SystemExit: 3"),
    ):
        (path := tmp_path / name).write_text(text)
        for command in ("compile", "run"):
            assert failing(command, f"{path}:a") == (2, f"{path}{said}")
    (path := tmp_path / "faulty.py").write_text(FAULTY)
    raised = "boom: line 16, in boom: ValueError: no good"
    assert failing("compile", f"{path}:boom") == (2, raised)
    assert failing("run", f"{path}:boom") == (1, raised)
    for command, code in (("compile", 2), ("run", 1)):
        found, said = failing(command, f"{path}:deep")
        assert found == code
        assert re.match(r"deep: line 2[01], in deep: RecursionError: maximum recursion depth exceeded", said)
        assert "\n" not in said
    assert run(f"{path}:boom", "-a", "n=2").startswith("boom: 0 steps")  # though it fails with its own default


def test_a_file_alone_lists_its_programs(tmp_path: Path) -> None:
    (path := tmp_path / "listed.py").write_text(FAULTY)
    listed = "loop(n=1)  Never ends.\nboom(n=1)\ndeep()\n"
    assert run(str(path)) == listed
    assert run(str(path), "-o", str(tmp_path / "list.txt")) == ""
    assert (tmp_path / "list.txt").read_text() == listed


def test_a_short_text_is_a_token() -> None:
    @bosquet.program(max_tokens=1)
    def hello(s: State) -> None:
        s.user("hi")
        for side in s.fork(3):
            side.user("a")
            side.assistant(gen("x"))

    cost = cost_of(hello.compile())
    assert cost.prefix == 1
    assert [step.prompt for step in cost.steps.values()] == [2, 2, 2]  # a fork is a token boundary
    assert cost.by_forks == 2


def test_an_error_of_the_program_is_told_from_one_of_a_placeholder() -> None:
    @bosquet.program
    def joined(s: State, words: list[str], topic: str) -> None:
        s.user(topic)
        s.assistant(gen("word"))
        s.user(" ".join([*words, s["word"]]))

    ending = joined.compile(words=["a"]).ending
    assert ending is not None
    assert "Placeholder" in ending.why
    assert not ending.fault
    ending = joined.compile(words=3).ending
    assert ending is not None
    assert ending.fault


def test_only_what_was_learnt_of_the_steps_that_come_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learnt, "_learnt", learnt.Learnt())

    @bosquet.program(max_tokens=2)
    def points(s: State, count: int) -> None:
        s.user("Go.")
        for i in range(count):
            s.assistant(gen(f"point_{i}"))
            s.fork(2)

    for steps, shown in (({"count": 1}, {0}), ({"count": 2}, {0, 1})):
        points.run(3, backend=FakeBackend())
        until(lambda: points.habits() is not None)
        report(points, steps, "text", None)
        lines = capsys.readouterr().out.partition("learnt from runs")[2]
        assert lines
        for i in range(3):
            assert (f" point_{i} " in lines) is (i in shown)
            assert (f"after point_{i}\n" in lines) is (i in shown)


# -- overhead ---------------------------------------------------------------------------------------------------------


def test_compiling_and_sending_cost_little() -> None:
    @bosquet.program(max_tokens=1)
    def turns(s: State, topic: str) -> None:
        for i in range(20):
            s.user(f"{topic} {i}")
            s.assistant(gen(f"answer_{i}"))

    class Quick(FakeBackend):
        async def generate(self, call: Any) -> Any:
            yield bosquet.Chunk("a", (97,), "length")

        async def encode(self, segments: Any) -> list[int]:
            return [1, 2, 3]

    backend = Quick()
    turns.run("a", backend=backend)

    def cpu_ms() -> float:
        began = time.process_time()
        turns.compile("a")
        turns.run("b", backend=backend)
        return (time.process_time() - began) * 1000 / 20

    assert min(cpu_ms() for _ in range(5)) < 1.5  # some 0.3 on a machine that does nothing else
