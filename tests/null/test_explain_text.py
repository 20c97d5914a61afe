"""What changed between two texts; where parts lie in prompts; and nothing random makes the explanation fail."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fakes_engine import ByteTokenizer, text_services

from bosquet.prompts.shared import shared_length
from bosquet.runtime.server.explain import comparison
from bosquet.runtime.server.explain_compare import compare, compare_start
from bosquet.runtime.server.explain_hints import hint_for
from bosquet.runtime.server.explain_prompt import Prompt, Told, lay
from bosquet.runtime.server.explain_text import change, start_of
from bosquet.runtime.server.explainer import MOST_BYTES, OF_A_TENANT, PER_MESSAGE, PER_TOKEN, Explainer
from bosquet.runtime.trace import ChoiceTrace, Miss, Trace
from bosquet.types import Origin, Request, SamplingParams

BYTES = ByteTokenizer().bytes_of


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        ("at 10:04 today", "at 10:05 today", "timestamp"),
        ("on 2026-01-31, x", "on 2026-02-01, x", "timestamp"),
        ("on 31.01.2026: x", "on 01.02.2026: x", "timestamp"),
        ("It is Mon, 30 Nov 2026 08:00:00 GMT.", "It is Tue, 01 Dec 2026 09:30:00 GMT.", "timestamp"),
        ("Nov 30th, 2026", "Nov 29th, 2026", "timestamp"),
        ("t=1796025601.25;", "t=1796025699.75;", "timestamp"),
        ("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301.", "id 3f2504e0-4f89-11d3-9a0c-0305e82c3302.", "random_id"),
        ("sha deadbeef0123 ok", "sha deadbeef0456 ok", "random_id"),
        ("key sk_live_9aZ81kQ2 ok", "key sk_live_7bY92mR4 ok", "random_id"),
        ("step 3 of 9", "step 4 of 9", "number"),
        ("a b\nc", "a b c", "whitespace"),
        ("a b ", "a b", "whitespace"),
        ("\ufb01ne", "fine", "unicode"),
        ("Yes", "yes", "case"),
        ('{"a": 1, "b": [2]}', '{"b": [2], "a": 1}', "json_layout"),
        ("one\ntwo\nthree", "two\none\nthree", "reordered"),
        ('see {"a": 1, "b": 2} there', 'see {"b": 2, "a": 1} there', "reordered"),
        ("said and more", "said", "appended"),
        ("said", "said and more", "cut"),
        ("the same", "the same", "same"),
        ("You are kind and wise and calm.", "You are cold and wise and calm.", "edited"),
        ("What is the capital of France?", "Sing me songs about whales now.", "new_text"),
    ],
)
def test_a_change_is_named(ours: str, theirs: str, kind: str):
    assert change(ours, theirs) == kind


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        ("Now 08:00:01. You are", "Now 08:00:09. You a", "timestamp"),
        ("def f():\n    return 1\n\nmore of it", "def f():\n\treturn 1\n\nmor", "whitespace"),
        ("the same beginning, and then", "the same beginn", "same"),
        ("something else altogether", "some other thing", "new_text"),
    ],
)
def test_a_change_is_named_by_its_beginning(ours: str, theirs: str, kind: str):
    assert change(ours, theirs, whole=False) == kind


def test_the_first_difference_is_that_of_a_plain_loop():
    rng = random.Random(3)
    for _ in range(500):
        a = "".join(rng.choices("ab", k=rng.randrange(12)))
        b = a[: rng.randrange(len(a) + 1)] + "".join(rng.choices("ab", k=rng.randrange(6)))
        plain = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert shared_length(a, b) == shared_length(a.encode(), b.encode()) == plain


def test_a_time_is_named_by_its_beginning():
    assert start_of("timestamp", "Now: 2026-11-30T08:00:01Z. x", 23) == 5
    assert start_of("edited", "Now", 2) == 2


def test_the_same_text_in_other_tokens_is_told_from_another_text():
    pieces = {0: b"the ", 1: b"mountain", 2: b"mount", 3: b"ain", 4: b" hut", 5: b" inn"}
    ours = lay([0, 2, 3, 4], pieces.__getitem__, Told())
    assert compare_start(ours, 4, b"mountain hut").kind == "tokenization"
    assert compare_start(ours, 4, b"mountain inn").kind != "tokenization"


@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        ("Be glad. Say no", "differs"),
        ("Be  brief and kind", "whitespace"),
        ("BE BRIEF AND KIND.", "case"),
        ("Be brief and kind. And short.", "differs"),
    ],
)
def test_of_a_request_that_is_forgotten_no_more_is_said_than_is_known(theirs: str, kind: str):
    messages = [{"role": "system", "content": "Be brief and kind."}, {"role": "user", "content": "Hi"}]
    ours = lay(list(b"<s>Be brief and kind.<u>Hi<a>"), BYTES, Told(messages))
    at = 3 + shared_length("Be brief and kind.", theirs)
    found = compare_start(ours, at, theirs[at - 3 :].encode())
    assert (found.kind, found.part.name) == (kind, "messages[0].content")


@pytest.mark.parametrize(("role", "kind"), [("user", "cut"), ("assistant", "answer_changed")])
def test_a_message_that_ends_early_is_named_by_its_end(role: str, kind: str):
    """It is where the message has ended that the prompts part, which is in what the template writes."""

    def prompt(said: str) -> Prompt:
        messages = [{"role": "system", "content": "Be brief."}, {"role": role, "content": said}]
        return lay(list(f"<s>Be brief.<m>{said}<e>\n<a>".encode()), BYTES, Told(messages))

    ours, theirs = prompt("Höhe der Hütte"), prompt("Höhe der Hütte über dem See")
    at = ours.data.index(b"<e>")
    for found in (compare(ours, theirs, at), compare_start(ours, at, theirs.data[at : at + 24])):
        assert (found.kind, found.part.name, found.character) == (kind, "messages[1].content", len("Höhe der Hütte"))
    assert compare(theirs, ours, at).part.name == "messages[1].content"
    assert compare_start(ours, at, b"<e>\n<b>").part.name == "template"


@pytest.mark.parametrize(
    ("theirs", "kind"), [('go {\n"x": 1,\n', "arguments_layout"), ('go {"x": 2, "y', "answer_changed")]
)
def test_of_a_call_that_is_forgotten_the_layout_is_told_from_the_values(theirs: str, kind: str):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "go", "arguments": '{"x": 1, "y": 2}'}}]}
    ours = lay(list(b'<u>Go.<a>go {"x": 1, "y": 2}<t>'), BYTES, Told([{"role": "user", "content": "Go."}, call]))
    at = ours.data.index(b"go {")
    found = compare_start(ours, at, theirs.encode())
    assert (found.kind, found.part.name) == (kind, "messages[1].tool_calls")


def test_what_was_sent_otherwise_and_came_out_the_same_is_not_the_cause():
    """A call is echoed with its arguments in another layout and got its tokens back; the result after it differs."""

    def prompt(arguments: str, result: str) -> Prompt:
        call = {"role": "assistant", "tool_calls": [{"function": {"name": "go", "arguments": arguments}}]}
        messages = [{"role": "user", "content": "Go."}, call, {"role": "tool", "content": result}]
        return lay(list(f'<u>Go.<a>go {{"x": 1}}<t>{result}<a>'.encode()), BYTES, Told(messages))

    ours, theirs = prompt('{"x":1}', "it is warm"), prompt('{"x": 1}', "it was cold")
    found = compare(ours, theirs, ours.data.index(b"is warm") + 1)
    assert (found.kind, found.part.name) == ("new_text", "messages[2].content")


def test_parts_are_found_where_they_stand():
    messages = [
        {"role": "system", "content": " Rules. "},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "go", "arguments": '{"x":1}'}}]},
        {"role": "tool", "content": "done"},
    ]
    tool = '{"type": "function", "function": {"name": "go"}}'
    text = f'<s>Rules.\n{tool}\n</tools>\n<u>one\ntwo\n<a>go {{"x": 1}}\n<t>done\n<a>'
    prompt = lay(list(text.encode()), BYTES, Told(messages, [("go", "{}")]))
    told = {part.name: text[part.start : part.end] for part in prompt.parts}
    assert told == {
        "messages[0].content": "Rules.",
        "tools[0]": tool,
        "messages[1].content": "one\ntwo",
        "messages[2].tool_calls": 'go {"x": 1}',
        "messages[3].content": "done",
    }
    assert prompt.part_at(0).kind == prompt.part_at(len(text) - 1).kind == "template"


WORDS = [
    "08:00:01",
    "2026-11-30",
    "é",
    "🌲",
    "\x1b[0m",
    "abc123def456",
    "  ",
    "\n",
    "{",
    "}",
    '"a": 1',
    "x" * 30,
    "",
    "}}%{",
]


def random_told(rng: random.Random) -> Told:
    def text() -> str:
        return "".join(rng.choices(WORDS, k=rng.randrange(5)))

    def message() -> dict[str, Any]:
        call = {"function": {"name": rng.choice(["f", "", "g"]), "arguments": rng.choice(["{}", "{", '{"a":1}'])}}
        extra = {"tool_calls": [call]} if rng.random() < 0.3 else {}
        content = rng.choice([text(), None, [{"type": "text", "text": text()}]])
        return {"role": rng.choice(["user", "assistant", "system", "tool"]), "content": content, **extra}

    tools = [(rng.choice(["f", "g", "(["]), text()) for _ in range(rng.randrange(3))]
    return Told([message() for _ in range(rng.randrange(4))], tools)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_random_makes_it_fail(seed: int):
    """Whatever was told, and whatever the engine says: there is an explanation, inside the prompt, with a hint."""
    rng = random.Random(seed)
    text = text_services().get()
    explainer = Explainer()
    for n in range(120):
        first, second = ("".join(rng.choices(WORDS, k=rng.randrange(1, 9))).encode() or b"x" for _ in range(2))
        base = first[: rng.randrange(len(first))] if rng.random() < 0.7 else b""
        ours, theirs = list(base + first), list(base + second)
        told = [random_told(rng), random_told(rng)]
        found = comparison(text, (theirs, told[0]), (ours, told[1]))
        assert found.hint
        assert found.shared_tokens == shared_length(bytes(ours), bytes(theirs))

        at = min(found.shared_tokens, len(ours) - 1)
        request = Request(id=str(n), ids=theirs, sampling=SamplingParams(max_tokens=1))
        explainer.remember(request, told[0])
        miss = Miss(matched=at, at=at, cause="diverged", theirs=tuple(theirs[at : at + rng.randrange(30)]))
        trace = Trace(request="now", prompt_tokens=len(ours), choices=[ChoiceTrace(miss=miss)])
        report = explainer.explain(trace, ours, told[1], text.tokenizer, capture=bool(n % 2))
        assert report is not None
        assert report.hint
        assert report.place is not None


def test_what_is_remembered_is_bounded():
    def asked(n: int, tenant: str, tokens: int) -> Request:
        origin = Origin(tenant=tenant)
        return Request(id=f"{tenant}{n}", ids=[1] * tokens, sampling=SamplingParams(max_tokens=1), origin=origin)

    small = Explainer()
    for n in range(3 * OF_A_TENANT):
        small.remember(asked(n, "a", 10), Told())
    small.remember(asked(0, "b", 10), Told())
    assert len(small) == OF_A_TENANT + 1
    assert MOST_BYTES < 64 << 20

    tight = Explainer(10 * (PER_TOKEN * 100 + PER_MESSAGE))
    for n in range(50):
        tight.remember(asked(n, str(n), 100), Told())
    assert len(tight) == 10
    tight.remember(asked(99, "huge", 10_000), Told())
    assert len(tight) <= 1


def test_every_kind_has_a_hint():
    from typing import get_args

    from bosquet.runtime.server.explain_compare import Difference, Kind

    part = lay([120], BYTES, Told()).part_at(0)
    kinds = [kind for group in get_args(Kind) for kind in (get_args(group) or [group])]
    assert len(kinds) > 20
    assert all(hint_for(Difference(kind, part, 3, "")) for kind in kinds)
