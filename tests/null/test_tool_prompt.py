"""Conversations with tools: in words where the template knows no tools, and read back however the text is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_samples import ADDED, CONTROLS, TEMPLATES
from tool_manners import CHATML, manner

from bosquet.grammar.formats import check_format
from bosquet.grammar.tools import KNOWN, Tool
from bosquet.runtime.tool_calls import by_token, with_stops
from bosquet.runtime.tool_prompt import with_tools
from bosquet.types import (
    Call,
    Chunk,
    FinishReason,
    Origin,
    Output,
    SamplingParams,
    StopMatch,
    TokenLogprob,
    ToolCall,
    ToolSpec,
    ToolUse,
)

ADD = ToolSpec("add", "Adds.", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}))
TOOL = Tool("add", "Adds.", json.loads(ADD.parameters))
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_a_template_that_knows_tools_is_given_them() -> None:
    messages = [{"role": "user", "content": "Hi."}]
    told, tools = with_tools(KNOWN["hermes"], messages, [TOOL])
    assert told == messages
    assert tools == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": TOOL.schema}}
    ]
    assert with_tools(KNOWN["hermes"], messages, []) == (messages, None)


def test_another_is_told_in_words() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "Hm.", "tool_calls": [CALL]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": "2", "tool_call_id": "other", "name": "sub"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "user", "content": "Bye."},
    ]
    told, tools = with_tools(KNOWN["default"], messages, [TOOL])
    assert tools is None
    assert [message["role"] for message in told] == [
        "system", "user", "assistant", "user", "assistant", "user", "user",
    ]  # fmt: skip
    system, _, first, results, second, result, _ = (message["content"] for message in told)
    assert system.startswith("Be kind.\n\nYou can call these functions:\n\nadd: Adds.\nArguments: {")
    assert first == 'Hm.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert results == "<tool_response>\nadd: 1\n</tool_response>\n<tool_response>\nsub: 2\n</tool_response>"
    assert second == '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert result == "<tool_response>\nadd: 3\n</tool_response>"
    without_system, _ = with_tools(KNOWN["default"], messages[1:], [TOOL])
    assert without_system[0] == {"role": "system", "content": system.removeprefix("Be kind.\n\n")}
    assert with_tools(KNOWN["default"], messages[:2], []) == (messages[:2], None)


def test_contents_stay_where_they_are() -> None:
    """The language asks with markers, and cuts the rendered text at them."""
    messages: Any = [
        {"role": "user", "content": "@0@"},
        {"role": "assistant", "content": "@1@"},
        {"role": "tool", "content": "@2@", "tool_call_id": "call", "name": "add"},
        {"role": "tool", "content": "@3@", "tool_call_id": "call", "name": "add"},
    ]
    for template, specials in ((CHATML, ()), (TEMPLATES["qwen3"], (*CONTROLS["qwen3"], *ADDED["qwen3"]))):
        segments = manner(template, specials).render(messages, [ADD], True)
        text = "".join(segment.text for segment in segments)
        places = [text.index(f"@{i}@") for i in range(4)]
        assert places == sorted(places)
        assert '"add"' in text or "add: Adds." in text
        assert text.count("<tool_response>") == 2


def asked(ids: Sequence[int] = (), sampling: SamplingParams | None = None) -> Call:
    return Call(sampling=sampling or SamplingParams(), origin=Origin(), ids=ids)


USES = [ToolUse((ADD,)), ToolUse((ADD,), "required"), ToolUse((ADD,), "add"), ToolUse((ADD,), "auto", False)]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("template", [CHATML, TEMPLATES["qwen3"], TEMPLATES["llama3"]])
def test_every_use_is_held_to_a_valid_format(use: ToolUse, template: str) -> None:
    spec = manner(template, ("<tool_call>",)).grammar(use, list(b"hi"))
    check_format(spec.value)
    assert (spec.kind, spec.strict, spec.after) == ("structural_tag", False, ())
    strict = ToolUse((ToolSpec("add", "Adds.", ADD.parameters, True),))
    assert manner(template).grammar(strict, []).strict


def test_markers_that_are_special_tokens_are_declared_and_shown() -> None:
    specials = ("<tool_call>", "</tool_call>", "<|im_end|>")
    found = manner(TEMPLATES["qwen3"], specials)
    assert found.shown == {256, 257}
    assert found.grammar(USES[0], []).specials == (256, 257)
    assert manner().grammar(USES[0], []).specials == ()


def test_a_reasoning_part_comes_first_and_is_not_for_the_reader() -> None:
    thinks = manner(TEMPLATES["qwen3"], ("<think>", "</think>"))
    opened, closed = [*b"assistant\n", 256, *b"\n"], [*b"assistant\n", 256, *b"\n\n", 257, *b"\n\n"]
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert thinks.grammar(USES[0], opened).after == (257,)
    assert thinks.grammar(USES[0], closed).after == ()
    assert json.loads(thinks.grammar(USES[0], closed).value)["type"] == "triggered_tags"
    assert json.loads(thinks.grammar(USES[0], list(b"assistant\n")).value)["type"] == "or"
    for prompt, thought in ((opened, "hm</think>"), (list(b"assistant\n"), "<think>hm</think>"), (closed, "")):
        _, content, (call,), reasoning = thinks.reader(asked(prompt), USES[0]).push(f"{thought}\nSo: {said}", "stop")
        assert reasoning == ("hm" if thought else "")
        assert (content.strip(), call.name, call.arguments) == ("So:", "add", '{"a": 1}')


ARGUMENTS = '{"a": 1}'
SAID = 'A <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><tool_call>\n{"name": "add", "argu'


@settings(deadline=None)
@given(st.lists(st.integers(0, len(SAID)), max_size=8), st.integers(0, len(SAID)), st.sampled_from(["stop", "length"]))
def test_the_cuts_do_not_matter(cuts: list[int], end: int, finish: FinishReason) -> None:
    text = SAID[:end]
    edges = sorted({0, *(min(cut, end) for cut in cuts), end})
    whole = manner().reader(asked(), USES[0]).push(text, finish)
    reader = manner().reader(asked(), USES[0])
    pieces = [reader.push(text[a:b]) for a, b in itertools.pairwise(edges)]
    pieces.append(reader.push("", finish))
    assert "".join(piece.content for piece in pieces) == whole.content

    def told(calls: list[ToolCall]) -> list[tuple[str, str]]:
        return [(call.name, call.arguments) for call in calls]

    assert told([call for piece in pieces for call in piece.calls]) == told(whole.calls)
    assert finish == "stop" or whole.content.rstrip() == SAID[: min(end, 2)].rstrip(), "no half a call"
    assert len(whole.calls) == (end >= SAID.index(ARGUMENTS) + len(ARGUMENTS))  # then nothing of it is missing


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["A", "a", "<", "tool", "{", "}", "\n", " <x", "x</"]), min_size=1, max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_stop_strings_end_the_text_and_never_a_call(stops: list[str], pieces: list[int]) -> None:
    """The text as generated ends where what is said does."""
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    text = f"{said}\nB <x</b> Aa"
    tail = text[len(said) :]
    found = [(tail.index(stop) + len(stop), tail.index(stop), stop) for stop in stops if stop in tail]
    sampling = SamplingParams(stop=tuple(stop.encode() for stop in stops))
    reader = manner().reader(asked(sampling=sampling), USES[0])
    edges = [0]
    while edges[-1] < len(text):
        edges.append(min(edges[-1] + pieces[len(edges) % len(pieces)], len(text)))
    size = len(text)
    outputs = [
        Output("", 0, list(text[a:b].encode()), finish="stop" if b == size else None)
        for a, b in itertools.pairwise(edges)
    ]
    chunks: list[Chunk] = []
    for output in by_token(outputs):
        chunks.append(reader.read(Chunk(bytes(output.tokens).decode(), output.tokens, output.finish)))
        if chunks[-1].finish:
            break
    written, content = ("".join(parts) for parts in zip(*((c.text, c.content or "") for c in chunks), strict=True))
    assert [call.arguments for chunk in chunks for call in chunk.calls] == ['{"a": 1}']
    if not found:
        assert (written, chunks[-1].stop) == (text, None)
        return
    _, start, stop = min(found)
    assert (written, chunks[-1].finish, chunks[-1].stop) == (said + tail[:start], "stop", stop)
    assert content.strip() == tail[:start].strip()


def test_outputs_of_several_tokens_are_taken_apart() -> None:
    scores = [TokenLogprob(1, -1.0), TokenLogprob(2, -2.0)]
    stop = StopMatch(token=2)
    assert list(by_token([Output("r", 0, [1, 2], scores, "stop", stop, 5)])) == [
        Output("r", 0, [1], scores[:1], None, None, 5),
        Output("r", 0, [2], scores[1:], "stop", stop, 5),
    ]
    assert list(by_token([Output("r", 0, [], None, "length")])) == [Output("r", 0, [], None, "length")]


def test_stops_are_added() -> None:
    params = SamplingParams(stop_token_ids=(5,), seed=3)
    assert with_stops(params, (7, 8)) == SamplingParams(stop_token_ids=(5, 7, 8), seed=3)
    assert with_stops(params, ()) is params
