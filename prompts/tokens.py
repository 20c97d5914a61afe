"""From a transcript's pending text to token ids, and from a generation to the ids that are kept of it.

Knows nothing of calls or runs. Where generation meets text is a token boundary, and so is a fork.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import TemplateFailed
from ..types import Segment
from .template import Layout, merge, remainder
from .text_side import TextSide
from .transcript import Close, Gap, Open, Transcript, Write


async def encode(transcript: Transcript, backend: TextSide, layout: Layout) -> Transcript:
    """The transcript with nothing pending. Raises `TemplateFailed` if the template refuses the turns, or if it puts
    other text than before around a turn that is already encoded."""
    if not transcript.pending and (transcript.ids or transcript.turns):
        return transcript
    if not transcript.turns:
        return await _encode_plain(transcript, backend)
    gaps, tail = await layout.gaps(transcript.heads, transcript.open, transcript.tools)
    segments = merge(_pending_segments(transcript, gaps, tail))
    ids = await backend.encode(segments) if segments else []
    return transcript.encoded(ids, "".join(segment.text for segment in segments), gaps, tail)


async def encode_for_fork(transcript: Transcript, backend: TextSide, layout: Layout) -> Transcript:
    """The transcript with nothing pending, as far as the template can tell by now.

    Some templates show a system turn only inside the user turn after it. Then the turn stays pending and each branch
    encodes it. If the template refuses the turns altogether, the first call of a branch says so.
    """
    if not transcript.pending:
        return transcript
    try:
        return await encode(transcript, backend, layout)
    except TemplateFailed:
        return transcript


async def _encode_plain(transcript: Transcript, backend: TextSide) -> Transcript:
    text = "".join(op.text for op in transcript.pending if isinstance(op, Write))
    start = [] if transcript.ids else await backend.text_start()
    ids = await backend.encode([Segment(text, False)]) if text else []
    return transcript.encoded([*start, *ids], text)


def _pending_segments(transcript: Transcript, gaps: tuple[Gap, ...], tail: Gap) -> list[Segment]:
    """Pending contents with the template text around them, less the template text that is encoded already."""
    turn = len(transcript.gaps)  # the next turn to be opened
    for earlier, (before, now) in enumerate(zip(transcript.gaps, gaps, strict=False)):
        if before != now:
            raise _not_append_only(transcript, f"before turn {earlier}", before, now)
    after = [*gaps[turn:], *([] if transcript.open else [tail])]  # the gaps that end the pending contents
    if after:
        rest = remainder(after[0], transcript.tail)
        if rest is None:
            raise _not_append_only(transcript, f"after turn {turn - 1}", transcript.tail, after[0])
        after[0] = rest
    segments: list[Segment] = []
    coming = iter(after)
    for op in transcript.pending:
        if isinstance(op, Open):
            segments += next(coming)
        elif isinstance(op, Write):
            segments.append(Segment(op.text, False))
    if not transcript.open and isinstance(transcript.pending[-1], Close):
        segments += next(coming)
    return segments


def _not_append_only(transcript: Transcript, where: str, before: Gap, now: Gap) -> TemplateFailed:
    def quoted(gap: Gap) -> str:
        return repr("".join(segment.text for segment in gap))

    last = len(transcript.turns) - 1
    return TemplateFailed(
        f"the chat template is not append-only here: {where} it wrote {quoted(before)}, but with turn {last} "
        f"({transcript.turns[last].role}) added it writes {quoted(now)}",
        f"messages[{last}]",
    )


async def kept_ids(ids: Sequence[int], text: str, stop: str | int | None, backend: TextSide) -> list[int]:
    """The ids of a generation that a transcript goes on with. `stop` is what ended it: a stop string, or an end token,
    which is the last of `ids`."""
    if isinstance(stop, int):
        return list(ids[:-1])  # the template's own text ends the turn, so the end token is carried once
    if isinstance(stop, str):
        return await _keep_before_stop(ids, text, stop, backend)
    return list(ids)


async def _keep_before_stop(ids: Sequence[int], text: str, stop: str, backend: TextSide) -> list[int]:
    """The ids that stand for `text`, when generation ran on into the stop string: the whole tokens before the cut as
    they were generated, then what is left of the text, encoded alone."""
    least = max(0, len(ids) - 1 - len(stop.encode()) - 8)  # a stop string has no more tokens than bytes
    for kept in range(len(ids) - 1, least - 1, -1):
        whole = await backend.decode(ids[:kept])
        for lead in ("", " "):  # some decoders drop the space that begins a text
            if text.startswith(lead + whole):
                left = text[len(lead + whole) :] if whole else text
                return [*ids[:kept], *(await backend.encode([Segment(left, False)]) if left else [])]
    return await backend.encode([Segment(text, False)]) if text else []
