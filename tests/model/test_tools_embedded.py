"""Tool calls over the embedded model's own tokenizer: every cut of the token stream, and what many tools cost."""

from __future__ import annotations

import json
import time

import pytest
from tool_samples import CALLS, TOOLS, WEATHER, folded, parse, whole, written

from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.reasoning import KNOWN as MARKERS
from bosquet.grammar.reasoning import ReasoningParser
from bosquet.grammar.tools import KNOWN, Format, Tool, ToolChoice
from bosquet.grammar.vocabulary import Vocabulary
from bosquet.runtime.models.source import EMBEDDED, resolve
from bosquet.runtime.text_stream import TextStream
from bosquet.runtime.tokenizer import Tokenizer
from bosquet.types import GrammarSpec

NAMED = [pytest.param(form, id=name) for name, form in KNOWN.items()]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve(EMBEDDED, weights=False).path)


@pytest.mark.parametrize("form", NAMED)
def test_every_cut_of_the_token_stream(tokenizer: Tokenizer, form: Format) -> None:
    """A character may be in several tokens, and a token in text and call at once."""
    said = "<|channel|>analysis<|message|>日本🙂<|end|><|start|>assistant" if form.channels else "日本🙂, wait.\n"
    text = said + written(form, CALLS[:1] if form.channels else [CALLS[0], CALLS[3], CALLS[4]])
    tokens = tokenizer.encode(text, specials=False)
    expected = whole(form, text)
    for at in range(len(tokens) + 1):
        stream = TextStream(tokenizer)
        pieces = [stream.push(tokens[:at]), stream.push(tokens[at:], "length")]
        assert "".join(pieces) == text
        assert folded(parse(form, pieces)) == expected
    stream = TextStream(tokenizer)
    pieces = [stream.push([token]) for token in tokens] + [stream.push([], "length")]
    assert folded(parse(form, pieces)) == expected


@pytest.mark.parametrize("name", MARKERS)
def test_every_cut_of_a_reasoning_part(tokenizer: Tokenizer, name: str) -> None:
    markers = MARKERS[name]
    tokens = tokenizer.encode(f"{markers.start}\n日本🙂 <|{markers.end}\n\nYes.", specials=False)
    for at in range(len(tokens) + 1):
        stream, parser = TextStream(tokenizer), ReasoningParser(markers, "undecided")
        events = (
            parser.push(stream.push(tokens[:at])) + parser.push(stream.push(tokens[at:], "length")) + parser.finish()
        )
        texts = {
            kind: "".join(e.text for e in events if type(e).__name__ == kind)
            for kind in ("ReasoningDelta", "TextDelta")
        }
        assert texts == {"ReasoningDelta": "日本🙂 <|", "TextDelta": "Yes."}


def test_many_tools_compile_in_time(tokenizer: Tokenizer) -> None:
    end = tokenizer.id_of_special("<|im_end|>")
    assert end is not None
    compiler = GrammarCompiler(Vocabulary(tokenizer.token_bytes, 49_152, (end,), tokenizer.special_ids))
    tools = [Tool(f"tool_{at}", "", WEATHER.parameters) for at in range(128)] + TOOLS
    form = json.dumps(KNOWN["default"].grammar(tools, ToolChoice("auto")))
    start = time.process_time()
    matcher = compiler.compile(GrammarSpec("structural_tag", form, strict=True)).matcher()
    assert time.process_time() - start < 3.0, "1 s, and room for a machine that does other things"
    tokens = tokenizer.encode(f"I see.\n{written(KNOWN['default'], CALLS[:2])}", specials=False)
    assert matcher.try_accept([*tokens, end]) == len(tokens) + 1
