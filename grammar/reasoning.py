"""Takes the reasoning part off an answer: the text between a family's markers.

Whether thinking is open at the start is read off the rendered prompt, since the template may open it, close it at
once, or leave it to the model. A marker may be several tokens: this works on text. Outputs in channels (Harmony)
separate their reasoning themselves, see `Format.channels` in grammar/tools/base.py. Gemma and other families without
markers have none.

Knows nothing of token ids or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ..errors import ConfigError
from ..types import Segment
from .tools.base import FormatJson, ReasoningDelta, TextDelta
from .tools.reader import BLANKS, Reader, Script
from .tools.shapes import ANY, either, sequence, tag
from .tools.shapes import BLANKS as SPACE

State = Literal["open", "closed", "undecided"]
"""Of thinking, where the model takes over: begun, over (or never to be), or up to the model."""


class Markers(NamedTuple):
    """The two texts around a reasoning part. Where they are special tokens, they have to be declared and shown."""

    name: str
    start: str
    end: str


KNOWN: dict[str, Markers] = {
    markers.name: markers
    for markers in (
        Markers("mistral", "[THINK]", "[/THINK]"),
        Markers("seed", "<seed:think>", "</seed:think>"),
        Markers("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
        Markers("kimi", "◁think▷", "◁/think▷"),
        Markers("think", "<think>", "</think>"),
    )
}
"""Name → markers."""


def detect(template: str | None, name: str | None = None) -> Markers | None:
    """The markers that the chat template writes or looks for; `name` overrides ("none": there are none). Raises
    `ConfigError` for a name that is not known."""
    if name is not None:
        if name != "none" and name not in KNOWN:
            raise ConfigError(f"there are no reasoning markers {name!r}; known are none, {', '.join(sorted(KNOWN))}")
        return KNOWN.get(name)
    return next(
        (found for found in KNOWN.values() if template and (found.start in template or found.end in template)), None
    )


def start_state(prompt: Sequence[Segment], markers: Markers, continued: bool = False) -> State:
    """Reads the state off a rendered prompt: its end, or with `continued` (the model goes on with a message of its own)
    the last marker anywhere. Markers in plain text were written by a user, and count for nothing."""
    text = "".join(piece.text if piece.control else "\0" * len(piece.text) for piece in prompt)
    if continued:
        opened, closed = text.rfind(markers.start), text.rfind(markers.end)
        return "undecided" if opened < 0 and closed < 0 else "open" if opened > closed else "closed"
    bare = text.rstrip(BLANKS)
    return "open" if bare.endswith(markers.start) else "closed" if bare.endswith(markers.end) else "undecided"


def with_thinking(form: FormatJson, markers: Markers) -> FormatJson:
    """The format of an output that may begin with a reasoning part: for the state "undecided", where no marker is sure
    to come after which the grammar could begin."""
    return either(sequence(tag(markers.start, ANY, markers.end), SPACE, form), form)


class ReasoningParser:
    """Splits one output. However the text is cut, the pieces add up to the same two texts.

    Blanks next to the markers are layout, and are left out. Only what comes first can be a reasoning part.
    """

    def __init__(self, markers: Markers, state: State) -> None:
        self._markers = markers
        self._reader = Reader()
        self._events: list[TextDelta | ReasoningDelta] = []
        self._blanks = ""
        self._script = self._read(state)

    @property
    def waiting(self) -> int:
        """Characters that were pushed, and are held back."""
        return self._reader.waiting + len(self._blanks)

    def push(self, text: str) -> list[TextDelta | ReasoningDelta]:
        """What is certain after this text; what may be a part of a marker waits."""
        self._reader.feed(text)
        next(self._script)
        return self._take()

    def finish(self, *, cut: bool = False) -> list[TextDelta | ReasoningDelta]:
        """All that was held back; if the answer was `cut`, without half a marker. The last call."""
        self._reader.close(cut=cut)
        for _ in self._script:
            raise AssertionError("a script that waits for text after the end")
        return self._take()

    def _read(self, state: State) -> Script[None]:
        start, end = self._markers.start, self._markers.end
        if state == "undecided":
            self._reader.mark()
            yield from self._reader.blanks()
            if (yield from self._reader.accept(start)):
                self._reader.release()
                state = "open"
            else:
                self._reader.rewind()
        if state == "open":
            yield from self._reader.blanks()
            if (yield from self._reader.until((end,), self._think)):
                self._reader.skip(len(end))
                yield from self._reader.blanks()
        yield from self._reader.rest(self._say)

    def _think(self, text: str) -> None:
        """Blanks wait: at the end they are layout."""
        body = text.rstrip(BLANKS)
        if body:
            self._events.append(ReasoningDelta(self._blanks + body))
            self._blanks = ""
        self._blanks += text[len(body) :]

    def _say(self, text: str) -> None:
        self._events.append(TextDelta(text))

    def _take(self) -> list[TextDelta | ReasoningDelta]:
        events, self._events = self._events, []
        return events
