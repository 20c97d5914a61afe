"""docs/api.md says what the server takes and sends: every field, and none that is not there."""

import re
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from bosquet.radix_cache.ghosts import EvictionCause
from bosquet.runtime.server import program_runs, program_schemas, programs, schemas, tool_schemas, wire
from bosquet.runtime.server.errors import ANSWERS
from bosquet.runtime.server.metrics import STEP_PARTS, Metrics
from bosquet.runtime.server.output_check import Verdict
from bosquet.runtime.server.program_generate import DEFAULT_MAX_TOKENS
from bosquet.runtime.server.program_select import Selected
from bosquet.runtime.server.program_steps import BranchState, Forked, Joined
from bosquet.runtime.server.trace_records import Origins
from bosquet.runtime.trace import MissCause
from bosquet.speculative.draft import Source
from bosquet.types import FinishReason, GrammarKind, Stats

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
SHARED, CHAT, TEXT = "Fields that chat and completions share", "Chat completions", "Completions"
RUNS, PROGRAMS = "Runs", "Programs"
TOOLS, OUTPUT, TOKENS = "Tool calls", "Structured output", "Tokenize and detokenize"
WHY = "Why a prompt missed"

WHERE: dict[type[BaseModel], tuple[str, ...]] = {
    schemas.GenerationBody: (SHARED,),
    schemas.StreamOptions: (SHARED,),
    schemas.ChatRequest: (SHARED, CHAT),
    schemas.Message: (CHAT,),
    schemas.ContentPart: (CHAT,),
    schemas.CompletionRequest: (SHARED, TEXT),
    schemas.ResponseFormat: (OUTPUT,),
    schemas.JsonSchemaFormat: (OUTPUT,),
    schemas.TokenizeRequest: (TOKENS,),
    schemas.DetokenizeRequest: (TOKENS,),
    schemas.ExplainRequest: (WHY,),
    tool_schemas.MessageToolCall: (CHAT,),
    tool_schemas.MessageFunctionCall: (CHAT,),
    tool_schemas.Tool: (TOOLS,),
    tool_schemas.FunctionTool: (TOOLS,),
    tool_schemas.ToolChoice: (TOOLS,),
    tool_schemas.ChosenTool: (TOOLS,),
    tool_schemas.ChosenFunction: (TOOLS,),
    tool_schemas.AllowedTools: (TOOLS,),
    program_schemas.ProgramRequest: (PROGRAMS,),
    program_schemas.ProgramTurn: (PROGRAMS,),
    program_schemas.AppendRequest: (PROGRAMS,),
    program_schemas.GenerateRequest: (PROGRAMS, SHARED),
    program_schemas.SelectRequest: (PROGRAMS,),
    program_schemas.ForkRequest: (PROGRAMS,),
    program_schemas.JoinRequest: (PROGRAMS,),
}
"""Where each model's fields are told."""


def fields(model: type[BaseModel]) -> set[str]:
    """Names as they are sent."""
    return {info.alias or name for name, info in model.model_fields.items()}


def named(section: str) -> set[str]:
    """Every word that the section writes as code."""
    codes = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", section, flags=re.DOTALL))
    return {word for code in codes for word in re.findall(r"[a-z_0-9]+", code)}


def first_columns(section: str, header: str) -> list[str]:
    """The code in the first column of the tables with this header."""
    found = []
    for table in re.findall(rf"^\| {re.escape(header)}.*?(?=\n\n|\Z)", section, re.DOTALL | re.MULTILINE):
        for row in table.splitlines()[2:]:
            found += re.findall(r"`([^`]+)`", row.split("|")[1])
    return found


def test_every_model_of_a_request_has_its_place():
    models = [
        value
        for module in (schemas, tool_schemas, program_schemas)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
    ]
    assert set(models) == set(WHERE)


@pytest.mark.parametrize("model", WHERE)
def test_every_field_is_told(model: type[BaseModel]):
    told = set().union(*(named(SECTIONS[title]) for title in WHERE[model]))
    assert fields(model) <= told, fields(model) - told


@pytest.mark.parametrize(
    ("title", "model"),
    [(SHARED, schemas.GenerationBody), (CHAT, schemas.ChatRequest), (TEXT, schemas.CompletionRequest)],
)
def test_no_field_is_made_up(title: str, model: type[BaseModel]):
    told = first_columns(SECTIONS[title], "field | type and range")
    assert len(told) >= 8
    assert set(told) <= fields(model)


def test_fields_of_one_protocol_are_not_told_as_shared():
    shared = set(first_columns(SECTIONS[SHARED], "field | type and range"))
    assert shared <= fields(schemas.ChatRequest) & fields(schemas.CompletionRequest)


def test_defaults_and_ranges_of_numbers_are_those_of_the_models():
    rows = {}
    for title in (SHARED, CHAT, TEXT):
        for row in re.findall(r"^\| `.*$", SECTIONS[title], re.MULTILINE):
            cells = [cell.strip() for cell in row.split("|")]
            for name in re.findall(r"`([^`]+)`", cells[1]):
                rows[title, name] = cells[2].replace("−", "-").replace(",", "")
    for (title, name), told in rows.items():
        model = {SHARED: schemas.GenerationBody, CHAT: schemas.ChatRequest, TEXT: schemas.CompletionRequest}[title]
        bounds = re.fullmatch(r"(above )?(-?\d+) … (-?\d+)( s)?", told)
        if bounds and name in model.model_fields:
            limits = model.model_json_schema(by_alias=True)["properties"][name]
            limits = next(branch for branch in limits.get("anyOf", [limits]) if "type" in branch)
            low = limits.get("exclusiveMinimum" if bounds[1] else "minimum")
            assert (low, limits.get("maximum")) == (int(bounds[2]), int(bounds[3])), name


@pytest.mark.parametrize("path", first_columns(SECTIONS[CHAT], "field | |"))
def test_fields_of_the_answer_are_there(path: str):
    """`choices[].message.content` leads through the structs that are sent."""
    start = "usage." if path.startswith(("completion_tokens", "total_tokens")) else ""
    found: Any = wire.ChatCompletion
    for part in (start + path).replace("[]", "").split("."):
        hints = typing.get_type_hints(_struct(found))
        assert part in hints, path
        found = hints[part]


@pytest.mark.parametrize(
    "sent",
    [wire.ChatCompletion, wire.ChatChoice, wire.ChatMessage, wire.ToolCall, wire.FunctionCall, wire.Usage, wire.Extras],
)
def test_fields_of_the_answer_are_told(sent: type[msgspec.Struct]):
    """But for those that only say what kind of object it is."""
    told = named(SECTIONS[CHAT]) | named(SECTIONS[TOOLS]) | named(SECTIONS[SHARED])
    assert {f.name for f in msgspec.structs.fields(sent)} - {"id", "object", "created"} <= told | {"index", "role"}


@pytest.mark.parametrize("sent", [programs.RunState, BranchState, Forked, Joined, Selected, wire.RunJoined])
def test_fields_of_the_answers_about_runs_are_told(sent: type[msgspec.Struct]):
    told = named(SECTIONS[PROGRAMS]) | named(SECTIONS[RUNS])
    assert {f.name for f in msgspec.structs.fields(sent)} - {"object"} <= told


def test_the_limits_of_programs_are_told():
    told = SECTIONS[PROGRAMS].replace(",", "")
    sizes = f"{program_runs.MAX_RUNS} runs of {program_runs.MAX_BRANCHES} branches each"
    assert f"{sizes} which hold {program_runs.MAX_BYTES >> 20} MiB" in told
    assert f"1 … {program_schemas.MAX_FORK})" in told
    assert f"| above 0 … 3600 s | {program_runs.IDLE_S:g} |" in told
    assert f"`max_tokens` is {DEFAULT_MAX_TOKENS} if left out" in told


def _struct(hint: Any) -> type[Any]:
    """The struct in `list[X]`, `X | None` and the like."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    if typing.get_origin(hint) in (list, typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if _has_struct(arg)]
        return _struct(inner[0])
    raise AssertionError(f"{hint} has no fields")


def _has_struct(hint: Any) -> bool:
    if typing.get_origin(hint) is list:
        return any(map(_has_struct, typing.get_args(hint)))
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def test_every_metric_is_told():
    names = re.findall(r"^# TYPE bosquet_(\S+) ", Metrics().render("ready", Stats()).decode(), re.MULTILINE)
    names = [name for name in names if not name.endswith("_created")]
    told = named(SECTIONS["Health and metrics"])
    assert len(names) > 20
    assert not [name for name in names if name not in told]


LABELS: dict[tuple[str, str], tuple[str, ...]] = {
    ("source", "draft_requests"): typing.get_args(Source),
    ("source", "draft_tokens"): typing.get_args(Source),
    ("verdict", "draft_tokens"): ("accepted", "rejected"),
    ("verdict", "outputs_checked"): typing.get_args(Verdict),
    ("cause", "prefix_cache_misses"): ("none", *set(typing.get_args(MissCause)).difference({"", "namespace"})),
    ("cause", "prefix_cache_lost_tokens"): ("none", *set(typing.get_args(MissCause)).difference({"", "namespace"})),
    ("cause", "pages_left"): typing.get_args(EvictionCause),
    ("origin", "tokens"): Origins.__struct_fields__,
    ("finished_reason", "request_success"): (*typing.get_args(FinishReason), "unknown"),
    ("kind", "grammar_requests"): typing.get_args(GrammarKind),
    ("kind", "outputs_checked"): ("json", "arguments"),
    ("part", "engine_seconds"): STEP_PARTS,
}


def test_every_value_of_a_label_is_told():
    told: dict[tuple[str, str], set[str]] = {}
    for line in SECTIONS["Health and metrics"].splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.strip("| ").split(" | ")]
        if line.startswith("| `") and len(cells) == 3:
            told |= {(cells[0][0], metric): set(cells[2]) for metric in cells[1]}
    assert told == {place: set(values) for place, values in LABELS.items()}


def test_every_status_is_told():
    told = {int(status) for status in re.findall(r"\b[45]\d\d\b", "".join(first_rows(SECTIONS["Errors"])))}
    assert {answer.status for answer in ANSWERS.values()} <= told


def first_rows(section: str) -> list[str]:
    return [row.split("|")[1] for row in section.splitlines() if row.startswith("| ")]
