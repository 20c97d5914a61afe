"""Echoed calls in the manner of every family: arguments may be written anew, the tokens are those generated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from template_samples import ADDED, CONTROLS, LLAMA3, QWEN3
from tokenizer_samples import CHATML, CHATML_SPECIALS
from tool_samples import Made, written
from tool_templates import TOOL_TEMPLATES
from transcripts_bed import Bed, Message, calling, text_of, user

from bosquet.grammar.tools import KNOWN, Tool
from bosquet.runtime.server.services import Text

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "near": {"type": "boolean"}},
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}}
HI = [user("Weather?")]
CALL = Made("get_weather", {"city": "Zürich [<{", "days": 2, "near": True})
NAMES_CALLS = ("mistral", "mistral_args")
"""Families whose templates write the ids of calls, which the models do not."""


def family(name: str) -> Text:
    if name == "hermes":
        return text_of(QWEN3, CHATML_SPECIALS, ADDED["qwen3"])
    if name == "default":
        return text_of(CHATML)
    if name == "llama3":
        return text_of(LLAMA3, CONTROLS["llama3"], end="<|eot_id|>")
    form, template = KNOWN[name], TOOL_TEMPLATES[name]
    if name.startswith("deepseek"):  # whose real templates end a turn with calls as any other
        template = template.replace("<｜tool▁calls▁end｜>", "<｜tool▁calls▁end｜></s>")
    return text_of(template, tuple(dict.fromkeys([*form.specials, *form.stops, "</s>"])), end="</s>")


FAMILIES = ("hermes", "default", "llama3", *TOOL_TEMPLATES)


def answer(name: str) -> str:
    tool = Tool("get_weather", "", SCHEMA)
    text = written(KNOWN[name], [CALL], [tool])
    return text.removesuffix(KNOWN[name].stops[0]) if KNOWN[name].stops else text


def echoed(message: Message) -> list[Message]:
    """With arguments in another order and no spaces, and the result."""
    arguments = dict(reversed(json.loads(message["tool_calls"][0]["function"]["arguments"]).items()))
    again = calling(message, json.dumps(arguments, separators=(",", ":"), ensure_ascii=True))
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    return [*HI, again, result]


def ask(bed: Bed, messages: list[Message], **fields: Any) -> int:
    usage = bed.ask(messages, tools=[TOOL], **fields).json()["usage"]
    return int(usage["prompt_tokens_details"].get("transcript_tokens", 0))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_comes_back_as_it_was_generated(name: str):
    with Bed(family(name)) as bed:
        assert bed.text.tool_format.name == name
        message = bed.turn(HI, answer(name), tools=[TOOL])
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == CALL.arguments
        before = bed.prompt + bed.letters(answer(name))
        carried = ask(bed, echoed(message))
        if name in NAMES_CALLS:
            assert carried == 0
            assert message["tool_calls"][0]["id"] in bed.shown
        else:
            assert carried == len(before)
            assert bed.prompt[:carried] == before
        assert "sunny" in bed.shown


@pytest.mark.parametrize("name", FAMILIES)
def test_append_only_keeps_what_was_generated_in_every_family(name: str):
    with Bed(family(name)) as bed:
        message = bed.turn(HI, answer(name), tools=[TOOL])
        before = bed.prompt + bed.letters(answer(name))
        ask(bed, echoed(message), history="append_only")
        assert bed.prompt[: len(before)] == before
        assert bed.shown.count("sunny") == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_another_call_is_encoded_as_ever(name: str):
    with Bed(family(name)) as bed:
        message = bed.turn(HI, answer(name), tools=[TOOL])
        other = echoed(calling(message, json.dumps(CALL.arguments | {"days": 3})))
        assert ask(bed, other) == 0
        assert ask(bed, other, history="append_only") == 0
