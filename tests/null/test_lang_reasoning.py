"""Thoughts told apart from answers: in the language, over the real server, and for an engine on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set

import httpx
import pytest
from fakes_engine import ByteTokenizer, FakeEngine, info, says
from fakes_lang import FakeBackend
from live_server import live
from template_samples import CONTROLS, QWEN3
from tool_manners import manner
from tool_samples import two_way_splits

import bosquet.lang as bosquet
from bosquet.errors import Unsupported
from bosquet.grammar import reasoning
from bosquet.grammar.formats import check_format
from bosquet.grammar.tools import KNOWN
from bosquet.runtime.server.services import Text, TextServices
from bosquet.runtime.templates import ChatTemplate
from bosquet.runtime.text_stream import TextStream
from bosquet.types import Call, Chunk, GrammarSpec, Origin, SamplingParams

OPENING = QWEN3 + "{%- if add_generation_prompt %}{{- '<think>\n' }}{%- endif %}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@bosquet.program(temperature=0)
def solve(s: bosquet.State, question: str, shape: type | None = None, n: int | None = None) -> None:
    s.user(question)
    s.assistant(bosquet.gen("answer", schema=shape, reasoning=True, max_tokens=200, n=n))


def test_the_value_is_the_answer_and_the_thoughts_are_in_its_meta() -> None:
    backend = FakeBackend(script={"answer": 'is it? </think>{"a": 1}'})
    result = solve.run("Go.", dict, backend=backend)
    assert result["answer"] == {"a": 1}
    assert result.meta("answer").reasoning == "is it? "
    assert result.meta("answer").text == '{"a": 1}'
    # A state only grows: what was generated stays, as ids and as text; the turn's content is the answer.
    assert result.text.endswith('is it? </think>{"a": 1}')
    assert result.messages[-1]["content"] == '{"a": 1}'
    assert "".join(solve.stream("Go.", dict, var="answer", backend=backend)) == '{"a": 1}'


def test_each_sample_has_thoughts_of_its_own_and_an_answer_without_thoughts_is_one() -> None:
    backend = FakeBackend(script={"answer": ["a</think>b", "c", "d</think>"]})
    result = solve.run("Go.", n=3, backend=backend)
    assert sorted(result["answer"]) == ["", "b", "c"]
    assert {meta.text: meta.reasoning for meta in result.meta("answer")} == {"b": "a", "c": "", "": "d"}


def test_a_backend_that_cannot_tell_them_apart_refuses_by_name() -> None:
    with pytest.raises(Unsupported, match="FakeBackend cannot do 'reasoning': reasoning told apart"):
        solve.run("Go.", backend=FakeBackend(capabilities=bosquet.TOKEN_CAPABILITIES - {"reasoning"}))


def services(source: str) -> TextServices:
    tokenizer = ByteTokenizer()
    special = frozenset(CONTROLS["qwen3"])
    template = ChatTemplate({"default": source}, {}, special, special)

    def stream(stop: Sequence[bytes], shown: Set[int]) -> TextStream:
        return TextStream(tokenizer, stop, shown=shown)

    facts = info(vocab_size=tokenizer.size, context_length=4096)
    return TextServices(Text(tokenizer, template, facts, stream, KNOWN["hermes"], reasoning.detect(source)))


@pytest.mark.parametrize(
    ("source", "said", "thought"),
    [
        (OPENING, 'Hm. <a>\n</think>\n\n{"a": 1}', "Hm. <a>"),
        (QWEN3, '<think>\nHm.\n</think>\n\n{"a": 1}', "Hm."),
        (QWEN3, '{"a": 1}', ""),
    ],
    ids=["open", "undecided", "none"],
)
def test_over_the_server(source: str, said: str, thought: str) -> None:
    engine = FakeEngine(says(said), vocab_size=ByteTokenizer.size, context_length=4096)
    with live(engine, text=services(source)) as server, bosquet.BosquetServer(server.url) as backend:
        result = solve.run("Go.", dict, backend=backend)
        streamed = "".join(solve.stream("Go.", dict, var="answer", backend=backend))
    assert result["answer"] == {"a": 1}
    assert (result.meta("answer").reasoning, streamed) == (thought, '{"a": 1}')
    assert bytes(token for token in result.ids if token < 256).decode().endswith(said)
    grammar = engine.requests[0].grammar
    assert grammar is not None
    if source is OPENING:
        assert (grammar.kind, grammar.after) == ("json_object", tuple(b"</think>"))
    else:
        check_format(grammar.value)
        assert grammar.kind == "structural_tag"
        assert grammar.after == ()


def test_a_message_backend_gives_the_thoughts_that_its_server_tells_apart() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        deltas = [{"reasoning_content": "Hm."}, {"reasoning_content": " So."}, {"content": '{"a": 2}'}]
        events = [{"choices": [{"delta": delta}]} for delta in deltas]
        events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return httpx.Response(200, text="".join(lines) + "data: [DONE]\n\n")

    with bosquet.OpenAICompatible(
        "http://x", "m", also=["reasoning"], transport=httpx.MockTransport(answer)
    ) as backend:
        result = solve.run("Go.", dict, backend=backend)
    assert result["answer"] == {"a": 2}
    assert result.meta("answer").reasoning == "Hm. So."
    with pytest.raises(ValueError, match="chat completions cannot do images"):
        bosquet.OpenAICompatible("http://x", "m", also=["images"])


# -- an engine on this machine ----------------------------------------------------------------------------------------

SPEC = GrammarSpec("json_schema", json.dumps(SCHEMA))


def test_the_grammar_holds_after_the_thoughts() -> None:
    qwen = manner(QWEN3, ("<think>", "</think>"))
    begun = list(b"assistant\n")
    opened, closed = [*begun, 256, 10], [*begun, 256, 10, 257, 10]
    assert qwen.answer_grammar(opened, SPEC) == GrammarSpec("json_schema", SPEC.value, after=(257,))
    assert qwen.answer_grammar(closed, SPEC) == SPEC
    assert qwen.answer_grammar(begun, None) is None
    assert manner().answer_grammar(opened, SPEC) == SPEC, "this template knows no thoughts"
    for answer in (SPEC, GrammarSpec("choice", '["yes", "no"]'), GrammarSpec("regex", "[0-9]+", strict=True)):
        undecided = qwen.answer_grammar(begun, answer)
        assert undecided is not None
        assert (undecided.kind, undecided.strict, undecided.after) == ("structural_tag", answer.strict, ())
        assert set(undecided.specials) >= {256, 257}
        check_format(undecided.value)
        assert json.loads(undecided.value)["elements"][0]["elements"][0]["end"] == "</think>"


def test_the_answer_is_the_same_however_its_text_is_cut() -> None:
    text = "<think>\nHm. \n</think>\n\nYes."
    call = Call(sampling=SamplingParams(), origin=Origin(), ids=tuple(b"assistant\n"), reasoning=True)
    for pieces in [[text], list(text), *two_way_splits(text)]:
        reader = manner(QWEN3).answer_reader(call)
        chunks = [reader.read(Chunk(piece, ids=(1,))) for piece in pieces]
        chunks.append(reader.read(Chunk("", finish="stop")))
        assert "".join(chunk.text for chunk in chunks) == text
        assert "".join(chunk.content or "" for chunk in chunks) == "Yes."
        assert "".join(chunk.reasoning for chunk in chunks) == "Hm."
