"""Reasoning models: what they think is apart from what they answer, and grammars hold the answer alone.

Whether thinking is open is read off the prompt that the template made: opened, closed, or left to the model.
"""

import json
import re
from collections.abc import Iterator, Sequence, Set
from typing import Any

import httpx
import pytest
from fakes_engine import END, SPECIALS, ByteTokenizer, FakeEngine, info, says
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import Session, events, post
from template_samples import CONTROLS, QWEN3

from bosquet.grammar import reasoning
from bosquet.grammar.formats import check_format
from bosquet.grammar.tools import KNOWN
from bosquet.runtime.server.services import Text, TextServices
from bosquet.runtime.templates import ChatTemplate
from bosquet.runtime.text_stream import TextStream
from bosquet.types import GrammarSpec, Relaxed, Request, Segment

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
OPEN, CLOSE = 260, 261
MARKERS = {OPEN: b"<think>", CLOSE: b"</think>"}
OPENING = QWEN3 + "{%- if add_generation_prompt %}{{- '<think>\n' }}{%- endif %}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


class MarkedTokenizer(ByteTokenizer):
    """The markers are tokens. `special`: decoding leaves them out unless they are asked for."""

    size = 262

    def __init__(self, special: bool) -> None:
        super().__init__()
        texts = SPECIALS | MARKERS
        self.token_bytes = (*ByteTokenizer.token_bytes, *MARKERS.values())
        self.special_ids = frozenset(texts if special else SPECIALS)
        self.control_ids = frozenset(texts)

    def encode_segments(self, segments: Sequence[Segment], *, bos: bool = False) -> list[int]:
        ids: list[int] = []
        for text, control in segments:
            for part in re.split("(</?think>)", text) if control else [text]:
                token = self.id_of_special(part) if control else None
                ids += super().encode_segments([Segment(part, control)]) if token is None else [token]
        return ids

    def id_of_special(self, text: str) -> int | None:
        return {m.decode(): t for t, m in MARKERS.items()}.get(text)


def services(source: str, tokenizer: ByteTokenizer) -> TextServices:
    special = frozenset(CONTROLS["qwen3"])
    template = ChatTemplate({"default": source}, {}, special, special | {"<think>", "</think>"})

    def stream(stop: Sequence[bytes], shown: Set[int]) -> TextStream:
        return TextStream(tokenizer, stop, shown=shown)

    facts = info(vocab_size=tokenizer.size, context_length=4096)
    return TextServices(Text(tokenizer, template, facts, stream, KNOWN["hermes"], reasoning.detect(source)))


BYTES, SPECIAL, ADDED = ByteTokenizer(), MarkedTokenizer(True), MarkedTokenizer(False)
TOKENIZERS = {"bytes": BYTES, "special": SPECIAL, "added": ADDED}
TEMPLATES = {"undecided": QWEN3, "open": OPENING}


def engine(text: TextServices, answer: str = "ok", **options: Any) -> FakeEngine:
    """Says the answer with the markers as the tokenizer has them."""
    tokenizer = text.get().tokenizer
    ids = [*tokenizer.encode_segments([Segment(answer, True)]), END]
    return FakeEngine(
        lambda request, choice: ids, tokenizer=tokenizer, vocab_size=tokenizer.size, context_length=4096, **options
    )


def ask(text: TextServices, answer: str = "ok", **fields: Any) -> httpx.Response:
    response = post(engine(text, answer), PATH, {"messages": HI} | fields, text=text)
    assert response.status_code == 200, response.text
    return response


def seen(text: TextServices, **fields: Any) -> Request:
    made = engine(text)
    response = post(made, PATH, {"messages": HI} | fields, text=text)
    assert response.status_code == 200, response.text
    return made.requests[0]


def test_the_templates_do_what_they_are_for():
    assert _tail(OPENING, {}).endswith("assistant\n<think>\n")
    assert _tail(QWEN3, {}).endswith("assistant\n")
    assert _tail(QWEN3, OFF).endswith("<think>\n\n</think>\n\n")


def _tail(source: str, fields: dict[str, Any]) -> str:
    return bytes(token for token in seen(services(source, BYTES), **fields).ids if token < 256).decode()


# ---- what is held ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"response_format": FORM}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b"]}, "choice"),
        ({"grammar": 'root ::= "a"'}, "ebnf"),
        ({"tools": [TOOL]}, "structural_tag"),
        ({"tools": [TOOL], "response_format": FORM}, "structural_tag"),
    ],
)
def test_an_open_part_ends_before_the_grammar_begins(tokenizer: str, fields: dict[str, Any], kind: str):
    spec = seen(services(OPENING, TOKENIZERS[tokenizer]), **fields).grammar
    assert spec is not None
    assert spec.kind == kind
    assert spec.after == (tuple(b"</think>") if tokenizer == "bytes" else (CLOSE,))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"response_format": FORM}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"tools": [TOOL]}, "structural_tag"),
    ],
)
def test_with_thinking_off_the_grammar_holds_from_the_first_token(fields: dict[str, Any], kind: str):
    spec = seen(services(QWEN3, SPECIAL), **OFF, **fields).grammar
    assert spec is not None
    assert spec.kind == kind
    assert not spec.after
    assert "<think>" not in spec.value


@pytest.mark.parametrize(
    "fields",
    [{"response_format": FORM}, {"response_format": {"type": "json_object"}}, {"regex": "a+"}, {"choice": ["a"]}],
)
def test_undecided_the_model_may_think_first(fields: dict[str, Any]):
    spec = seen(services(QWEN3, SPECIAL), **fields).grammar
    assert spec is not None
    assert spec.kind == "structural_tag"
    assert set(spec.specials) >= {OPEN, CLOSE}
    assert not spec.after
    form = check_format(spec.value)
    assert form["type"] == "or"
    thought, _, answer = form["elements"][0]["elements"]
    assert (thought["begin"], thought["end"]) == ("<think>", ["</think>"])
    assert form["elements"][1] == answer


def test_undecided_a_grammar_that_no_format_can_hold_holds_at_once():
    spec = seen(services(QWEN3, SPECIAL), grammar='root ::= "a"').grammar
    assert spec == GrammarSpec("ebnf", 'root ::= "a"')


def test_undecided_what_is_relaxed_is_told_once_and_in_the_callers_terms():
    text = services(QWEN3, SPECIAL)
    spec = seen(text, response_format=FORM).grammar
    assert spec is not None
    entries = [Relaxed(f"{where}/properties/a", "not", "why") for where in _schemas_at(json.loads(spec.value))]
    assert len(entries) == 2
    response = post(engine(text, relaxed=entries), PATH, {"messages": HI, "response_format": FORM}, text=text)
    told = [{"path": "#/properties/a", "keyword": "not", "reason": "why"}]
    assert response.json()["x_bosquet"] == {"relaxed": told}


def _schemas_at(node: Any, path: str = "#") -> list[str]:
    if isinstance(node, list):
        return [found for i, part in enumerate(node) for found in _schemas_at(part, f"{path}/{i}")]
    if not isinstance(node, dict):
        return []
    if node.get("type") == "json_schema":
        return [f"{path}/json_schema"]
    return [found for name, part in node.items() for found in _schemas_at(part, f"{path}/{name}")]


def test_free_text_stays_free():
    for source in TEMPLATES.values():
        assert seen(services(source, SPECIAL)).grammar is None


def test_a_marker_of_a_user_opens_nothing():
    messages = [{"role": "user", "content": "x<think>"}, {"role": "assistant", "content": "so</think> ab"}]
    fields = {"messages": messages, "continue_final_message": True, "regex": "a+"}
    spec = seen(services("{% for m in messages %}{{ m.content }}{% endfor %}{# <think> #}", BYTES), **fields).grammar
    assert spec is not None
    assert spec.kind == "regex"
    assert not spec.after


# ---- what is said ---------------------------------------------------------------------------------------------------

CASES = [
    # template, extra fields, output, reasoning, content, calls
    ("open", {}, "hm, é☃\n</think>\n\nyes", "hm, é☃", "yes", 0),
    ("open", {}, "</think>yes", "", "yes", 0),
    ("open", {}, "hm", "hm", "", 0),
    ("open", {}, "a </thin b</think>\nc </think> d", "a </thin b", "c </think> d", 0),
    ("undecided", {}, "<think>\nhm\n</think>\n\nyes", "hm", "yes", 0),
    ("undecided", {}, "yes", "", "yes", 0),
    ("undecided", {}, "<think>\n\n</think>\n\nyes", "", "yes", 0),
    ("undecided", OFF, "yes <thin", "", "yes <thin", 0),
    ("undecided", OFF, '{"a": 1}', "", '{"a": 1}', 0),
    ("open", {"tools": [TOOL]}, f"hm\n</think>\n\n{CALL}", "hm", None, 1),
    ("open", {"tools": [TOOL]}, f"{CALL}</think>\n\nSo: {CALL}", CALL, "So:", 1),
    ("undecided", {"tools": [TOOL]}, f"<think>hm</think>{CALL}", "hm", None, 1),
    ("undecided", {"tools": [TOOL]} | OFF, CALL, "", None, 1),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(("template", "fields", "output", "thought", "content", "calls"), CASES)
def test_what_it_thinks_is_apart(
    tokenizer: str, template: str, fields: dict[str, Any], output: str, thought: str, content: str | None, calls: int
):
    text = services(TEMPLATES[template], TOKENIZERS[tokenizer])
    message = ask(text, output, **fields).json()["choices"][0]["message"]
    assert message["content"] == content
    assert message.get("reasoning_content", "") == thought
    assert len(message.get("tool_calls", [])) == calls


@pytest.fixture(scope="module", params=TOKENIZERS)
def sessions(request: pytest.FixtureRequest) -> Iterator[dict[str, Session]]:
    made = {}
    for name, source in TEMPLATES.items():
        text = services(source, TOKENIZERS[request.param])
        made[name] = Session(engine(text), text)
    yield made
    for session in made.values():
        session.close()


@pytest.mark.parametrize(("template", "fields", "output", "thought", "content", "calls"), CASES)
def test_every_split(
    sessions: dict[str, Session], template: str, fields: dict[str, Any], output: str, thought: str,
    content: str | None, calls: int,
):  # fmt: skip
    session = sessions[template]
    tokenizer = session.engine.tokenizer
    ids = [*tokenizer.encode_segments([Segment(output, True)]), END]
    session.engine.script = lambda request, choice: ids
    usages = set()
    for at in range(1, len(ids) + 1):
        session.engine.requests.clear()
        session.engine.pieces = (at, len(ids))
        body = {"messages": HI, "stream": True, "stream_options": {"include_usage": True}} | fields
        *chunks, _ = events(session.post(PATH, body))
        usages.add(json.dumps(chunks[-1]["usage"]["completion_tokens_details"]))
        deltas = [piece["delta"] for chunk in chunks for piece in chunk["choices"]]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
        assert "".join(delta.get("content") or "" for delta in deltas) == (content or "")
        assert sum("id" in entry for delta in deltas for entry in delta.get("tool_calls", [])) == calls
    assert len(usages) == 1


@settings(max_examples=40, deadline=None)
@given(
    thought=st.text(st.sampled_from("ab<think>/é \n"), max_size=12),
    content=st.text(st.sampled_from("ab</think>é \n"), max_size=12),
    pieces=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    stop=st.sampled_from([[], ["b"], ["nk>a"], ["\n\n"]]),
    limit=st.integers(1, 40),
)
def test_streamed_or_not(
    sessions: dict[str, Session], thought: str, content: str, pieces: list[int], stop: list[str], limit: int
):
    for session in sessions.values():
        tokenizer = session.engine.tokenizer
        ids = [*tokenizer.encode_segments([Segment(f"{thought}</think>{content}", True)]), END]
        session.engine.script = lambda request, choice, ids=ids: ids
        session.engine.requests.clear()
        session.engine.pieces = (1,)
        body = {"messages": HI, "stop": stop, "max_tokens": limit}
        whole = session.post(PATH, body).json()
        session.engine.pieces = tuple(pieces)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, done = events(session.post(PATH, body | options))
        assert done == "[DONE]"
        message = whole["choices"][0]["message"]
        deltas = [piece["delta"] for chunk in chunks for piece in chunk["choices"]]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get("reasoning_content", "")
        assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
        assert chunks[-1]["usage"] == whole["usage"] | {
            "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
        }


# ---- what is counted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "fields", "output", "count"),
    [
        ("open", {}, "hm</think>yes", 3),  # the end marker is a part of it
        ("open", {}, "hmm", 4),  # and so is an end that comes before any answer
        ("undecided", {}, "<think>hm</think>yes", 4),
        ("undecided", {}, "yes", 0),
        ("undecided", OFF, "yes", 0),
        ("open", {"tools": [TOOL]}, f"hm</think>{CALL}", None),
    ],
)
def test_reasoning_tokens(template: str, fields: dict[str, Any], output: str, count: int | None):
    usage = ask(services(TEMPLATES[template], SPECIAL), output, **fields).json()["usage"]
    found = usage["completion_tokens_details"]["reasoning_tokens"]
    assert found == count if count is not None else 0 < found < usage["completion_tokens"]


def test_a_model_that_does_not_reason_says_nothing_of_it():
    text = services("{% for m in messages %}{{ m.content }}{% endfor %}", BYTES)
    body = ask(text, "<think>a</think>b").json()
    assert "completion_tokens_details" not in body["usage"]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "<think>a</think>b", "refusal": None}


def test_the_n_choices_think_apart():
    text = services(OPENING, BYTES)
    made = FakeEngine(says("a</think>b", "c</think>d"), context_length=4096, vocab_size=BYTES.size)
    choices = post(made, PATH, {"messages": HI, "n": 2}, text=text).json()["choices"]
    assert [c["message"]["reasoning_content"] for c in choices] == ["a", "c"]
    assert [c["message"]["content"] for c in choices] == ["b", "d"]


def test_what_was_thought_goes_back_to_the_template():
    messages = [*HI, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}, *HI]
    assert "<think>" not in _tail(QWEN3, {"messages": messages})  # only after the last question
    messages = [*HI, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}]
    fields = {"messages": messages, "add_generation_prompt": False}
    assert "<think>\nhm\n</think>\n\nyes" in _tail(QWEN3, fields)


# ---- completions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    ("opened", "output", "thought", "answer"),
    [
        ("<think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("", "Yes.", None, "Yes."),
        ("<think>\n\n</think>\n\n", "Yes.", None, "Yes."),
    ],
)
def test_a_completion_tells_thoughts_apart_whole_and_streamed(
    tokenizer: str, opened: str, output: str, thought: str | None, answer: str
):
    text = services(QWEN3, TOKENIZERS[tokenizer])
    prompt = TOKENIZERS[tokenizer].encode_segments([Segment(f"assistant\n{opened}", True)])
    body = {"prompt": prompt, "reasoning": True, "max_tokens": 99, "regex": "Yes."}
    made = engine(text, output)
    choice = post(made, "/v1/completions", body, text=text).json()["choices"][0]
    assert (choice.get("reasoning"), choice["content"]) == (thought, answer)
    assert choice["text"] == output
    response = post(engine(text, output), "/v1/completions", body | {"stream": True}, text=text)
    pieces = [piece for chunk in events(response) if isinstance(chunk, dict) for piece in chunk["choices"]]
    for name in ("text", "content", "reasoning"):
        assert "".join(piece.get(name, "") for piece in pieces) == choice.get(name, "")
    spec = made.requests[0].grammar
    assert spec is not None
    closed = opened.endswith("</think>\n\n")
    assert (spec.kind, bool(spec.after)) == ("structural_tag" if not opened else "regex", bool(opened) and not closed)


def test_a_completion_that_asks_for_no_reasoning_is_all_text():
    text = services(QWEN3, BYTES)
    body = {"prompt": list(b"assistant\n"), "max_tokens": 99}
    choice = post(engine(text, "<think>a</think>b"), "/v1/completions", body, text=text).json()["choices"][0]
    assert choice["text"] == "<think>a</think>b"
    assert "content" not in choice
    assert "reasoning" not in choice
    two = post(engine(text), "/v1/completions", {"prompt": [[1], [2]], "reasoning": True}, text=text)
    assert (two.status_code, two.json()["error"]["param"]) == (400, "reasoning")
