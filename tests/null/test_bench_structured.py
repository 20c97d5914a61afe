"""`bench structured`: its schemas, its figures and tables, the server's part over a fake server, and wrong options."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from fakes_openai import FakeOpenAI
from rich.console import Console
from typer.testing import CliRunner

import bosquet.runtime.bench.structured as structured
from bosquet.cli import app
from bosquet.errors import ConfigError, GrammarInvalid
from bosquet.runtime.bench import structured_report
from bosquet.runtime.bench.maskbench import Case, Instance, Outcome
from bosquet.runtime.bench.progress import Progress
from bosquet.runtime.bench.structured_cases import built_in, fresh_schemas, many_tools
from bosquet.runtime.bench.structured_compile import Subject, judged, some, timings
from bosquet.runtime.bench.structured_report import Findings, document, keywords, targets
from bosquet.runtime.bench.structured_streams import FREE, HELD, Served, Side, measure_server, passes
from bosquet.runtime.bench.target import Target
from bosquet.types import GrammarSpec, Relaxed

MACHINE = {"cpu": "none", "cores": 1, "flags": []}


class Grammar:
    """Lets through the compact texts of some values, byte by byte; `None`: every text."""

    size_bytes = 0

    def __init__(self, texts: list[bytes] | None, relaxed: tuple[Relaxed, ...] = ()) -> None:
        self.texts, self.relaxed, self.said = texts, relaxed, b""

    def matcher(self) -> Grammar:
        return Grammar(self.texts, self.relaxed)

    def try_accept(self, ids: list[int]) -> int:
        for count, byte in enumerate(ids):
            said = self.said + bytes([byte])
            if self.texts is not None and not any(text.startswith(said) for text in self.texts):
                return count
            self.said = said
        return len(ids)

    @property
    def completed(self) -> bool:
        return self.texts is None or self.said in self.texts

    def fill_mask(self, row: np.ndarray) -> None:
        row.fill(-1)


class Compiler:
    """Strict: lets through what `only` lists, refuses `hard`. Relaxed: `hard` lets everything through."""

    def __init__(self) -> None:
        self.specs: list[GrammarSpec] = []

    def compile(self, spec: GrammarSpec) -> Any:
        self.specs.append(spec)
        if spec.kind == "structural_tag":
            return Grammar(None)
        schema = json.loads(spec.value)
        if schema.get("hard"):
            if spec.strict:
                raise GrammarInvalid("schema: #/a: `hard` cannot be enforced: it is hard")
            return Grammar(None, (Relaxed("#/a", "hard", "it is hard"),))
        return Grammar([json.dumps(value, separators=(",", ":")).encode() for value in schema.get("only", [])])


def subject() -> Subject:
    return Subject("fake", Compiler(), list, 8, lambda use: GrammarSpec("structural_tag", json.dumps(len(use.tools))))


def case(name: str, schema: Any, *tests: tuple[Any, bool]) -> Case:
    return Case(name, name.partition("---")[0], schema, tuple(Instance(value, valid, "") for value, valid in tests))


CASES = [
    case("A---1", {"only": [1]}, (1, True), (2, False)),
    case("A---2", {"hard": True}, (1, True), (2, False)),
    case("B---1", {"only": []}, (1, True)),
    case("B---2", {"only": [2]}, (2, False)),
]


def findings() -> Findings:
    found = Findings("four schemas", "fake", MACHINE)
    for strict, outcomes in ((True, found.strict), (False, found.relaxed)):
        outcomes.extend(judged(subject(), CASES, strict=strict, on_case=lambda: None))
    return found


def shown(found: Findings) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    structured_report.show(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# ---- the schemas that come with it ----------------------------------------------------------------------------------


def test_built_in_instances_are_labelled_as_an_independent_validator_labels_them() -> None:
    cases = built_in()
    assert len({one.id for one in cases}) == len(cases) > 15
    for one in cases:
        jsonschema.Draft202012Validator.check_schema(one.schema)
        validator = jsonschema.Draft202012Validator(
            one.schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        for instance in one.instances:
            assert validator.is_valid(instance.data) == instance.valid, (one.id, instance)


def test_fresh_schemas_are_new_of_one_size_and_the_same_every_time() -> None:
    schemas = fresh_schemas(12)
    assert schemas == fresh_schemas(12)
    assert len({json.dumps(schema) for schema in schemas}) == 12
    assert [schema.get("additionalProperties") for schema in schemas[:2]] == [False, None]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
        assert 2048 <= len(json.dumps(schema)) < 2900
        assert set(schema["required"]) < set(schema["properties"])


@pytest.mark.parametrize("strict", [True, False])
def test_many_tools_are_different(strict: bool) -> None:
    tools = many_tools(strict=strict)
    assert len({tool.name for tool in tools}) == len({tool.parameters for tool in tools}) == 128
    for tool in tools:
        schema = json.loads(tool.parameters)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert (set(schema["required"]) == set(schema["properties"])) or not strict
        assert (schema.get("additionalProperties") is False) == strict == tool.strict


def test_a_limit_takes_some_of_every_part_of_the_file() -> None:
    cases = [case(f"{subset}---{n}", {}) for subset in "ABC" for n in range(10)]
    assert [one.id for one in some(cases, 6)] == ["A---0", "A---5", "B---0", "B---5", "C---0", "C---5"]
    assert some(cases, 0) == some(cases, 30) == some(cases, 99) == cases


# ---- figures and tables ---------------------------------------------------------------------------------------------


def test_verdicts_in_both_modes() -> None:
    found = findings()
    assert [one.result for one in found.strict] == ["pass", "refused", "rejects valid", "accepts invalid"]
    assert [one.result for one in found.relaxed] == ["pass", "accepts invalid", "rejects valid", "accepts invalid"]
    assert [one.silent for one in found.relaxed] == [False, False, False, True]
    assert keywords(found.strict) == ({"hard": 1}, {})
    assert keywords(found.relaxed) == ({}, {"hard": 1})
    assert keywords([Outcome("x", "x", "refused", refusal="schema: #: no value satisfies this")])[0] == {
        "no value fits": 1
    }


def test_tables_say_what_is_covered_and_what_is_silent() -> None:
    text = shown(findings())
    strict, relaxed = re.split(r"\n *Relaxed *\n", text)
    lines = [line.split() for line in relaxed.splitlines()]
    rows = {line[0]: line[1:7] for line in lines if len(line) > 6 and line[0] in ("A", "B", "all")}
    assert rows == {
        "A": ["2", "1", "0", "0", "1", "0"],
        "B": ["2", "0", "0", "1", "0", "1"],
        "all": ["4", "1", "0", "1", "1", "1"],
    }
    assert "Strict, refused for: hard 1" in strict
    assert "Relaxed, relaxed, or not known: hard 1" in relaxed


def test_targets_are_met_or_not_by_the_figures() -> None:
    found = findings()
    found.served = Served(free=[Side(100.0, 0.1), Side(None, None)], held=[Side(94.0, 0.2), Side(90.0, None)])
    rows = {row.what: (row.value, row.met) for row in targets(found)}
    assert rows["strict: schemas that pass"] == (0.25, False)
    assert rows["strict: wrongly accepted"] == (1, False)
    assert rows["relaxed: wrongly accepted in silence"] == (1, False)
    assert rows["held streams by free ones, tok/s"] == (0.94, False)
    assert rows["strict: mask p50, µs"][1] is True
    found.served = Served(free=[Side(100.0, 0.1)], held=[Side(95.0, 0.2)])
    assert targets(found)[-1].met is True
    found.served = Served()
    assert (targets(found)[-1].value, targets(found)[-1].met) == (None, None)
    assert "held streams by free ones" in shown(found)


def test_timings_compile_each_schema_once_and_all_tools_at_once() -> None:
    made = subject()
    rows = timings(made, count=3, tools=5)
    assert [(row.what, row.strict, row.compile.readings) for row in rows] == [
        ("a new schema of 2 KB", True, 3),
        ("a new schema of 2 KB", False, 3),
        ("5 tools in one request", True, 3),
        ("5 tools in one request", False, 3),
    ]
    assert all(row.first_mask.p50 >= row.compile.p50 > 0 for row in rows)
    assert 2048 <= rows[0].bytes < 2900
    specs = made.compiler.specs  # type: ignore[attr-defined]
    assert [spec.value for spec in specs[:3]] == [json.dumps(schema) for schema in fresh_schemas(3)]
    assert [spec.value for spec in specs[6:]] == ["5"] * 6


def test_the_document_holds_every_schema_and_no_single_masks() -> None:
    found = findings()
    made = json.loads(json.dumps(document(found, {"limit": 0})))
    assert [row["id"] for row in made["schemas"]["relaxed"]] == [one.id for one in CASES]
    assert made["schemas"]["relaxed"][1]["relaxed"] == [{"path": "#/a", "keyword": "hard", "reason": "it is hard"}]
    assert made["schemas"]["strict"][0]["masks"] == 2
    assert "mask_us" not in made["schemas"]["strict"][0]
    assert made["summary"]["strict"][-1]["passed"] == 1
    assert made["keywords"]["strict"]["refused"] == {"hard": 1}
    assert made["settings"] == {"limit": 0, "data": "four schemas", "model": "fake"}


# ---- the server -----------------------------------------------------------------------------------------------------


def asked(server: FakeOpenAI, rounds: int, **more: Any) -> Served:
    return asyncio.run(measure_server(Target(server.url), rounds, **more))


def test_free_and_held_streams_take_turns_with_prompts_of_one_length() -> None:
    done: list[int] = []
    with FakeOpenAI(gate=16, ungated=2).running() as server:
        served = asked(server, 2, on_pass=lambda: done.append(1))
    assert server.most_in_flight == 16
    assert len(done) == passes(2) == 5
    bodies = [body for path, body in server.bodies if path == "/v1/completions"]
    held = ["response_format" in body for body in bodies]
    assert held == [False, True] + [False] * 16 + [True] * 32 + [False] * 16
    assert len({body["prompt"] for body in bodies}) == len(bodies)
    assert {len(body["prompt"].split()) for body in bodies} == {37}
    assert all(body["max_tokens"] == 128 and not body["stream"] for body in bodies)
    assert bodies[1]["response_format"]["json_schema"]["strict"] is True
    assert bodies[0]["ignore_eos"] is True
    assert all(side.tokens_per_s is not None and side.mask_ms is None for side in served.free)
    assert served.notes == ["held: 16 of 16 answers do not have 128 tokens"] * 2  # the fake server's have one
    assert served.valid_per_s is not None
    assert served.valid_per_s > 0


def test_a_server_that_fails_is_noted() -> None:
    with FakeOpenAI(fails=lambda n: 500 if n == 5 else None).running() as server:
        served = asked(server, 1, records=False)
    assert served.notes[0] == "free: 1 failed: 500: planted"
    assert served.valid_per_s is None
    assert served.free[0].tokens_per_s is not None


def test_the_held_workload_cannot_end_before_its_tokens_are_used_up() -> None:
    schema: Any = HELD.schema
    address = {"street": "", "postcode": "00000"}
    record = {"name": "", "subject": "", "count": 0, "address": address, "labels": ["food"], "priority": "low"}
    shortest = [record] * 16
    jsonschema.validate(shortest, schema)
    assert len(json.dumps(shortest)) > 8 * HELD.max_tokens  # no token has eight characters here on average
    assert (HELD.in_flight, HELD.max_tokens) == (FREE.in_flight, FREE.max_tokens) == (16, 128)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(shortest[1:], schema)


# ---- the command ----------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setattr(structured, "open_model", lambda model: subject())
    given: dict[str, Any] = {"data": "", "limit": 0, "model": "m", "url": "", "serve": False, "rounds": 1, "out": ""}
    structured.measure(**{**given, **options}, progress=Progress())


def lines_of(cases: list[Case]) -> str:
    return "".join(
        json.dumps(
            {"id": one.id, "schema": one.schema, "tests": [{"data": d, "valid": v} for d, v, _ in one.instances]}
        )
        + "\n"
        for one in cases
    )


def test_a_file_is_measured_and_written(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "in.jsonl").write_text(lines_of(CASES))
    with FakeOpenAI(owner="bosquet").running() as server:
        run(monkeypatch, data=f"{tmp_path}/in.jsonl", out=f"{tmp_path}/out.json", serve=True, url=server.url)
    text = capsys.readouterr().out
    for title in ("Strict", "Relaxed", "Compiling", "Streams that are held to a schema", "Against the targets"):
        assert title in text
    made = json.loads((tmp_path / "out.json").read_text())
    assert [row["id"] for row in made["schemas"]["strict"]] == [one.id for one in CASES]
    assert made["served"]["ratio"] is not None
    assert len(made["timings"]) == 4


def test_without_a_file_it_takes_its_own_schemas(monkeypatch: Any, capsys: Any) -> None:
    run(monkeypatch, limit=5)
    text = capsys.readouterr().out
    assert "5 schemas of the built-in set (--data FILE takes others)" in text
    assert "Streams" not in text


def test_ctrl_c_shows_what_is_known(monkeypatch: Any, capsys: Any) -> None:
    def interrupt(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(structured, "timings", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch)
    assert "Relaxed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("", "there is no schema in it"),
        ("{\n", "not in the form of the MaskBench sample"),
        ("[]\n", "not in the form"),
        ('{"id": "x"}\n', "not in the form"),
        ('{"id": 3, "schema": {}}\n', "not in the form"),
        ('{"id": "x", "schema": {}, "tests": [1]}\n', "not in the form"),
    ],
)
def test_a_wrong_file_is_one_line(monkeypatch: Any, tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "in.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        run(monkeypatch, data=str(path))
    assert "\n" not in str(caught.value)


def test_an_unreachable_server_is_found_out_first(monkeypatch: Any, capsys: Any) -> None:
    with pytest.raises(ConfigError, match="cannot reach"):
        run(monkeypatch, serve=True, url="http://127.0.0.1:1")
    assert capsys.readouterr().out == ""


def test_options_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(structured, "measure", lambda *args, **given: calls.append((args, given)))
    words = "bench structured --data d --limit 3 --model m --url u --no-server --rounds 2 --out o"
    assert CliRunner().invoke(app, words.split()).exit_code == 0
    given = {"limit": 3, "model": "m", "url": "u", "serve": False, "rounds": 2, "out": "o"}
    assert calls == [(("d",), given)]


def test_options_before_its_name_are_refused_and_help_teaches() -> None:
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, ["bench", "--rounds", "2", "structured"], env=environment)
    assert result.exit_code == 2
    assert "options of structured come after its name" in result.output
    result = CliRunner().invoke(app, ["bench", "structured", "-h"], env=environment)
    assert "bosquet bench structured --data sample.jsonl" in result.output
    assert '"tests": [{"valid": …, "data": …}]' in result.output
