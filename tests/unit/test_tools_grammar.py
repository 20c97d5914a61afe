"""The structural formats: what they let through is calls that parse and validate, and nothing opens that may go astray.

The oracle is an engine that compiles the format by itself, and `jsonschema`.
"""

from __future__ import annotations

import json
import random
from itertools import islice, pairwise
from typing import Any

import jsonschema
import pytest
from grammar_vocabulary import CLOSERS, END_OF_TEXT, IM_END, TOKENS, fits, mask_of, spell, tokens_in
from tool_grammars import accepts, compiled
from tool_samples import CALLS, MOVE, NOW, SEARCH, TOOLS, WEATHER, Made, parse, whole, written

from bosquet.grammar.base import Matcher
from bosquet.grammar.reasoning import KNOWN as MARKERS
from bosquet.grammar.reasoning import with_thinking
from bosquet.grammar.tools import KNOWN, Format, Parsed, Tool, ToolChoice

FORMS = list(KNOWN.values())
NAMED = [pytest.param(form, id=form.name) for form in FORMS]
ONE_CALL = [form for form in FORMS if form.name == "harmony"]
AUTO, REQUIRED = ToolChoice("auto"), ToolChoice("required")
ANSWER = {"type": "json_schema", "json_schema": {
    "type": "object", "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
    "required": ["name", "parameters"]}}  # fmt: skip


def many(form: Format) -> list[list[Made]]:
    """Rows of calls that the family can write."""
    ones = [[call] for call in CALLS]
    return ones if form in ONE_CALL else [*ones, CALLS[:2], CALLS]


def final(form: Format, text: str) -> str:
    return f"<|channel|>final<|message|>{text}" if form.channels else text


@pytest.mark.parametrize("form", NAMED)
def test_calls_are_accepted_and_come_back_as_they_were(form: Format) -> None:
    auto, required = form.grammar(TOOLS, AUTO), form.grammar(TOOLS, REQUIRED)
    for calls in many(form):
        text = written(form, calls)
        assert accepts(auto, text), text
        assert accepts(required, text), text
        content, _, found = whole(form, text)
        assert content == ""
        assert [(name, json.loads(arguments), done) for name, arguments, done in found] == [(*c, True) for c in calls]


@pytest.mark.parametrize("form", NAMED)
def test_arguments_are_the_generated_text(form: Format) -> None:
    """Not serialised again, where they are JSON in the text."""
    strange = '{ "city" :"\\u0041\\/",\n"days":3}'
    if form.name in ("pythonic", "gemma", "functiongemma"):
        tool = Tool("get_weather", parameters={**WEATHER.schema, "minProperties": 1})  # then it is one JSON object
        text = written(form, [Made("get_weather", {"city": "x"})], [tool]).replace('{"city": "x"}', strange)
        expected = '{"city": "\\u0041\\/", "days": 3}'
    else:
        text = written(form, [Made("get_weather", {"city": "x"})]).replace('{"city": "x"}', strange)
        expected = strange
    assert strange in text
    assert whole(form, text)[2] == [("get_weather", expected, True)]


@pytest.mark.parametrize("form", NAMED)
def test_text_is_free_under_auto_and_refused_when_a_call_is_required(form: Format) -> None:
    auto, required = form.grammar(TOOLS, AUTO), form.grammar(TOOLS, REQUIRED)
    for text in ("Hello <tool and [TOOL, ``` then { and [ as one likes.", "é😀", "a", "  b"):
        assert accepts(auto, final(form, text)), text
        assert not accepts(required, final(form, text)), text
        assert whole(form, final(form, text)) == (text, "", [])
    assert not accepts(required, "")
    assert form.channels or accepts(auto, "")


@pytest.mark.parametrize(
    "form", [form for form in NAMED if form.values[0].name not in ("llama3", "pythonic", "harmony")]
)
def test_text_may_come_before_calls_under_auto_only(form: Format) -> None:
    text = "I look it up.\n\n" + written(form, CALLS[:2])
    assert accepts(form.grammar(TOOLS, AUTO), text)
    assert not accepts(form.grammar(TOOLS, REQUIRED), text)
    content, _, calls = whole(form, text)
    assert content == "I look it up."
    assert [name for name, _, _ in calls] == ["get_weather", "get_weather"]


@pytest.mark.parametrize("form", NAMED)
def test_a_choice_narrows_the_tools_and_their_number(form: Format) -> None:
    one, other = written(form, [CALLS[0]]), written(form, [CALLS[3]])
    named = form.grammar(TOOLS, ToolChoice.named("search"))
    assert accepts(named, other)
    assert not accepts(named, one)
    for mode in ("auto", "required"):
        allowed = form.grammar(TOOLS, ToolChoice.allowed(["search", "now"], mode))
        assert accepts(allowed, other)
        assert not accepts(allowed, one)
    if form not in ONE_CALL:
        two = written(form, [CALLS[3], CALLS[4]])
        assert not accepts(named, written(form, [CALLS[3], CALLS[3]]))
        assert accepts(form.grammar(TOOLS, REQUIRED), two)
        for choice in (AUTO, REQUIRED):
            single = form.grammar(TOOLS, choice, parallel=False)
            assert accepts(single, one)
            assert not accepts(single, two)


@pytest.mark.parametrize("form", NAMED)
def test_no_choice_and_no_tools_leave_the_answer(form: Format) -> None:
    for tools, choice in (([], AUTO), (TOOLS, ToolChoice("none"))):
        free, held = form.grammar(tools, choice), form.grammar(tools, choice, True, ANSWER)
        assert held is not None
        assert accepts(held, final(form, '{"name": "a", "parameters": {}}'))
        assert not accepts(held, final(form, "a"))
        if form.channels:
            assert free is not None
            assert accepts(free, final(form, "a"))
        else:
            assert free is None


@pytest.mark.parametrize("form", NAMED)
def test_either_calls_or_the_answer(form: Format) -> None:
    """The answer looks as much like a call as it can, and is none."""
    both = form.grammar(TOOLS, AUTO, True, ANSWER)
    answer = '{"name": "get_weather", "parameters": {}}'
    assert accepts(both, final(form, answer))
    assert whole(form, final(form, answer), answer=True) == (answer, "", [])
    inside = json.dumps({"name": written(form, [CALLS[4]]), "parameters": {}}, ensure_ascii=False)
    assert accepts(both, final(form, inside))
    assert whole(form, final(form, inside), answer=True) == (inside, "", [])
    calls = written(form, CALLS[3:4])
    calls = f"<|python_tag|>{calls}" if form.name == "llama3" else calls
    assert accepts(both, calls)
    assert [name for name, _, _ in whole(form, calls, answer=True)[2]] == ["search"]
    assert not accepts(both, final(form, "I think"))
    assert not accepts(both, calls + final(form, answer))
    assert not accepts(form.grammar(TOOLS, REQUIRED, True, ANSWER), final(form, answer))


WRONG = [
    ("get_weather", '{"city": 1}'),
    ("get_weather", '{"city": "a", "days": 99}'),
    ("get_weather", '{"days": 3}'),
    ("get_weather", '{"city": "a", "unit": "K"}'),
    ("search", '{"range": {}}'),
    ("search", '{"range": {"low": "a"}}'),
    ("now", '{"a": 1}'),
    ("move-to.point", '{"x": 1}'),
    ("unknown", "{}"),
]


@pytest.mark.parametrize("form", NAMED)
def test_arguments_that_do_not_fit_are_refused_in_every_mode(form: Format) -> None:
    loose = {"type": "object", "properties": {"a": {}}}  # so that the writer can write them
    tools = [WEATHER, SEARCH, MOVE, Tool("now", parameters=loose), Tool("unknown", parameters=loose)]
    alone = form.name in ("llama3", "pythonic", "harmony")
    for name, arguments in WRONG:
        text = written(form, [Made(name, json.loads(arguments))], tools)
        for choice in (
            AUTO,
            REQUIRED,
            ToolChoice.allowed([tool.name for tool in TOOLS], "auto"),
            ToolChoice.named("now"),
        ):
            held = form.grammar(TOOLS, choice)
            assert not accepts(held, text), text
            assert alone or not accepts(held, f"x {text}"), text


OPENED = {
    "hermes": "<tool_call>",
    "default": "<tool_call>",
    "llama3": "{",
    "mistral": "[TOOL_CALLS]",
    "mistral_args": "[TOOL_CALLS]",
    "pythonic": "[",
    "deepseek_v3": "<｜tool▁calls▁begin｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜>",
    "gemma": "```tool_code",
    "functiongemma": "<start_function_call>",
    "harmony": "<|channel|>commentary to=",
}


@pytest.mark.parametrize("form", NAMED)
def test_what_opens_like_a_call_cannot_become_text(form: Format) -> None:
    auto = form.grammar(TOOLS, AUTO)
    begin = OPENED[form.name]
    for rest in ("", " ", "\n", "{}", "x", '{"name": "unknown"', "[[", "()", "<", begin):
        assert not accepts(auto, begin + rest), rest
        assert not accepts(auto, f" \n{begin}{rest}"), rest


def test_a_message_in_a_channel_cannot_open_another_out_of_sight() -> None:
    form = KNOWN["harmony"]
    auto = form.grammar(TOOLS, AUTO)
    bad = "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{}"
    good = "<|start|>assistant" + written(form, CALLS[:1])
    assert not accepts(auto, f"<|channel|>final<|message|>a<|end|>{bad}")
    assert not accepts(auto, f"<|channel|>final<|message|>a<|end|>{good}")
    assert accepts(auto, "<|channel|>final<|message|>a<|end|>")
    assert accepts(auto, f"<|channel|>analysis<|message|>a<|end|>{good}")
    assert not accepts(auto, f"<|channel|>analysis<|message|>a<|end|>{bad}")
    assert whole(form, f"<|channel|>final<|message|>a{good}")[2] == [], "not ended: all of it is its text"
    hidden = f"<|channel|>analysis<|message|>a{bad}<|end|>{good}"
    assert accepts(auto, hidden)
    assert [(name, done) for name, _, done in whole(form, hidden)[2]] == [("get_weather", True)]


def test_thoughts_and_a_preamble_may_come_before_a_call_in_channels() -> None:
    form = KNOWN["harmony"]
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant" + written(form, CALLS[:1])
    )
    for choice in (AUTO, REQUIRED, ToolChoice.named("get_weather")):
        assert accepts(form.grammar(TOOLS, choice), text)
    content, reasoning, calls = whole(form, text)
    assert (content, reasoning) == ("I look.", "Hm.")
    assert [name for name, _, _ in calls] == ["get_weather"]


def test_optional_arguments_in_order_and_never_twice() -> None:
    for name in ("pythonic", "functiongemma"):
        form = KNOWN[name]
        abc = {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}, "required": ["c"]}
        for tool in (SEARCH, WEATHER, Tool("last", parameters=abc)):
            held = form.grammar([tool], REQUIRED)
            keys = list(tool.schema["properties"])
            samples: dict[str, Any] = {"city": "p", "days": 2, "metric": False, "unit": "C", "limit": 5, "terms": ["t"],
                                       "range": {"low": 1}, "a": 1, "b": 2, "c": 3}  # fmt: skip
            for bits in range(1 << len(keys)):
                chosen = [key for at, key in enumerate(keys) if bits >> at & 1]
                call = Made(tool.name, {key: samples[key] for key in chosen})
                fits = set(tool.schema.get("required", [])) <= set(chosen)
                assert accepts(held, written(form, [call], [tool])) == fits, call
                for first, second in pairwise(chosen):
                    swapped = [second if key == first else first if key == second else key for key in chosen]
                    other = Made(tool.name, {key: samples[key] for key in swapped})
                    assert not accepts(held, written(form, [other], [tool])), other


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a b": {"type": "integer"}}, "required": ["a b"]},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1},
        {"type": "object", "properties": {f"p{at}": {"type": "integer"} for at in range(13)}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    ],
)
@pytest.mark.parametrize("name", ["pythonic", "functiongemma"])
def test_what_cannot_be_written_one_by_one_is_a_json_object(name: str, parameters: dict[str, Any]) -> None:
    form = KNOWN[name].grammar([Tool("f", parameters=parameters)], REQUIRED)
    begin = "[f(**" if name == "pythonic" else "<start_function_call>call:f"
    assert json.dumps(begin.removeprefix("["))[1:-1] in json.dumps(form)
    nodes = [part for part in _nodes(form) if part.get("type") == "json_schema"]
    assert [node["json_schema"] for node in nodes] == [Tool("f", parameters=parameters).schema]


def _nodes(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [node for item in value for node in _nodes(item)]
    if isinstance(value, dict):
        return [value] if value.get("type") == "json_schema" else [n for item in value.values() for n in _nodes(item)]
    return []


def test_thinking_may_come_first_or_not_at_all() -> None:
    form = KNOWN["hermes"]
    call = written(form, CALLS[:1])
    held = with_thinking(form.grammar(TOOLS, REQUIRED) or {}, MARKERS["think"])
    assert accepts(held, call)
    assert accepts(held, f"<think>\nwhat <tool_call> is\n</think>\n\n{call}")
    assert not accepts(held, "<think>\na\n</think>\n\nno call")
    assert not accepts(held, "<think>\na")
    assert not accepts(held, "no call")


@pytest.mark.parametrize("form", NAMED)
def test_schemas_that_one_engine_alone_enforces(form: Format) -> None:
    """One such tool sends the whole format to another engine; the manner of calling is the same."""
    half = Tool("half", parameters={
        "type": "object", "properties": {"x": {"type": "number", "multipleOf": 0.5}, "y": {"type": "string"}},
        "required": ["x"], "additionalProperties": False})  # fmt: skip
    tools = [*TOOLS, half]
    auto, required = compiled(form.grammar(tools, AUTO)), compiled(form.grammar(tools, REQUIRED))
    for call, right in (
        (Made("half", {"x": 1.5, "y": "a"}), True),
        (Made("half", {"x": 1.25}), False),
        (CALLS[0], True),
        (CALLS[3], True),
        (Made("get_weather", {"city": "a", "days": 99}), False),
    ):
        text = written(form, [call], tools)
        assert fits(auto.matcher(), text) == right, text
        assert fits(required.matcher(), text) == right, text
    assert fits(auto.matcher(), final(form, "words <tool [ {"))
    assert not fits(required.matcher(), final(form, "words"))
    assert not fits(auto.matcher(), OPENED[form.name] + "x")
    one = compiled(form.grammar(tools, AUTO, parallel=False))
    two = written(form, [CALLS[4], CALLS[4]], tools)
    assert fits(auto.matcher(), two) == (not form.channels)
    assert not fits(one.matcher(), two)
    both = compiled(form.grammar(tools, AUTO, True, ANSWER))
    assert fits(both.matcher(), final(form, '{"name": "half", "parameters": {}}'))
    assert not fits(both.matcher(), final(form, "words"))


def test_many_tools_are_small() -> None:
    """The schema of a tool is in the format once, except where thinking may come first."""
    tools = [Tool(f"tool_{at}", parameters=WEATHER.parameters) for at in range(128)]
    for form in FORMS:
        for choice in (AUTO, REQUIRED):
            assert json.dumps(form.grammar(tools, choice)).count('"maximum": 14') == 128


def _walk(matcher: Matcher, rng: random.Random, *, steps: int) -> str | None:
    """A random sentence from here on; None if it has not come to an end in time."""
    text = b""
    for step in range(steps):
        if rng.random() < 0.3:  # nobody finds these by chance
            for end in ("<escape>", "<|end|>"):
                taken = matcher.try_accept(spell(end))
                if taken == len(end):
                    text += end.encode()
                    break
                matcher.rollback(taken)
        allowed = tokens_in(mask_of(matcher))
        ends = [token for token in allowed if token in (IM_END, END_OF_TEXT)]
        if ends and (step > 5 or len(ends) == len(allowed)):
            return text.decode()
        closing = [token for token in allowed if token in CLOSERS]
        token = rng.choice(closing if closing and rng.random() < 0.5 else [t for t in allowed if t not in ends])
        assert matcher.try_accept([token]) == 1
        text += TOKENS[token]
    return None


BEFORE = {
    "llama3": "\n{",
    "pythonic": " [",
    "harmony": "<|channel|>analysis<|message|>A {b}<|end|><|start|>assistant<|channel|>commentary to=functions.",
}


@pytest.mark.parametrize("form", NAMED)
def test_random_walks_parse_into_calls_that_validate(form: Format) -> None:
    rng = random.Random(form.name)
    schemas = {tool.name: tool.schema for tool in TOOLS}
    choices = [
        (REQUIRED, ""),
        (ToolChoice.named("get_weather"), ""),
        (ToolChoice.allowed(["search", "now"], "required"), ""),
        (AUTO, BEFORE.get(form.name, f"I see. {OPENED[form.name]}")),
    ]
    for choice, before in choices:
        matcher = compiled(form.grammar(TOOLS, choice)).matcher()
        assert matcher.try_accept(spell(before.lstrip())) == len(spell(before.lstrip()))
        found = (_walk(matcher.fork(), rng, steps=400) for _ in range(60))
        ended = list(islice((before + text for text in found if text is not None), 8))
        assert len(ended) == 8, "the walks are too short to show anything"
        for text in ended:
            message = Parsed().add(parse(form, text))
            assert message.calls, text
            for call in message.calls:
                assert call.complete, text
                assert not choice.names or call.name in choice.names
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
            if choice.mode != "auto":
                assert form.channels or message.content == ""
            if choice.mode == "named":
                assert len(message.calls) == 1


def test_the_sample_tools_say_what_they_should() -> None:
    for call in CALLS:
        tool = next(tool for tool in (WEATHER, SEARCH, NOW, MOVE) if tool.name == call.name)
        jsonschema.validate(call.arguments, tool.schema)
