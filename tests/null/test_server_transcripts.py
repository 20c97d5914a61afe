"""Echoed turns: what was generated is in the next prompt, token for token, and nothing else ever is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from live_server import events
from tokenizer_samples import CHATML
from transcripts_bed import (
    ANSWER,
    CALL,
    END,
    HI,
    MORE,
    THINKING,
    TOOLS,
    Bed,
    assistant,
    calling,
    carried,
    live,
    text_of,
    user,
)

from bosquet.runtime.server.flat_text import control, flat_ids

# ---- the same turn ---------------------------------------------------------------------------------------------------


def test_a_turn_that_comes_back_has_the_tokens_that_were_generated():
    with Bed() as bed:
        bed.turn(HI, ANSWER)
        before = live(bed, ANSWER)
        messages = [*HI, assistant(ANSWER), MORE]
        response = bed.ask(messages)
        assert bed.prompt[: len(before)] == before
        assert bed.prompt != bed.plain(messages)  # or this test would see nothing
        assert bed.shown == bed.rendered(messages)
        assert carried(response) == len(before)
        assert response.json()["usage"]["prompt_tokens"] == len(bed.prompt)


def test_a_first_turn_is_encoded_and_nothing_is_said_of_transcripts():
    with Bed() as bed:
        response = bed.ask(HI)
        assert bed.prompt == bed.plain(HI)
        assert response.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert "x_bosquet" not in response.json()


def test_a_long_conversation_only_grows():
    with Bed() as bed:
        messages = list(HI)
        before: list[int] = []
        for turn in range(12):
            answer = f"{ANSWER} {turn}"
            messages.append(bed.turn(messages, answer))
            assert bed.prompt[: len(before)] == before
            before = live(bed, answer)
            messages.append(user(f"and {turn}?"))
        bed.ask(messages)
        assert bed.prompt[: len(before)] == before
        assert bed.shown == bed.rendered(messages)


@pytest.mark.parametrize("history", [None, "template", "append_only"])
def test_the_store_can_be_off(history: str | None):
    with Bed(transcripts_mb=0) as bed:
        bed.turn(HI, ANSWER)
        messages = [*HI, assistant(ANSWER), MORE]
        response = bed.ask(messages, history=history)
        assert bed.prompt == bed.plain(messages)
        assert carried(response) == 0
        said = response.json().get("x_bosquet", {}).get("history")
        assert said == ("template" if history == "append_only" else None)
        assert len(bed.store) == 0


def test_the_turn_may_come_from_a_stream():
    with Bed() as bed:
        bed.say(ANSWER)
        said = events(bed.ask(HI, stream=True))
        assert "".join(e["choices"][0]["delta"].get("content", "") for e in said if e != "[DONE]") == ANSWER
        before = live(bed, ANSWER)
        stream = events(bed.ask([*HI, assistant(ANSWER), MORE], stream=True, stream_options={"include_usage": True}))
        assert bed.prompt[: len(before)] == before
        assert stream[-2]["usage"]["prompt_tokens_details"]["transcript_tokens"] == len(before)


def test_every_choice_is_a_turn_of_its_own():
    with Bed() as bed:
        answers = ["one fox", "two foxes", "three foxes"]
        bed.say(*answers)
        bed.ask(HI, n=3)
        first = bed.prompt
        for answer in answers:
            bed.ask([*HI, assistant(answer), MORE])
            assert bed.prompt[: len(first) + len(bed.letters(answer))] == first + bed.letters(answer)


def test_branches_that_say_the_same_go_on_each_for_itself():
    with Bed() as bed:
        for _ in range(3):
            bed.turn(HI, ANSWER)
        held = len(bed.store)
        messages = [*HI, assistant(ANSWER), MORE]
        for branch in ("left", "right"):
            bed.turn(messages, branch)
            before = live(bed, branch)
            bed.ask([*messages, assistant(branch), MORE])
            assert bed.prompt[: len(before)] == before
        assert held == 1


# ---- what says the same ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generated", [ANSWER, f"\n\n{ANSWER}", f"{ANSWER}\n", f"  {ANSWER} \n\n"])
@pytest.mark.parametrize("echoed", [ANSWER, f"{ANSWER}\n", f"\n{ANSWER}", f"\t{ANSWER}  "])
def test_white_space_at_the_ends_does_not_count(generated: str, echoed: str):
    with Bed() as bed:
        bed.turn(HI, generated)
        before = live(bed, generated)
        messages = [*HI, assistant(echoed), MORE]
        bed.ask(messages)
        assert bed.prompt[: len(before)] == before
        assert bed.shown == bed.rendered([*HI, assistant(generated), MORE])  # what it wrote, not the edit


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "Paris", "days": 2}',
        '{"days":2,"city":"Paris"}',
        '{\n  "city": "\\u0050aris",\n  "days": 2\n}',
    ],
)
@pytest.mark.parametrize("text", ["", "Let me see.\n"])
def test_arguments_may_be_written_anew(arguments: str, text: str):
    with Bed(THINKING) as bed:
        message = bed.turn(HI, text + CALL, tools=TOOLS)
        before = live(bed, text + CALL)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
        messages = [*HI, calling(message, arguments), result]
        bed.ask(messages, tools=TOOLS)
        assert bed.prompt[: len(before)] == before
        said = flat_ids(before, bed.tokenizer) or ""
        after = bed.rendered(messages).partition(control("</tool_call>"))[2]
        assert bed.shown == said + after.removeprefix(control("</tool_call>"))


@pytest.mark.parametrize("stream", [False, True])
def test_several_calls_of_one_turn(stream: bool):
    with Bed(THINKING) as bed:
        answer = f"{CALL}\n{CALL.replace('Paris', 'Rome')}"
        bed.say(answer)
        response = bed.ask(HI, tools=TOOLS, stream=stream)
        if stream:
            deltas = [event["choices"][0]["delta"].get("tool_calls", []) for event in events(response)[:-1]]
            ids = [call["id"] for calls in deltas for call in calls if "id" in call]
        else:
            ids = [call["id"] for call in response.json()["choices"][0]["message"]["tool_calls"]]
        before = live(bed, answer)
        calls = [
            {
                "id": one,
                "type": "function",
                "function": {"name": "lookup", "arguments": f'{{"days":2,"city":"{city}"}}'},
            }
            for one, city in zip(ids, ("Paris", "Rome"), strict=True)
        ]
        results = [{"role": "tool", "tool_call_id": one, "content": "sunny"} for one in ids]
        bed.ask([*HI, {"role": "assistant", "tool_calls": calls}, *results], tools=TOOLS)
        assert bed.prompt[: len(before)] == before


# ---- what does not ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "echoed", [f"{ANSWER} again", ANSWER[:-1], ANSWER.upper(), "jumps  over the lazy dog", "", f"{ANSWER}{END}"]
)
def test_another_text_is_encoded_as_ever(echoed: str):
    with Bed() as bed:
        bed.turn(HI, ANSWER)
        messages = [*HI, assistant(echoed), MORE]
        assert carried(bed.ask(messages)) == 0
        assert bed.prompt == bed.plain(messages)


@pytest.mark.parametrize(
    "arguments", ['{"city": "Paris", "days": 3}', '{"city": "Paris"}', '{"city": "Paris", "days": 2.0}', "{", "[]"]
)
def test_other_arguments_are_encoded_as_ever(arguments: str):
    with Bed(THINKING) as bed:
        message = bed.turn(HI, CALL, tools=TOOLS)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
        assert carried(bed.ask([*HI, calling(message, arguments), result], tools=TOOLS)) == 0


@pytest.mark.parametrize("history", ["template", "append_only"])
def test_a_call_with_another_id_is_another_call(history: str):
    with Bed(THINKING) as bed:
        message = bed.turn(HI, CALL, tools=TOOLS)
        call = {**message["tool_calls"][0], "id": "call_1"}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
        messages = [*HI, {**message, "tool_calls": [call]}, result]
        assert carried(bed.ask(messages, tools=TOOLS, history=history)) == 0


@pytest.mark.parametrize(
    "earlier",
    [
        [user("The quick brown fox!")],
        [user(" The quick brown fox?")],
        [{"role": "system", "content": ""}, *HI],
        [*HI, assistant("x"), *HI],
        [{"role": "system", "content": HI[0]["content"]}],
    ],
)
@pytest.mark.parametrize("history", ["template", "append_only"])
def test_a_turn_belongs_to_what_came_before_it(earlier: list[Any], history: str):
    with Bed() as bed:
        bed.turn(HI, ANSWER)
        messages = [*earlier, assistant(ANSWER), MORE]
        assert carried(bed.ask(messages, history=history)) == 0
        assert bed.prompt == bed.plain(messages)


def test_what_the_template_writes_before_a_turn_has_to_be_the_same():
    with Bed(text_of("{{ messages | length }} messages" + CHATML)) as bed:
        bed.turn(HI, ANSWER)
        messages = [*HI, assistant(ANSWER), MORE]
        assert carried(bed.ask(messages)) == 0
        assert bed.prompt == bed.plain(messages)


def test_an_edit_leaves_the_turns_before_it():
    with Bed() as bed:
        bed.turn(HI, ANSWER)
        first = live(bed, ANSWER)
        bed.turn([*HI, assistant(ANSWER), MORE], "runs")
        messages = [*HI, assistant(ANSWER), MORE, assistant("runs away"), MORE]
        assert carried(bed.ask(messages)) == len(first)
        assert bed.prompt[: len(first)] == first
        assert bed.shown == bed.rendered(messages)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"tools": TOOLS}),
        ({"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}),
        ({"tools": TOOLS}, {"tools": [*TOOLS, {"type": "function", "function": {"name": "other"}}]}),
        ({}, {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
@pytest.mark.parametrize("history", ["template", "append_only"])
def test_tools_and_variables_of_the_template_have_to_be_the_same(before: Any, after: Any, history: str):
    with Bed(THINKING) as bed:
        bed.turn(HI, ANSWER, **before)
        messages = [*HI, assistant(ANSWER), MORE]
        assert carried(bed.ask(messages, **before, history=history)) > 0
        assert carried(bed.ask(messages, **after, history=history)) == 0


@pytest.mark.parametrize("history", ["template", "append_only"])
def test_no_tenant_has_the_turns_of_another(tmp_path: Path, history: str):
    (tmp_path / "keys").write_text("alice-key-0001 alice\nbob-key-00002 bob\n")
    with Bed(keys_file=str(tmp_path / "keys")) as bed:
        bed.turn(HI, ANSWER, key="alice-key-0001")
        before = live(bed, ANSWER)
        messages = [*HI, assistant(ANSWER), MORE]
        assert carried(bed.ask(messages, key="bob-key-00002", history=history)) == 0
        assert bed.prompt == bed.plain(messages)
        assert carried(bed.ask(messages, key="alice-key-0001", history=history)) == len(before)
