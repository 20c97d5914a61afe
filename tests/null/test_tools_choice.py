"""Tools and choices as a caller gives them, and which format a model speaks."""

from __future__ import annotations

import json

import jsonschema
import pytest
from template_samples import TEMPLATES
from tool_samples import CALLS, TOOLS, compact, whole, written

from bosquet.errors import ConfigError, InvalidParameter
from bosquet.grammar.tools import (
    KNOWN,
    Tool,
    ToolChoice,
    by_name,
    call_text,
    check_tools,
    detect,
    result_text,
    tools_prompt,
)


def test_a_tool_without_parameters_takes_none() -> None:
    assert jsonschema.Draft202012Validator(Tool("f").schema).is_valid({})
    assert not jsonschema.Draft202012Validator(Tool("f").schema).is_valid({"a": 1})
    assert not jsonschema.Draft202012Validator(Tool("f", parameters={}).schema).is_valid([])
    given = {"properties": {"b": {}, "a": {}}, "type": ["object", "null"], "required": ["a"]}
    assert json.dumps(Tool("f", parameters=given).schema) == json.dumps({**given, "type": "object"})
    assert list(Tool("f", parameters={"$ref": "#/$defs/A", "$defs": {}}).schema) == ["type", "$ref", "$defs"]


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([Tool("a"), Tool("b c")], "tools[1].function.name"),
        ([Tool("")], "tools[0].function.name"),
        ([Tool("a" * 65)], "tools[0].function.name"),
        ([Tool("a"), Tool("b"), Tool("a")], "tools[2].function.name"),
        ([Tool("a", parameters={"type": "string"})], "tools[0].function.parameters.type"),
        ([Tool("a", parameters={"type": ["string", "null"]})], "tools[0].function.parameters.type"),
    ],
)
def test_wrong_tools_are_refused_with_their_place(tools: list[Tool], field: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        check_tools(tools)
    assert refused.value.field == field
    assert field in str(refused.value)


def test_right_tools_pass() -> None:
    check_tools([*TOOLS, Tool("a" * 64), Tool("A-b_c.9", parameters={})])


def test_a_choice_selects() -> None:
    names = [tool.name for tool in TOOLS]
    assert [tool.name for tool in ToolChoice().select(TOOLS)] == names
    assert ToolChoice("none").select(TOOLS) == []
    assert [tool.name for tool in ToolChoice.named("now").select(TOOLS)] == ["now"]
    assert [tool.name for tool in ToolChoice.allowed(["now", "search"], "auto").select(TOOLS)] == ["search", "now"]
    assert ToolChoice().select([]) == []
    for choice in (ToolChoice.named("nowhere"), ToolChoice.allowed(["now", "nowhere"], "auto")):
        with pytest.raises(InvalidParameter, match="nowhere"):
            choice.select(TOOLS)
    with pytest.raises(InvalidParameter, match="no tools"):
        ToolChoice("required").select([])


@pytest.mark.parametrize(
    ("template", "specials", "name"),
    [
        (None, (), "default"),
        ("{{ messages }}", ("<tool_call>", "[TOOL_CALLS]"), "default"),
        (TEMPLATES["qwen3"], (), "hermes"),
        (TEMPLATES["llama3"], (), "llama3"),
        (TEMPLATES["mistral"], ("[TOOL_CALLS]",), "default"),
        (TEMPLATES["gemma"], (), "default"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS][", (), "mistral"),
        ("{% if tools %}{% endif %}[TOOL_CALLS]{{ name }}[ARGS]", (), "mistral_args"),
        ("{% if tools %}{% endif %}", ("[TOOL_CALLS]",), "mistral"),
        ("{{ tools }}<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json", (), "deepseek_v3"),
        ("{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", (), "deepseek_v31"),
        ("{{ tools }}<start_function_declaration> <start_function_call>call:", (), "functiongemma"),
        ("{{ tools }}```tool_code", (), "gemma"),
        ("{{ tools }}[func_name1(params_name1=params_value1)]", (), "pythonic"),
        ("<|start|>{{ role }}<|channel|>analysis<|message|>", (), "harmony"),
        ("{{ tools }}<tool_call>\n<function=f>\n<parameter=a>", (), "default"),
        ("{{ tools }}<tool_call>{{ name }}<arg_key>", (), "default"),
        ("{{ tools }}<tool_call>\n<invoke name=", (), "default"),
        ("{{ tools }}<tool_call></tool_call>\n<tool_calls>[{", (), "default"),
        ("{{ tools }}", (), "default"),
    ],
)
def test_the_template_tells_the_format(template: str | None, specials: tuple[str, ...], name: str) -> None:
    assert detect(template, specials).name == name
    assert detect(template, specials, "pythonic").name == "pythonic"


def test_a_name_that_is_not_known_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'xml'.*hermes"):
        by_name("xml")
    with pytest.raises(ConfigError):
        detect(None, (), "xml")
    assert all(by_name(name) is form and form.name == name for name, form in KNOWN.items())


def test_only_the_default_states_tools_itself_and_only_harmony_has_channels() -> None:
    assert [form.name for form in KNOWN.values() if not form.in_template] == ["default"]
    assert [form.name for form in KNOWN.values() if form.channels] == ["harmony"]
    for form in KNOWN.values():
        assert set(form.declared(True)) <= set(form.specials)
        assert not set(form.stops) & set(form.specials), "an end marker is no text"


def test_the_prompt_states_every_tool_that_may_be_called() -> None:
    text = tools_prompt(TOOLS, ToolChoice())
    for tool in TOOLS:
        assert f"\n{tool.name}" in text
        assert tool.description in text
    assert compact(TOOLS[0].schema["properties"]) in text
    only = tools_prompt(TOOLS, ToolChoice.named("search"))
    assert "search" in only
    assert "get_weather" not in only
    assert tools_prompt(TOOLS, ToolChoice("none")) == tools_prompt([], ToolChoice()) == ""
    assert len({tools_prompt(TOOLS, ToolChoice(mode)) for mode in ("auto", "required")}) == 2


def test_what_the_prompt_shows_of_a_call_is_how_calls_are_written_and_read() -> None:
    form = KNOWN["default"]
    pairs = [(call.name, compact(call.arguments)) for call in CALLS]
    assert call_text(pairs) == written(form, CALLS)
    assert [(name, arguments) for name, arguments, _ in whole(form, call_text(pairs))[2]] == pairs
    assert call_text([("NAME", "{...}")]) in tools_prompt(TOOLS, ToolChoice())


def test_a_result_is_shown_with_its_name() -> None:
    text = result_text("now", "12:00")
    assert text.startswith("<tool_response>\n")
    assert text.endswith("\n</tool_response>")
    assert "now" in text
    assert "12:00" in text
