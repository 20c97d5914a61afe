"""The workloads are those of the design, word for word, and the requests say what they should."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from fakes_openai import RECORD
from hypothesis import given
from hypothesis import strategies as st

from bosquet.errors import ConfigError
from bosquet.runtime.bench.record_schema import LABELS, SCHEMA, is_valid
from bosquet.runtime.bench.target import request
from bosquet.runtime.bench.words import WORDS
from bosquet.runtime.bench.workloads import GROUPS, Workload, chosen

ALL = {workload.name: workload for group in GROUPS.values() for workload in group}


def words(text: str) -> int:
    assert set(text.removeprefix("Write one record about the text as JSON.").split()) <= set(WORDS)
    return len(text.split())


@pytest.mark.parametrize(
    ("name", "requests", "in_flight", "max_tokens", "prompt"),
    [
        ("single", 3, 1, 128, 8),
        ("prefill 512", 6, 1, 1, 512),
        ("prefill 4096", 3, 1, 1, 4096),
        ("streams", 64, 32, 128, 100),
    ],
)
def test_plain_workloads(name: str, requests: int, in_flight: int, max_tokens: int, prompt: int) -> None:
    workload = ALL[name]
    scripts = workload.draw(0, False)
    assert [words(str(script.opening)) for script in scripts] == [prompt] * requests
    assert all(script.replies == () for script in scripts)
    assert (workload.in_flight, workload.max_tokens, workload.schema) == (in_flight, max_tokens, None)
    assert len({script.opening for script in scripts}) == requests


def test_agents() -> None:
    workload = ALL["agents"]
    scripts = workload.draw(0, False)
    assert (len(scripts), workload.in_flight, workload.max_tokens) == (16, 16, 40)
    for script in scripts:
        system, task = script.opening
        assert (system["role"], words(system["content"])) == ("system", 1200)
        assert (task["role"], words(task["content"])) == ("user", 40)
        assert [words(reply) for reply in script.replies] == [60] * 5  # six turns
    assert len({script.opening[0]["content"] for script in scripts}) == 1  # type: ignore[index]
    assert len({script.opening[1]["content"] for script in scripts}) == 16  # type: ignore[index]


def test_json() -> None:
    workload = ALL["json"]
    scripts = workload.draw(0, False)
    assert (len(scripts), workload.in_flight, workload.max_tokens) == (48, 16, 200)
    for script in scripts:
        system, text = script.opening
        assert (words(system["content"]), words(text["content"])) == (200, 60)
    assert len({script.opening[0]["content"] for script in scripts}) == 1  # type: ignore[index]


@pytest.mark.parametrize("workload", ALL.values(), ids=ALL.keys())
def test_prompts_are_the_same_for_all_servers_and_fresh_in_each_pass(workload: Workload) -> None:
    passes = [(round, streamed) for round in (-1, 0, 1) for streamed in (False, True)]
    drawn = [workload.draw(*which) for which in passes]
    assert drawn == [workload.draw(*which) for which in passes]
    openings = [str(script.opening) for scripts in drawn for script in scripts]
    assert len(set(openings)) == len(openings)


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS) >= 500


def test_a_plain_request() -> None:
    assert request(ALL["streams"], "m", "a b", False) == (
        "/v1/completions",
        {"model": "m", "temperature": 0, "max_tokens": 128, "stream": False, "ignore_eos": True, "prompt": "a b"},
    )


def test_a_json_request_may_end_by_itself_and_carries_the_schema() -> None:
    talk = [{"role": "user", "content": "x"}]
    path, body = request(ALL["json"], "m", talk, True)  # type: ignore[arg-type]
    assert path == "/v1/chat/completions"
    assert "ignore_eos" not in body
    assert body["stream_options"] == {"include_usage": True}
    assert body["response_format"]["json_schema"] == {"name": "record", "strict": True, "schema": SCHEMA}
    assert body["messages"] == talk


def test_choice_of_workloads() -> None:
    assert [w.name for w in chosen(["streams", "prefill"])] == ["prefill 512", "prefill 4096", "streams"]
    assert chosen([]) == list(ALL.values())
    with pytest.raises(ConfigError, match="no workload 'x'; there are single, prefill, streams, agents, json"):
        chosen(["x"])


# ---- the check of JSON answers, against a whole validator ---------------------------------------------------------


def test_the_schema_is_the_designs() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def closed(part: dict[str, Any]) -> bool:
        return part["required"] == list(part["properties"]) and part["additionalProperties"] is False

    properties = SCHEMA["properties"]
    assert closed(SCHEMA)
    assert closed(properties["address"])
    assert properties["address"]["properties"]["postcode"]["pattern"] == "^[0-9]{5}$"
    assert properties["name"] == {"type": "string", "maxLength": 40}
    assert properties["count"] == {"type": "integer"}
    assert (properties["labels"]["minItems"], properties["labels"]["maxItems"]) == (1, 3)


def oracle(value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(value))


PARTS: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(max_size=44),
    "subject": st.text(max_size=3) | st.none(),
    "count": st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.just("1"),
    "address": st.fixed_dictionaries(
        {"street": st.text(max_size=3), "postcode": st.from_regex("[0-9a٣]{4,6}", fullmatch=True)},
        optional={"more": st.just(1)},
    ),
    "labels": st.lists(st.sampled_from([*LABELS, "other", 1, None]), max_size=4) | st.just("food"),
    "priority": st.sampled_from(["low", "normal", "high", "", True, None]),
}


@given(st.sampled_from(sorted(PARTS)).flatmap(lambda name: st.tuples(st.just(name), PARTS[name])))
def test_one_part_changed(change: tuple[str, Any]) -> None:
    value = {**RECORD, change[0]: change[1]}
    assert is_valid(json.dumps(value)) == oracle(value)


@given(st.fixed_dictionaries(PARTS))
def test_all_parts_changed(value: dict[str, Any]) -> None:
    assert is_valid(json.dumps(value)) == oracle(value)


def test_good_and_bad_records() -> None:
    assert is_valid(json.dumps(RECORD))
    assert oracle(RECORD)
    for name in RECORD:
        assert not is_valid(json.dumps({key: value for key, value in RECORD.items() if key != name}))
    spoilt: list[Callable[[str], str]] = [lambda t: t[:-1], lambda t: t + "x", lambda t: "", lambda t: f"[{t}]"]
    assert not any(is_valid(spoil(json.dumps(RECORD))) for spoil in spoilt)
    assert not is_valid(json.dumps({**RECORD, "more": 1}))
    line_feed = {**RECORD, "address": {"street": "c", "postcode": "12345\n"}}
    assert not is_valid(json.dumps(line_feed))  # stricter than Python's "$"
