"""`history`: by default past reasoning goes as the template wants it; with `append_only` the prompt only grows."""

from __future__ import annotations

from typing import Any

import pytest
from live_server import events
from tokenizer_samples import CHATML
from transcripts_bed import MORE, THINKING, Bed, Message, assistant, carried, text_of, user

STRIPPING = CHATML.replace("message['content']", "message['content'].split('</think>')[-1].lstrip()")
OPENED = text_of(STRIPPING.replace("assistant\n' }}", "assistant\n<think>\n' }}"), added=("<think>", "</think>"))
HI = [user("The fox?")]
THOUGHT = "the fox jumps\n</think>\n\nOver."
TOOLS = [{"type": "function", "function": {"name": "lookup"}}]
CALL = '<tool_call>\n{"name": "lookup", "arguments": {}}\n</tool_call>'


def history(response: Any) -> Any:
    return response.json().get("x_bosquet", {}).get("history")


def bare(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


@pytest.mark.parametrize("echo", [bare, dict])
def test_the_template_drops_reasoning_unless_the_client_says_otherwise(echo: Any):
    with Bed(OPENED) as bed:
        message = bed.turn(HI, THOUGHT)
        assert message["reasoning_content"] == "the fox jumps"
        before = bed.prompt + bed.letters(THOUGHT)
        messages = [*HI, echo(message), MORE]
        for asked in ({}, {"history": "template"}):
            response = bed.ask(messages, **asked)
            assert bed.prompt == bed.plain(messages)
            assert history(response) is None
        response = bed.ask(messages, history="append_only")
        assert bed.prompt[: len(before)] == before
        assert carried(response) == len(before)
        assert history(response) == "append_only"
        last = bed.rendered(messages).rpartition("Over.")[2]
        assert bed.shown.endswith(f"Over.{last}")


def test_it_goes_on_growing_turn_by_turn():
    with Bed(OPENED) as bed:
        messages = list(HI)
        before: list[int] = []
        for turn in range(8):
            answer = f"{turn} {THOUGHT} {turn}"
            messages.append(bare(bed.turn(messages, answer, history="append_only")))
            assert bed.prompt[: len(before)] == before
            before = bed.prompt + bed.letters(answer)
            messages.append(user(f"and {turn}?"))
        bed.ask(messages, history="append_only")
        assert bed.prompt[: len(before)] == before


def test_one_request_may_ask_for_it_after_others_that_did_not():
    with Bed(OPENED) as bed:
        first = bed.turn(HI, THOUGHT)
        messages = [*HI, bare(first), MORE]
        second = bed.turn(messages, THOUGHT)
        before = bed.prompt + bed.letters(THOUGHT)
        messages += [bare(second), MORE]
        bed.ask(messages, history="append_only")
        assert bed.prompt[: len(before)] == before
        bed.ask(messages)
        assert bed.prompt == bed.plain(messages)


def test_reasoning_that_was_changed_is_another_turn():
    with Bed(OPENED) as bed:
        message = bed.turn(HI, THOUGHT)
        messages = [*HI, {**message, "reasoning_content": "the dog"}, MORE]
        response = bed.ask(messages, history="append_only")
        assert history(response) == "template"
        assert bed.prompt == bed.plain(messages)


def test_thoughts_of_answers_that_read_alike_are_not_mixed_up():
    with Bed(OPENED) as bed:
        first = bed.turn(HI, "one\n</think>\n\nYes.")
        kept = bed.turn([*HI, bare(first), MORE], "and one\n</think>\n\nA.", history="append_only")
        before = bed.prompt + bed.letters("and one\n</think>\n\nA.")
        bed.turn(HI, "two\n</think>\n\nYes.")  # the same answer by another way
        bed.ask([*HI, bare(first), MORE, bare(kept), MORE], history="append_only")
        assert bed.prompt[: len(before)] == before


def test_what_is_not_known_goes_as_the_template_wants_it():
    with Bed(OPENED) as bed:
        for messages in (HI, [*HI, assistant("Over."), MORE]):
            response = bed.ask(messages, history="append_only")
            assert history(response) == "template"
            assert bed.prompt == bed.plain(messages)


def test_turns_that_others_wrote_come_after():
    with Bed(OPENED) as bed:
        message = bed.turn(HI, THOUGHT)
        before = bed.prompt + bed.letters(THOUGHT)
        messages = [*HI, bare(message), MORE, assistant("thought</think>It sleeps."), MORE]
        bed.ask(messages, history="append_only")
        assert bed.prompt[: len(before)] == before
        assert bed.shown.endswith(bed.rendered(messages).partition("Over.")[2])


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_says_so_in_its_first_chunk(stream: bool):
    with Bed(OPENED) as bed:
        message = bed.turn(HI, THOUGHT)
        response = bed.ask([*HI, bare(message), MORE], history="append_only", stream=stream)
        first = events(response)[0] if stream else response.json()
        assert first["x_bosquet"]["history"] == "append_only"


def test_a_template_that_shows_thoughts_of_this_turn_alone():
    """Qwen3 shows what was thought since the last question: in a loop of tools the prompt grows either way."""
    with Bed(THINKING) as bed:
        messages = list(HI)
        before: list[int] = []
        for turn in range(4):
            answer = f"<think>\nthe fox {turn}\n</think>\n\n{CALL}"
            message = bed.turn(messages, answer, tools=TOOLS)
            assert bed.prompt[: len(before)] == before
            before = bed.prompt + bed.letters(answer)
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": f"sun {turn}"}
            messages += [message, result]
        answer = "<think>\nenough\n</think>\n\nOver."
        final = bed.turn(messages, answer, tools=TOOLS)
        before = bed.prompt + bed.letters(answer)
        messages += [final, MORE]
        bed.ask(messages, tools=TOOLS)
        assert "the fox" not in bed.shown
        bed.ask(messages, tools=TOOLS, history="append_only")
        assert bed.prompt[: len(before)] == before


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] ",
        "{% for m in messages %}{{ m.content }}{{ '<|im_end|>' if m.role == 'user' else '' }}\n{% endfor %}",
        CHATML + "{{ messages[1].content | length if messages | length > 1 else 0 }}",
    ],
    ids=["no ends", "none after the assistant", "what is after tells of it"],
)
def test_no_message_is_lost_or_changed_where_a_template_is_odd(template: str):
    with Bed(text_of(template)) as bed:
        message = bed.turn(HI, "Over. ")
        messages = [*HI, message, user("a"), assistant("b"), user("c")]
        response = bed.ask(messages, history="append_only")
        assert history(response) == "template"
        assert bed.shown == bed.rendered(messages)


def test_a_template_that_looks_at_what_the_turns_say_is_left_its_way():
    strict = CHATML.replace(
        "{% for", "{% if '@@' in messages | string %}{{ raise_exception('no') }}{% endif %}{% for", 1
    )
    with Bed(text_of(strict)) as bed:
        messages = [*HI, bed.turn(HI, "Over."), MORE]
        response = bed.ask(messages, history="append_only")
        assert history(response) == "template"
        assert bed.shown == bed.rendered(messages)


@pytest.mark.parametrize("value", ["append", "", 1, True, ["template"]])
def test_other_values_are_refused(value: Any):
    with Bed() as bed, pytest.raises(AssertionError, match="history"):
        bed.ask(HI, history=value)
