"""Random conversations and random edits of them: a prompt is never another text than the template's for what was said,
no text is ever a control token, and what can be taken over is."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts_bed import Bed, Message, assistant, text_of, user

from bosquet.runtime.server.flat_text import control, flat, flat_ids
from bosquet.runtime.server.scribe import kept_ids
from bosquet.runtime.server.transcript_keys import same_json
from bosquet.runtime.stop_strings import StopMatcher
from bosquet.runtime.text_stream import TextStream
from bosquet.types import Segment, StopMatch

PIECES = (
    *("fox", " dog", "jumps", "\n", "\n\n", " ", "\t", "\u00a0", "é", "🜁", "你好", "12345", '{"a": 1}', "\U000f0000"),
    *("<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<think>", "</think>", "<tool_call>", "@@"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
EDITS = st.sampled_from(("same", "strip", "newline", "blanks", "more", "less", "other"))
TOKENIZER: Any = text_of().tokenizer


def cut(text: str, seed: int) -> list[int]:
    """Tokens of the text that no tokenizer would choose; none of them is a control token."""
    draw = random.Random(seed)
    ids: list[int] = []
    while text:
        size = draw.randint(1, 4)
        ids += TOKENIZER.encode_segments([Segment(text[:size], False)])
        text = text[size:]
    return ids


def edited(text: str, edit: str) -> str:
    match edit:
        case "strip":
            return text.strip()
        case "newline":
            return f"{text.strip()}\n"
        case "blanks":
            return f" \n{text} "
        case "more":
            return f"{text} more"
        case "less":
            return text[:-1]
        case "other":
            return f"x{text}"
    return text


def specials(ids: Sequence[int]) -> list[int]:
    return [token for token in ids if token in TOKENIZER.special_ids]


@given(st.lists(st.tuples(TEXTS, TEXTS, EDITS, st.integers(0, 99)), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_conversation_that_is_edited_as_it_goes(exchanges: list[tuple[str, str, str, int]]):
    with Bed() as bed:
        messages: list[Message] = []
        meant: list[Message] = []  # with the texts that the prompt has to show
        live: list[int] = []  # what the next prompt has to begin with
        before = 0  # of that, what was taken over for the last prompt
        for question, answer, edit, seed in exchanges:
            for each in (messages, meant):
                each.append(user(question))
            bed.say(cut(answer, seed))
            details = bed.ask(messages).json()["usage"]["prompt_tokens_details"]
            assert bed.prompt[: len(live)] == live
            assert details.get("transcript_tokens", 0) == len(live)
            assert bed.shown == bed.rendered(meant)
            assert specials(bed.prompt) == specials(bed.plain(messages))
            echo = edited(answer, edit)
            before = len(live)
            same = bool(answer) and echo.strip() == answer.strip()
            live = bed.prompt + cut(answer, seed) if same else live[:before]
            messages.append(assistant(echo))
            meant.append(assistant(answer if same else echo))


SEGMENTS = st.lists(st.builds(Segment, TEXTS, st.booleans()), max_size=6)


@given(SEGMENTS)
@settings(max_examples=150, deadline=None)
def test_flat_text_is_what_the_ids_stand_for(segments: list[Segment]):
    shown = flat(segments, TOKENIZER)
    assert shown == flat_ids(TOKENIZER.encode_segments(segments), TOKENIZER)
    pieces = TOKENIZER.split_controls(segments)
    assert "".join(piece.text for piece in pieces) == "".join(segment.text for segment in segments)
    assert TOKENIZER.encode_segments(pieces) == TOKENIZER.encode_segments(segments)
    assert shown == "".join(control(piece.text) if piece.control else piece.text for piece in pieces)


@pytest.mark.parametrize("half", ["\ud800", "a\udfffb", "\ud800<|im_end|>\udfff"])
def test_flat_text_cannot_be_forged(half: str):
    assert flat([Segment(half, False)], TOKENIZER) is None


@given(TEXTS, st.sampled_from(("fox", "dog", "o", "s\n", "5", "好", "|im", "\n\n")), st.integers(0, 99), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_is_kept_of_an_answer_is_what_was_said(text: str, stop: str, seed: int, read: bool):
    """`read`: whoever reads the answer has found the stop string, and not the engine."""
    ids, match = cut(text, seed), None
    matcher = StopMatcher([stop.encode()])
    for count, token in enumerate(ids, 1):
        match = matcher.push(TOKENIZER.bytes_of(token))
        if match is not None:
            ids = ids[:count]
            break
    said = TextStream(TOKENIZER).push(ids, "stop", match)
    given = StopMatch(text=stop) if match is not None and read else match
    kept = kept_ids(TOKENIZER, ids, given, frozenset())
    assert flat_ids(kept, TOKENIZER) == said
    whole = next((at for at, (a, b) in enumerate(zip(kept, ids, strict=False)) if a != b), min(len(kept), len(ids)))
    assert len(said.encode()) - sum(len(TOKENIZER.bytes_of(token)) for token in ids[:whole]) < 24  # a token or two


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from((0.5, 1.0, 1e-7))
    | st.sampled_from(("", "a", "é", "1")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("a", "b", "é")), inner, max_size=3),
    max_leaves=6,
)


def strict(value: Any) -> Any:
    """Values that compare as JSON does: true is not 1, and 1 is not 1.0."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    return (type(value), value)


@given(VALUES, VALUES, st.booleans(), st.sampled_from((None, 0, 2)))
def test_arguments_are_the_same_if_their_values_are(left: Any, right: Any, ascii_only: bool, indent: int | None):
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(item) for key, item in reversed(value.items())}
        return [turned(item) for item in value] if isinstance(value, list) else value

    again = json.dumps(turned(left), ensure_ascii=ascii_only, indent=indent)
    assert same_json(json.dumps(left)) == same_json(again)
    assert (same_json(json.dumps(left)) == same_json(json.dumps(right))) == (strict(left) == strict(right))


@pytest.mark.parametrize("text", ["", "{", "[" * 5000, "NaN", '{"a": 1e999}', '{"a": 1e998}', "9" * 5000, "nul"])
def test_what_is_no_json_is_the_same_only_as_itself(text: str):
    assert same_json(text) == text
