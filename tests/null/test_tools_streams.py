"""However a text is cut, the events fold to the same message; nothing is lost, taken back or held without need."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_samples import CALLS, TOOLS, Made, compact, folded, parse, texts_of, two_way_splits, whole, written

from bosquet.grammar.tools import KNOWN, CallEnd, CallStart, Event, Format, TextDelta, Tool

FORMS = list(KNOWN.values())
NAMED = [pytest.param(form, id=form.name) for form in FORMS]

MARKERS = [
    *("<tool_call>", "</tool_call>", '{"name": "get_weather", "arguments": ', '{"name": "now", "parameters": {}}'),
    *('{"city": "a"}', "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "get_weather", "now", '{"name": "', "<tool_", "tool"),
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ", ",
        "; ",
        ":",
        ",",
        "=",
        "[[",
        "{{",
        "**",
        "\n",
        " ",
        '"',
        "\\",
        "<",
        "<|",
        "`",
        "a",
    ),
    *("city=", '"x"', "'y\\''", "True", "None", "12", "-1.5e3", "\\x4", "\\u12", "é😀", "<|python_tag|>"),
    *("<|python_start|>", "```tool_code", "```", "<start_function_call>", "call:", "city:", "<escape>"),
    *(
        "<end_function_call>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function",
        "<｜tool▁sep｜>",
        "```json",
    ),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|channel|>", "analysis", "final", "<|message|>"),
    *("commentary to=functions.now ", "<|constrain|>json", "<|end|>", "<|start|>assistant", "<|call|>"),
]

_PIECES = st.lists(st.sampled_from(MARKERS) | st.text("ab<[{\"'\\ \n", max_size=3), max_size=14)


def _messages(form: Format) -> list[str]:
    """Whole answers, and answers that break off or are none."""
    calls = written(form, CALLS[:1] if form.channels else CALLS[:2] + CALLS[3:5])
    said = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant" if form.channels else "I look.\n"
    strange = "<|channel|>final<|message|>a <|en d" if form.channels else "a <tool_cal [TOOL_CAL <|pyth ``` <st"
    cut = calls[: len(calls) * 2 // 3]
    return [calls, said + calls, f"{said}{calls}\n", strange, cut, "", " \n", "\n{", f"{calls}{calls}"]


@pytest.mark.parametrize("form", NAMED)
def test_every_split_in_two_gives_the_whole(form: Format) -> None:
    for text in _messages(form):
        expected = whole(form, text)
        for pieces in two_way_splits(text):
            assert folded(parse(form, pieces)) == expected, pieces
        assert folded(parse(form, text)) == expected, "one character at a time"


@pytest.mark.parametrize("form", NAMED)
def test_every_split_of_a_call_in_three(form: Format) -> None:
    text = written(form, [Made("get_weather", {"city": 'é"\\\n', "metric": True})])
    expected = whole(form, text)
    assert expected[2][0][2]
    for second in range(0, len(text) + 1, 3):
        for first in range(second + 1):
            assert folded(parse(form, [text[:first], text[first:second], text[second:]])) == expected


@settings(deadline=None, max_examples=300)
@given(form=st.sampled_from(FORMS), pieces=_PIECES, answer=st.booleans(), cut=st.booleans(), data=st.data())
def test_any_text_in_any_pieces(
    form: Format, pieces: list[str], answer: bool, cut: bool, data: st.DataObject
) -> None:  # fmt: skip
    """Nothing raises, and the splits do not matter. A text that is broken off has the same calls as one that is over,
    and of its content at most the end is missing."""
    text = "".join(pieces)
    expected = whole(form, text, answer=answer, cut=cut)
    assert folded(parse(form, pieces, answer=answer, cut=cut)) == expected
    assert folded(parse(form, text, answer=answer, cut=cut)) == expected
    edges = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    split = [text[a:b] for a, b in zip([0, *edges], [*edges, len(text)], strict=True)]
    assert folded(parse(form, split, answer=answer, cut=cut)) == expected
    content, _, calls = whole(form, text, answer=answer)
    assert [call[0] for call in expected[2]] == [call[0] for call in calls]
    assert content.startswith(expected[0].rstrip())


@settings(deadline=None, max_examples=200)
@given(form=st.sampled_from([form for form in FORMS if not form.channels]), pieces=_PIECES)
def test_text_without_calls_is_given_back_whole(form: Format, pieces: list[str]) -> None:
    text = "".join(pieces)
    content, _, calls = whole(form, text)
    if not calls:
        assert content == text
    assert whole(form, text, tools=[]) == (text, "", []), "where no tool may be called nothing is a call"


@pytest.mark.parametrize("form", NAMED)
def test_a_call_that_breaks_off_yields_what_was_there(form: Format) -> None:
    texts = [written(form, [call]) for call in CALLS]
    if form.name in ("pythonic", "gemma"):
        texts += [texts[0].replace("days=3", r"days='\u00e9\x41\'\q'")]  # Python's own escapes
    for text in texts:
        name, arguments, _ = whole(form, text)[2][0]
        for size in range(len(text)):
            content, _, calls = whole(form, text[:size])
            if calls:
                assert content == ""
                assert calls[0][0] == name
                assert arguments.startswith(calls[0][1]), text[:size]
                assert not calls[0][2] or calls[0][1] == arguments, "complete, and not the whole"
            elif not form.channels:
                assert content == text[:size], "no call yet: then it is all text"


@pytest.mark.parametrize("form", NAMED)
def test_what_has_begun_of_a_call_is_no_text_of_an_answer_that_is_cut(form: Format) -> None:
    """Wherever it is cut: the content is what was said before the calls, and a call is there once its name is."""
    anywhere = form.name not in ("llama3", "pythonic", "harmony")  # in the others a call begins the answer
    said = "I look.\n" if anywhere else ""
    made = CALLS[:1] if form.channels else [CALLS[0], CALLS[5]]
    text = said + written(form, made)
    known = [text.index(call.name, len(said)) + len(call.name) for call in made]
    for size in range(len(text) + 1):
        content, _, calls = whole(form, text[:size], cut=True)
        assert content.rstrip() == text[: min(size, len(said))].rstrip(), text[:size]
        assert len(calls) <= sum(size > end for end in known)
        assert len(calls) >= sum(size > end + 40 for end in known), "a name that has long been complete"
        assert calls == whole(form, text[:size])[2]


@pytest.mark.parametrize("form", NAMED)
@pytest.mark.parametrize("cut", [False, True])
def test_half_a_name_is_not_another_tools_name(form: Format, cut: bool) -> None:
    tools = [Tool("now"), Tool("now_utc"), Tool("function"), Tool("functional")]
    for long in ("now_utc", "functional"):
        text = written(form, [Made(long, {})], tools)
        for size in range(len(text) + 1):
            found = whole(form, text[:size], tools=tools, cut=cut)[2]
            assert {name for name, _, _ in found} <= {long}, text[:size]


def test_half_a_marker_is_text_if_the_answer_is_over_and_nothing_if_it_is_cut() -> None:
    hermes = KNOWN["hermes"]
    for half in ("<", "<tool_call", "<tool_call>", '<tool_call>\n{"name": "no'):
        assert whole(hermes, f"a {half}") == (f"a {half}", "", [])
        assert whole(hermes, f"a {half}", cut=True)[0] == "a ", half
    assert whole(hermes, "a < b <toil", cut=True)[0] == "a < b <toil", "text that can be no marker stays"
    thought = "<|channel|>final<|message|>done<|en"
    assert whole(KNOWN["harmony"], thought)[0] == "done<|en"
    assert whole(KNOWN["harmony"], thought, cut=True)[0] == "done"


@pytest.mark.parametrize("form", NAMED)
def test_arguments_are_streamed_as_they_come(form: Format) -> None:
    """A long string is not held back: after each character at most a few characters are outstanding."""
    tail = "x" * 200
    text = written(form, [Made("get_weather", {"city": tail})])
    parser = form.parser(TOOLS)
    begin = text.index(tail)
    seen = "".join(getattr(event, "text", "") for event in parser.push(text[:begin]))
    assert seen.endswith('"')
    for _ in range(len(tail) - 1):
        assert [getattr(event, "text", "") for event in parser.push("x")] == ["x"]


@pytest.mark.parametrize("form", NAMED)
def test_ids_and_names_come_once_and_calls_are_counted_from_zero(form: Format) -> None:
    text = written(form, CALLS[:1] if form.channels else CALLS)
    events = parse(form, text)
    starts = [event for event in events if isinstance(event, CallStart)]
    assert [start.call for start in starts] == list(range(len(starts)))
    assert len({start.id for start in starts}) == len(starts)
    for start in starts:
        body = start.id.removeprefix("call_")
        assert len(body) == (9 if form.name.startswith("mistral") else 24)
        assert body.isalnum()
        assert start.id.startswith("call_") or form.name.startswith("mistral")
    ends = [event for event in events if isinstance(event, CallEnd)]
    assert len(ends) == len(starts) == len(CALLS[:1] if form.channels else CALLS)
    folded(events)


@pytest.mark.parametrize("form", NAMED)
def test_one_push_may_hold_two_calls(form: Format) -> None:
    """What speculation brings: name, arguments and the next call in one piece."""
    if form.channels:
        return
    text = written(form, [CALLS[0], CALLS[4]])
    parser = form.parser(TOOLS)
    events = parser.push(text) + parser.finish()
    assert [event.name for event in events if isinstance(event, CallStart)] == ["get_weather", "now"]


MARKER = {
    "hermes": "<tool_call>",
    "default": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "mistral_args": "[TOOL_CALLS]",
    "deepseek_v3": "<｜tool▁calls▁begin｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜>",
    "gemma": "```tool_code",
    "functiongemma": "<start_function_call>",
    "harmony": "<|end|>",
}


@pytest.mark.parametrize("form", NAMED)
def test_what_may_begin_a_marker_is_held_and_released_as_soon_as_it_does_not(form: Format) -> None:
    parser = form.parser(TOOLS)
    begin = "<|channel|>final<|message|>a" if form.channels else "a"
    assert texts_of(parser.push(begin)) == "a"
    marker = MARKER.get(form.name)
    if marker is None:  # nothing opens a call later in the text
        assert texts_of(parser.push("[{<|python_tag|>")) == "[{<|python_tag|>"
        return
    for size in range(1, len(marker)):
        assert parser.push(marker[:size]) == []
        assert texts_of(parser.push("x")) == f"{marker[:size]}x"
    assert parser.push(marker[:-1]) == []
    assert texts_of(parser.finish()) == marker[:-1]


def test_markers_that_lead_nowhere_are_text() -> None:
    hermes = KNOWN["hermes"]
    for text in (
        "<tool_call>no",
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": "text"}\n</tool_call>',
        "Use <tool_call> and </tool_call>.",
        '<tool_call>\n{"arguments": {}}',
        '<tool_call>\n{"name": 5}',
        '<tool_call>\n{"name": "\\q", "arguments": {}}',
    ):
        assert whole(hermes, text) == (text, "", []), text
    nested = '<tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert whole(hermes, nested) == ("<tool_call>", "", [("now", "{}", True)])


def test_what_models_write_besides_the_canonical_form() -> None:
    """Read, though no grammar here lets it through."""
    now = [("now", "{}", True)]
    for form, text in [
        ("hermes", '<tool_call>{"name":"now"}</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "now", "arguments": {}, "id": "}"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "now", "parameters": {}}'),
        ("llama3", ' <|python_tag|>{"name": "now", "arguments": {}}'),
        ("mistral", "[TOOL_CALLS]now[CALL_ID]abc123DEF[ARGS]{}"),
        ("mistral_args", '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "123456789"}]'),
        (
            "deepseek_v31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>",
        ),
        ("pythonic", "<|python_start|>[ now() ]<|python_end|>"),
        ("harmony", " to=functions.now<|channel|>commentary json<|message|>{}<|call|>"),
    ]:
        assert whole(KNOWN[form], text) == ("", "", now), text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2.5e3", -2500.0),
        ("True", True),
        ("None", None),
        ("false", False),
        ('"a\\"b\\n\\u00e9\\/"', 'a"b\né/'),
        ("'a\"b\\'c'", "a\"b'c"),
        ("'\\x41\\q'", "A\\q"),
        ("[1, [True, None], {'a': (1, 2), \"b\": []}]", [1, [True, None], {"a": [1, 2], "b": []}]),
        ("[1, 2, ]", [1, 2]),
        ("'a\nb'", "a\nb"),
        ("Berlin", "Berlin"),
    ],
)
def test_python_values_become_json(text: str, value: object) -> None:
    calls = whole(KNOWN["pythonic"], f"[get_weather(city={text}, days=1)]")[2]
    assert len(calls) == 1
    assert calls[0][2]
    assert json.loads(calls[0][1]) == {"city": value, "days": 1}


def test_gemma_values_become_json() -> None:
    text = '<start_function_call>call:search{a:<escape>x "{<\n<escape>,b:{c:[1,<escape><escape>],d:true},"e f":null}'
    calls = whole(KNOWN["functiongemma"], text)[2]
    assert json.loads(calls[0][1]) == {"a": 'x "{<\n', "b": {"c": [1, ""], "d": True}, "e f": None}


def test_deep_nesting_is_no_stack_overflow() -> None:
    for name, begin, end in (
        ("pythonic", "[now(a=", ")]"),
        ("functiongemma", "<start_function_call>call:now{a:", "}<end_function_call>"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": ', "}}</tool_call>"),
    ):
        text = begin + "[" * 20_000 + "]" * 20_000 + end
        (call,) = whole(KNOWN[name], text)[2]
        assert call[2]
        assert call[1] == '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"


def _seconds(form: Format, pieces: Sequence[str]) -> float:
    start = time.thread_time()
    parse(form, pieces)
    return time.thread_time() - start


@pytest.mark.parametrize("form", NAMED)
def test_the_time_is_linear(form: Format) -> None:
    long = written(form, [Made("get_weather", {"city": 'ab"c ' * 8_000})])
    text = ("<|channel|>final<|message|>" if form.channels else "") + "some text < [ { ` " * 2_000
    for message in (long, text):
        pieces = [message[at : at + 4] for at in range(0, len(message), 4)]
        assert _seconds(form, pieces) < 3.0


def test_text_after_the_end_is_a_bug() -> None:
    parser = KNOWN["hermes"].parser(TOOLS)
    assert parser.push("a") == [TextDelta("a")]
    assert parser.finish() == []
    with pytest.raises(AssertionError):
        parser.push("b")
    with pytest.raises(AssertionError):
        parser.finish()


def test_blanks_beside_calls_are_no_text() -> None:
    form = KNOWN["hermes"]
    call = written(form, [CALLS[4]])
    for text, expected in [
        (f"\n{call}\n", ""),
        (f"a \n\n{call}\n\n{call}\n", "a"),
        (f"a\n{call}\n b", "a\n b"),
        ("a \n", "a \n"),
        (" \n", " \n"),
    ]:
        assert whole(form, text)[0] == expected


def test_delta_order_for_a_stream_of_tokens() -> None:
    form = KNOWN["default"]
    parser = form.parser(TOOLS)
    arguments = compact({"city": "Oslo"})
    rows: list[list[Event]] = [
        parser.push(piece)
        for piece in (
            *("Sure", ".\n", "<tool", "_call>\n", '{"name": "get', '_weather", "arguments', '": '),
            *('{"city', '": "Os', 'lo"', "}", "}\n</tool", "_call>"),
        )
    ]
    kinds = ["".join(type(event).__name__[0] + type(event).__name__[-1] for event in row) for row in rows]
    assert kinds == ["Ta", "Ta", "", "", "", "", "", "CtAa", "Aa", "Aa", "AaCd", "", ""]
    assert "".join(getattr(event, "text", "") for row in rows[7:] for event in row) == arguments
    assert parser.finish() == []
