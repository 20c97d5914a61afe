"""Tools through the chat template of every family: the model is told of them, and what the template writes of calls in
the history is what the family's parser reads."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

import pytest
from template_samples import ADDED, CONTROLS, TEMPLATES
from tool_manners import CHATML, manner
from tool_templates import TOOL_TEMPLATES

from bosquet.grammar.tools import KNOWN, Parsed, Tool, detect
from bosquet.types import ToolSpec

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
SPECS = [ToolSpec("get_weather", "Weather of a place.", json.dumps(SCHEMA)), ToolSpec("now", "The time.")]
ARGUMENTS = {"city": "Zürich [<{", "days": 2}
SAMPLES = {
    "default": CHATML,
    "hermes": TEMPLATES["qwen3"],
    "llama3": TEMPLATES["llama3"],
} | TOOL_TEMPLATES


def conversation(calls: int) -> list[Any]:
    made = [
        {
            "id": f"call0000{i}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)},
        }
        for i in range(calls)
    ]
    results = [
        {"role": "tool", "content": f"SUN{call['id']}", "tool_call_id": call["id"], "name": "get_weather"}
        for call in made
    ]
    return [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": made}, *results]


def rendered(sample: str, messages: list[Any], prompt: bool = False) -> str:
    specials = (*CONTROLS["qwen3"], *ADDED["qwen3"]) if sample == "hermes" else ()
    return "".join(segment.text for segment in manner(SAMPLES[sample], specials).render(messages, SPECS, prompt))


def test_every_family_that_a_template_can_have_is_here() -> None:
    found = {sample: detect(SAMPLES[sample]).name for sample in SAMPLES}
    assert found == {sample: sample for sample in SAMPLES}
    assert set(KNOWN) - set(found.values()) == {"gemma"}, "whose templates do not write calls: it is named by hand"


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_model_is_told_of_every_tool(sample: str) -> None:
    told = rendered(sample, conversation(1)[:1], prompt=True)
    for spec in SPECS:
        assert spec.name in told
        assert spec.description in told
    assert '"city"' in told
    assert told.index("get_weather") < told.index("Weather?") or sample != "default"


@pytest.mark.parametrize("sample", SAMPLES)
def test_calls_in_the_history_are_written_as_they_are_read(sample: str) -> None:
    calls = 1 if sample in ("llama3", "harmony") else 2  # their templates hold one a turn
    messages = conversation(calls)
    prompt, whole = rendered(sample, messages[:1], prompt=True), rendered(sample, messages)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
    end = whole.index("SUNcall00000")
    form = detect(SAMPLES[sample])
    parser = form.parser([Tool(spec.name) for spec in SPECS])
    found = Parsed().add(parser.push(whole[shared:end]) + parser.finish()).calls
    assert [(call.name, json.loads(call.arguments), call.complete) for call in found] == [
        ("get_weather", ARGUMENTS, True)
    ] * calls
    for call in messages[1]["tool_calls"]:
        assert f"SUN{call['id']}" in whole[end:], "the result stands after the calls"
