"""Tool calls of the embedded model on a seeded sample of BFCL: every call that is made parses and fits its tool, in
every mode, streamed and not, and both say the same. What the model picks is not judged here.

With BOSQUET_BFCL=N the sample has N items a file; what the model got right is printed (pytest -s).
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema
import openai
import pytest
from live_engine import Served

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "bfcl"
MODEL = "SmolLM2-135M-Instruct"
FILES = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "irrelevance")
MODES = ("auto", "required", "named")
LIMIT = 220


class Said(NamedTuple):
    content: str | None
    calls: list[tuple[str, str]]
    finish: str


def sample(count: int) -> list[dict[str, Any]]:
    """`count` items of each file, or all."""
    items = []
    for name in FILES:
        lines = (DATA / f"{name}.jsonl").read_text().splitlines()
        items += [json.loads(line) for line in random.Random(f"20250601-{name}").sample(lines, min(count, len(lines)))]
    return items


def request(item: dict[str, Any], mode: str) -> dict[str, Any]:
    name = next(iter(item["answer"][0])) if item["answer"] else item["tools"][0]["function"]["name"]
    choice: Any = {"type": "function", "function": {"name": name}} if mode == "named" else mode
    before = _shown(item) if mode == "auto" and item["answer"] else []
    return {
        "model": MODEL, "messages": [*before, *item["messages"]], "tools": item["tools"], "tool_choice": choice,
        "temperature": 0, "max_tokens": LIMIT,
    }  # fmt: skip


def _shown(item: dict[str, Any]) -> list[dict[str, Any]]:
    """The same question with a right answer, twice: so small a model does not call of its own accord."""
    ((name, accepted),) = item["answer"][0].items()
    arguments = json.dumps({key: values[0] for key, values in accepted.items() if values and values[0] != ""})
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [*item["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}] * 2


def whole(client: openai.OpenAI, body: dict[str, Any]) -> Said:
    choice = client.chat.completions.create(**body).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return Said(choice.message.content, calls, choice.finish_reason)


def streamed(client: openai.OpenAI, body: dict[str, Any]) -> Said:
    with client.chat.completions.stream(**body) as flow:
        for _ in flow:
            pass
        choice = flow.current_completion_snapshot.choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return Said(choice.message.content, calls, choice.finish_reason)


def refused(item: dict[str, Any], error: openai.BadRequestError) -> Counter[str]:
    """Fails for a refusal without reason: one of the tools has to want a value that its own schema rules out, as a list
    that must be one of some strings, and the refusal to name it."""
    assert any(
        f"#/properties/{name}" in str(error) and all(_misfits(value, schema) for value in schema.get("enum", ()))
        for tool in item["tools"]
        for name, schema in tool["function"]["parameters"]["properties"].items()
        if "enum" in schema and name in tool["function"]["parameters"].get("required", ())
    ), item["id"]
    return Counter(refused=1)


def _misfits(value: Any, schema: dict[str, Any]) -> bool:
    return not jsonschema.Draft202012Validator(schema).is_valid(value)


def judge(item: dict[str, Any], mode: str, said: Said) -> Counter[str]:
    """Fails for a call that is none; counts the rest."""
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in item["tools"]}
    found = Counter(answers=1, calls=len(said.calls), cut=said.finish == "length")
    assert mode == "auto" or said.calls or said.finish == "length"
    for at, (name, arguments) in enumerate(said.calls):
        if said.finish == "length" and at == len(said.calls) - 1 and not _is_json(arguments):
            continue  # it had no time to end
        value = json.loads(arguments)
        jsonschema.validate(value, tools[name])
        found["whole"] += 1
    expected = [next(iter(answer)) for answer in item["answer"]]
    found["right names"] = [name for name, _ in said.calls] == expected
    found["right"] = found["right names"] and all(
        _is_json(arguments) and _accepted(json.loads(arguments), answer[name])
        for (name, arguments), answer in zip(said.calls, item["answer"], strict=True)
    )
    return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _accepted(arguments: dict[str, Any], accepted: dict[str, list[Any]]) -> bool:
    given = all(name in accepted and value in accepted[name] for name, value in arguments.items())
    return given and all(name in arguments or "" in values for name, values in accepted.items())


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=600)


@pytest.mark.skipif(not DATA.is_dir() and "CI" not in os.environ, reason=f"{DATA} is not there")
@pytest.mark.parametrize("mode", MODES)
def test_every_call_fits_its_tool(client: openai.OpenAI, mode: str) -> None:
    def one(item: dict[str, Any]) -> Counter[str]:
        body = request(item, mode)
        try:
            said = whole(client, body)
        except openai.BadRequestError as error:
            return refused(item, error)
        assert streamed(client, body) == said, item["id"]
        return judge(item, mode, said)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = sum(pool.map(one, sample(int(os.environ.get("BOSQUET_BFCL", "2")))), Counter[str]())
    print(f"\n{mode}: {dict(found)}")
    assert found["whole"] > 0


@pytest.mark.skipif(not DATA.is_dir() and "CI" not in os.environ, reason=f"{DATA} is not there")
def test_many_tools_at_once(served: Served) -> None:
    """Two sets of 24 different ones; no schema of the set is refused, and the compile holds nobody up."""
    found = [tool for item in sample(60) for tool in item["tools"]]
    tools = list({tool["function"]["name"]: tool for tool in found}.values())
    for at in (0, 24):
        body = {
            "model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": tools[at : at + 24],
            "tool_choice": "required", "max_tokens": 8,
        }  # fmt: skip
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "length"
