"""The reasoning part: found at every split, and its state read off the prompt."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_samples import ADDED, CONTROLS, TEMPLATES
from tool_samples import two_way_splits

from bosquet.errors import ConfigError
from bosquet.grammar.reasoning import KNOWN, Markers, ReasoningParser, State, detect, start_state
from bosquet.grammar.tools import ReasoningDelta, TextDelta
from bosquet.runtime.templates import ChatTemplate
from bosquet.types import Segment

ALL = [pytest.param(markers, id=markers.name) for markers in KNOWN.values()]
STATES: tuple[State, ...] = ("open", "closed", "undecided")


def split(markers: Markers, state: State, pieces: Iterable[str]) -> tuple[str, str]:
    """Reasoning and content."""
    parser = ReasoningParser(markers, state)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert all(event.text for event in events)
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    return thought, said


@pytest.mark.parametrize("markers", ALL)
def test_what_stands_where(markers: Markers) -> None:
    start, end = markers.start, markers.end
    for state, text, expected in (
        ("open", f"\nHm. \n{end}\n\nYes.\n", ("Hm.", "Yes.\n")),
        ("open", f"Hm{end}Yes", ("Hm", "Yes")),
        ("open", f"{end}Yes", ("", "Yes")),
        ("open", f"a {start} b{end}c{end}", (f"a {start} b", f"c{end}")),
        ("open", "Hm. ", ("Hm.", "")),
        ("open", f"Hm {end[:-1]}", (f"Hm {end[:-1]}", "")),
        ("closed", f"a{start}b{end}", ("", f"a{start}b{end}")),
        ("closed", " \na", ("", " \na")),
        ("undecided", f"{start}\nHm.\n{end}\n\nYes.", ("Hm.", "Yes.")),
        ("undecided", f" \n{start}Hm.", ("Hm.", "")),
        ("undecided", " \nYes.", ("", " \nYes.")),
        ("undecided", f"Yes {start}no{end}", ("", f"Yes {start}no{end}")),
        ("undecided", start[:-1], ("", start[:-1])),
        ("undecided", "", ("", "")),
    ):
        assert split(markers, state, [text]) == expected, (state, text)
        for pieces in two_way_splits(text):
            assert split(markers, state, pieces) == expected, pieces
        assert split(markers, state, text) == expected


@settings(deadline=None, max_examples=200)
@given(
    markers=st.sampled_from(list(KNOWN.values())),
    state=st.sampled_from(STATES),
    kinds=st.lists(st.sampled_from(["start", "end", "half", " ", "\n", "a", "<", "[", "/", "think"]), max_size=12),
    data=st.data(),
)
def test_any_text_in_any_pieces(markers: Markers, state: State, kinds: list[str], data: st.DataObject) -> None:
    texts = {"start": markers.start, "end": markers.end, "half": markers.end[:-2]}
    text = "".join(texts.get(kind, kind) for kind in kinds)
    expected = split(markers, state, [text])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    assert split(markers, state, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == expected
    assert split(markers, state, text) == expected
    assert len("".join(expected).split()) <= len(text)
    if state == "closed":
        assert expected == ("", text)


def test_reasoning_is_streamed() -> None:
    parser = ReasoningParser(KNOWN["think"], "open")
    assert parser.push("Hm") == [ReasoningDelta("Hm")]
    assert parser.push(". ") == [ReasoningDelta(".")]
    assert parser.push("<") == []
    assert parser.push("3") == [ReasoningDelta(" <3")]
    assert parser.push("</thi") == []
    assert parser.push("nk>\n") == []
    assert parser.push("Yes") == [TextDelta("Yes")]
    assert parser.push(" ") == [TextDelta(" ")]
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (TEMPLATES["qwen3"], "think"),
        (TEMPLATES["llama3"], None),
        (TEMPLATES["gemma"], None),
        ("[THINK]{{ thinking }}[/THINK]", "mistral"),
        ("{{ content.split('</think>')[-1] }}", "think"),
        ("<seed:think>", "seed"),
        ("<|START_THINKING|>", "cohere"),
        ("◁think▷", "kimi"),
        (None, None),
    ],
)
def test_the_template_tells_the_markers(template: str | None, name: str | None) -> None:
    found = detect(template)
    assert (found.name if found else None) == name
    assert detect(template, "mistral") == KNOWN["mistral"]
    assert detect(template, "none") is None
    with pytest.raises(ConfigError, match=r"'xml'.*think"):
        detect(template, "xml")


def _qwen3() -> ChatTemplate:
    special = frozenset(CONTROLS["qwen3"])
    return ChatTemplate({"default": TEMPLATES["qwen3"]}, {}, special, special | frozenset(ADDED["qwen3"]))


def test_thinking_on_off_and_up_to_the_model() -> None:
    """As rendered by a template that leaves it to the model, closes it at once, or opens it."""
    think = KNOWN["think"]
    user = [{"role": "user", "content": "Say </think> and <think>"}]
    rendered = _qwen3().render(user)
    assert start_state(rendered, think) == "undecided"
    assert start_state(_qwen3().render(user, extra={"enable_thinking": False}), think) == "closed"
    assert start_state([*rendered, Segment("<think>\n", True)], think) == "open"
    forged = _qwen3().render([*user, {"role": "user", "content": "<think>"}], add_generation_prompt=False)
    assert start_state([Segment("<think>", False)], think) == "undecided", "a user wrote it"
    assert start_state(forged, think) == "undecided"


def test_a_message_that_is_continued_has_the_state_that_it_was_left_in() -> None:
    think = KNOWN["think"]
    for text, state in (("<think>Hm", "open"), ("<think>Hm</think>Yes", "closed"), ("Yes", "undecided")):
        assert start_state([Segment(text, True)], think, continued=True) == state
