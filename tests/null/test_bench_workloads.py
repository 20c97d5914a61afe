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
from bosquet.runtime.bench.workloads import GROUPS, TOPICS, Script, Tree, Workload, chosen

ALL = {workload.name: workload for group in GROUPS.values() for workload in group}


def scripts_of(name: str) -> list[Script]:
    found = ALL[name].draw(0, False)
    assert all(isinstance(script, Script) for script in found)
    return list(found)  # type: ignore[arg-type]


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
    scripts = scripts_of(name)
    assert [words(str(script.opening)) for script in scripts] == [prompt] * requests
    assert all(script.replies == () for script in scripts)
    assert (workload.in_flight, workload.max_tokens, workload.schema) == (in_flight, max_tokens, None)
    assert len({script.opening for script in scripts}) == requests


def test_agents() -> None:
    workload = ALL["agents"]
    scripts = scripts_of("agents")
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
    scripts = scripts_of("json")
    assert (len(scripts), workload.in_flight, workload.max_tokens) == (48, 16, 200)
    for script in scripts:
        system, text = script.opening
        assert (words(system["content"]), words(text["content"])) == (200, 60)
    assert len({script.opening[0]["content"] for script in scripts}) == 1  # type: ignore[index]


def test_tree() -> None:
    workload = ALL["tree"]
    (tree,) = workload.draw(0, False)
    assert isinstance(tree, Tree)
    assert (workload.in_flight, workload.at_once, workload.max_tokens, tree.score_tokens) == (1, 8, 60, 4)
    assert words(tree.opening[0]["content"].removeprefix("Solve this problem step by step. ")) == 600
    assert [len(level.hints) for level in tree.levels] == [4, 8, 8]
    assert tree.requests == 40
    assert len({hint for level in tree.levels for hint in level.hints}) == 20
    for level in tree.levels:
        assert len(set(level.kept)) == 2
        assert set(level.kept) <= set(range(len(level.hints)))


def test_which_thoughts_are_kept_differs_from_round_to_round() -> None:
    kept = [tuple(level.kept for level in tree.levels) for r in range(5) for tree in ALL["tree"].draw(r, False)]  # type: ignore[union-attr]
    assert len(set(kept)) > 1


def test_chat() -> None:
    workload = ALL["chat"]
    scripts = scripts_of("chat")
    assert (len(scripts), workload.in_flight, workload.at_once, workload.max_tokens) == (8, 8, 8, 200)
    for script in scripts:
        system, question = script.opening
        assert (words(system["content"]), words(question["content"])) == (20, 40)
        assert [words(reply) for reply in script.replies] == [30, 30]
    assert len({script.opening[0]["content"] for script in scripts}) == 8  # type: ignore[index]


def test_few_shot() -> None:
    workload = ALL["few-shot"]
    scripts = scripts_of("few-shot")
    assert (len(scripts), workload.in_flight, workload.free_tokens) == (64, 16, 4)
    assert workload.schema == {"type": "string", "enum": TOPICS}
    assert len(set(TOPICS)) == 6
    assert set(TOPICS) <= set(WORDS)
    (system,) = {script.opening[0]["content"] for script in scripts}  # type: ignore[index]
    task, *examples = system.split("\n\n")
    assert all(topic in task for topic in TOPICS)
    assert len(examples) == 30
    for example in examples:
        shown, topic = example.split("\nTopic: ")
        assert words(shown.removeprefix("Text: ")) == 23
        assert is_valid(topic, workload.schema)
    assert 750 <= len(system.split()) <= 850
    assert len({script.opening[1]["content"] for script in scripts}) == 64  # type: ignore[index]


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
    assert request("m", "a b", 128, None, False) == (
        "/v1/completions",
        {"model": "m", "temperature": 0, "max_tokens": 128, "stream": False, "ignore_eos": True, "prompt": "a b"},
    )


def test_a_json_request_may_end_by_itself_and_carries_the_schema() -> None:
    talk = [{"role": "user", "content": "x"}]
    path, body = request("m", talk, 200, SCHEMA, True)  # type: ignore[arg-type]
    assert path == "/v1/chat/completions"
    assert "ignore_eos" not in body
    assert body["stream_options"] == {"include_usage": True}
    assert body["response_format"]["json_schema"] == {"name": "answer", "strict": True, "schema": SCHEMA}
    assert body["messages"] == talk


def test_choice_of_workloads() -> None:
    assert [w.name for w in chosen(["streams", "prefill"])] == ["prefill 512", "prefill 4096", "streams"]
    assert chosen([]) == list(ALL.values())
    with pytest.raises(ConfigError, match="no workload 'x'; there are single, prefill, streams, agents, json, tree"):
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
