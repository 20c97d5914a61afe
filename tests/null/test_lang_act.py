"""`s.act`: the model calls, tools run, their results are added in the order of the calls, and it goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from fakes_lang import FakeBackend, folding, written
from fakes_lang_tools import MESSAGES, aagent, add, agent, fail, scripted, shout
from moved_clock import language_clock
from pydantic import AfterValidator

import bosquet.lang as bosquet
from bosquet.errors import ProgramError, Unavailable
from bosquet.types import Relaxed


@pytest.mark.parametrize("carried", ["tokens", "messages"])
def test_calls_are_carried_out_and_their_results_added(carried: str) -> None:
    more = {} if carried == "tokens" else {"capabilities": MESSAGES}
    calls = written("add", a=1, b=2) + written("shout", text="hey")
    backend = scripted("Let me see. " + calls, "It is 3.", **more)
    result = agent.run(add, shout, backend=backend)
    acted = result.value
    assert (acted.text, str(acted), acted.stopped, acted.finished) == ("It is 3.", "It is 3.", "answer", True)
    first, last = acted.steps
    assert (first.text, last.text, last.calls) == ("Let me see. ", "It is 3.", ())
    assert [(call.name, json.loads(call.arguments), call.value, call.text) for call in first.calls] == [
        ("add", {"a": 1, "b": 2}, 3, "3"),
        ("shout", {"text": "hey"}, "HEY", "HEY"),
    ]
    assert acted.calls == first.calls
    assert acted.errors == ()
    assert all(call.seconds >= 0 for call in acted.calls)
    one, two = (call.id for call in first.calls)
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    messages = result.messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[1]["content"] == "Let me see. "
    assert messages[1]["tool_calls"][0] == {"id": one, "type": "function", "function": function}
    assert messages[2:4] == [
        {"role": "tool", "content": "3", "tool_call_id": one},
        {"role": "tool", "content": "HEY", "tool_call_id": two},
    ]
    sent = [call.tools for call in backend.calls]
    assert [use.tools for use in sent if use] == [(add.spec, shout.spec)] * 2
    assert result.usage.calls == 2
    assert result.usage.completion_tokens == sum(step.meta.completion_tokens for step in acted.steps)
    assert result.meta("act").completion_tokens == result.usage.completion_tokens
    assert (result.meta("act").text, result.meta("act").finish) == ("It is 3.", "stop")
    if carried == "messages":
        assert backend.calls[1].messages == [*messages[:-1], {"role": "assistant", "content": ""}]


def test_what_the_model_wrote_is_carried_on_token_by_token() -> None:
    said = "Hm. " + written("add", a=1, b=2)
    backend = scripted(said, "3.", "On.")

    @bosquet.program(max_tokens=500)
    def twice(s: bosquet.State) -> None:
        s.system("Be kind.")
        s.user("Go.")
        s.act([add])
        s["first"] = s["act"]
        s.user("More.")
        s.act([add])

    result = twice.run(backend=backend)
    assert result.text == (
        "tools: add\n<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n"
        f"<|im_start|>assistant\n{said}<|im_end|>\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n3.<|im_end|>\n"
        "<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\nOn."
    )
    first, second, third = backend.calls
    for before, step, after in zip((first, second), result["first"].steps, (second, third), strict=True):
        carried = (*before.ids, *step.meta.ids[:-1])  # the end token is the template's
        assert tuple(after.ids[: len(carried)]) == carried


def test_text_that_was_encoded_without_tools_is_encoded_anew_with_them() -> None:
    @bosquet.program(max_tokens=500)
    def later(s: bosquet.State) -> None:
        s.user("Hi.")
        s.assistant(bosquet.gen("hello"))
        s.user("Go.")
        s.act([add])
        s.user("Bye.")
        s.assistant(bosquet.gen("bye"))

    backend = FakeBackend(script={"hello": "Hello.", "act": [written("add", a=1, b=1), "2"], "bye": "Bye."})
    result = later.run(backend=backend)
    assert result.error is None
    begun = "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
    assert result.text.startswith(f"tools: add\n{begun}<|im_start|>user\nGo.")
    hello, one, two, bye = (list(call.ids) for call in backend.calls)
    assert hello != one[: len(hello)]
    assert two[: len(one)] == one
    assert bye[: len(two)] == two


def test_errors_are_told_to_the_model_and_kept() -> None:
    calls = [
        written("fail", how="value"),
        written("fail", how="key"),
        written("fail", how="exit"),
        written("fail", how="stop"),
        written("add", a=1),
        "<<add {nonsense>>",
        written("nowhere"),
        written("add", a=2, b=2),
    ]
    result = agent.run(add, fail, backend=scripted("".join(calls), "Sorry."))
    acted = result.value
    assert [message["content"] for message in result.messages if message["role"] == "tool"] == [
        "ValueError: value",
        "KeyError: 'key'",
        "SystemExit: exit",
        "StopIteration: stop",
        "invalid arguments: b: Field required",
        "invalid arguments: Invalid JSON: key must be a string at line 1 column 2",
        "there is no tool 'nowhere', only add, fail",
        "4",
    ]
    kinds = [ValueError, KeyError, SystemExit, StopIteration, *[bosquet.InvalidArguments] * 2, KeyError]
    assert [type(error) for error in acted.errors] == kinds
    assert acted.errors[0].__traceback__ is not None
    assert [call.value for call in acted.calls] == [None] * 7 + [4]
    assert acted.finished
    assert result.error is None


@pytest.mark.parametrize(
    ("value", "told", "kind"),
    [
        (None, "null", None),
        ({"a": [1, 2.5, None]}, '{"a":[1,2.5,null]}', None),
        ("text", "text", None),
        ("", "", None),
        (b"bytes", '"bytes"', None),
        (object(), "PydanticSerializationError: Unable to serialize unknown type: <class 'object'>", ValueError),
        ("a\ud800", "ValueError: the result is not valid Unicode: it has half of a surrogate pair at char", ValueError),
    ],
)
@pytest.mark.parametrize("carried", ["tokens", "messages"])
def test_what_the_model_is_told_of_a_result(value: Any, told: str, kind: Any, carried: str) -> None:
    @bosquet.tool
    def give() -> Any:
        "Give."
        return value

    more = {} if carried == "tokens" else {"capabilities": MESSAGES}
    result = agent.run(give, backend=scripted(written("give"), "ok", **more))
    (call,) = result.value.calls
    assert call.text.startswith(told)
    assert result.messages[2]["content"] == call.text
    assert call.value is value
    assert (call.error is None) if kind is None else isinstance(call.error, kind)


def checked(value: int) -> int:
    raise LookupError("in the check")


def test_what_the_code_of_others_raises_besides_is_told_too() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @bosquet.tool
    def mute() -> None:
        "Raise what cannot say why."
        raise Mute

    @bosquet.tool
    def check(a: Annotated[int, AfterValidator(checked)]) -> None:
        "Never called."

    calls = written("mute") + written("check", a=1)
    acted = agent.run(mute, check, backend=scripted(calls, "ok")).value
    assert [call.text for call in acted.calls] == ["Mute", "LookupError: in the check"]
    assert [type(error) for error in acted.errors] == [Mute, LookupError]
    with pytest.raises(ProgramError, match="agent: step 'act': Mute"):
        agent.run(mute, backend=FakeBackend(script={"act": Mute()}))


def test_error_texts_that_cannot_be_sent_are_mended() -> None:
    @bosquet.tool
    def odd() -> None:
        "Odd."
        raise ValueError("a\ud800b")

    (call,) = agent.run(odd, backend=scripted(written("odd"), "ok")).value.calls
    assert call.text == "ValueError: a?b"


def test_max_steps_is_a_flag_and_the_conversation_stays_whole() -> None:
    call = written("add", a=1, b=2)

    @bosquet.program(max_tokens=500)
    def bounded(s: bosquet.State) -> Any:
        s.user("Go.")
        s.act([add], name="first", max_steps=2)
        s.act([add], name="second", max_steps=1)
        return s["first"], s["second"]

    backend = FakeBackend(script={"first": [call, "more " + call], "second": ["done"]})
    result = bounded.run(backend=backend)
    first, second = result.value
    assert (first.stopped, first.finished, first.text, len(first.steps)) == ("max_steps", False, "more ", 2)
    assert [run.value for run in first.calls] == [3, 3]
    assert (second.stopped, second.text) == ("answer", "done")
    roles = [message["role"] for message in result.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_an_answer_that_was_cut_calls_nothing() -> None:
    ran: list[int] = []

    @bosquet.tool
    def note(x: int) -> None:
        "Note."
        ran.append(x)

    result = agent.run(note, max_tokens=30, backend=scripted(written("note", x=1) + written("note", x=2)))
    acted = result.value
    assert (acted.stopped, acted.finished, acted.calls, ran) == ("length", False, (), [])
    assert "tool_calls" not in result.messages[-1]
    assert result.meta("act").finish == "length"


def test_tool_choice_holds_for_the_first_step_and_parallel_for_all() -> None:
    for choice in ("auto", "required", "add"):
        backend = scripted(written("add", a=1, b=2), written("add", a=1, b=2), "ok")
        agent.run(add, shout, tool_choice=choice, parallel=False, temperature=0, seed=7, backend=backend)
        assert [call.tools.choice for call in backend.calls if call.tools] == [choice, "auto", "auto"]
        assert [call.tools.parallel for call in backend.calls if call.tools] == [False] * 3
        assert {(call.sampling.temperature, call.sampling.seed) for call in backend.calls} == {(0, 7)}
        assert {call.origin.step for call in backend.calls} == {"act"}


def test_streams_say_what_is_said_and_not_the_calls() -> None:
    def backend() -> FakeBackend:
        return scripted("Hm. " + written("add", a=1, b=2), "It is 3.")

    assert "".join(agent.stream(add, backend=backend(), var="act")) == "Hm. It is 3."

    async def main() -> None:
        stream = aagent.astream(add, backend=backend())
        assert "".join([piece async for piece in stream]) == "Hm. It is 3."
        assert (await stream.result()).value.finished

    asyncio.run(main())


def test_a_backend_that_fails_fails_the_step() -> None:
    backend = FakeBackend(script={"act": [written("add", a=1, b=2), Unavailable("gone")]})
    (result,) = agent.map([{}], backend=backend)  # no tools: refused where it is written
    assert isinstance(result.error, ValueError)

    @bosquet.program(max_tokens=500)
    def careful(s: bosquet.State) -> None:
        s.user("Go.")
        s.act([add])
        s.user("On.")
        s.assistant(bosquet.gen("more"))

    result = careful.run(backend=backend)
    with pytest.raises(ProgramError, match="careful: step 'act': gone") as caught:
        result["act"]
    assert isinstance(caught.value.__cause__, Unavailable)
    with pytest.raises(ProgramError, match="step 'more' was not reached"):
        result["more"]


def test_each_answer_has_its_time() -> None:
    @bosquet.tool
    async def slow() -> None:
        "Slow."
        clock.move(101)
        await asyncio.sleep(0)

    with language_clock() as clock:
        backend = scripted(written("slow"), "ok")
        assert agent.run(slow, timeout=100, backend=backend).value.finished  # a tool's time is its own
    with pytest.raises(ProgramError, match=r"no answer within 0\.05 s"):
        agent.run(slow, timeout=0.05, backend=scripted(written("slow"), "ok", pause=0.02))


def test_branches_act_side_by_side() -> None:
    @bosquet.program(max_tokens=500)
    def forked(s: bosquet.State) -> Any:
        s.user("Go.")
        branches = s.fork(3)
        for branch in branches:
            branch.act([add], name="sum")
        s.join(branches)
        return s["sum"]

    said = [written("add", a=1, b=1)] * 3 + ["ok"] * 3
    results = forked.run(backend=FakeBackend(script={"sum": said}, pause=0.001)).value
    assert [acted.calls[0].value for acted in results] == [2, 2, 2]


def test_what_the_arguments_were_not_held_to_is_in_the_meta() -> None:
    relaxed = (Relaxed("#/properties/a", "pattern", "no engine"),)
    result = agent.run(add, backend=scripted(written("add", a=1, b=2), "3", relaxed=relaxed))
    assert result.meta("act").relaxed == relaxed
    assert [step.meta.relaxed for step in result.value.steps] == [relaxed, relaxed]


def test_templates_that_do_not_let_a_tool_answer_say_so() -> None:
    with pytest.raises(ProgramError, match="roles must alternate"):
        agent.run(add, backend=scripted(written("add", a=1, b=2), "3", template=folding))
