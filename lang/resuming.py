"""What a run goes on from, and whether its backend can.

Knows nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from ..errors import StateInvalid
from ..prompts.transcript import Gap, Transcript
from .arguments import wrong_type
from .calls import Span
from .result import Result
from .run import Run
from .saved import SavedState, check_vocabulary
from .values import Variable

_MONTHS, _DAYS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec", "mon|tue|wed|thu|fri|sat|sun"
_DATED: Final = re.compile(rf"\d+|\b(?:{_MONTHS}|{_DAYS})[a-z]*\b|\b[ap]m\b", re.IGNORECASE)


class Start(NamedTuple):
    """A transcript with its variables, spans and vocabulary."""

    transcript: Transcript
    variables: Mapping[str, Variable]
    spans: tuple[Span, ...]
    vocabulary: Callable[[], Awaitable[str]]

    async def checked(self, run: Run) -> Transcript:
        """The transcript, as the run may go on from it. Raises `StateInvalid` if its ids, or the text around its turns,
        are not those of the run's backend. Awaited on the language's loop."""
        await check_vocabulary(await self.vocabulary(), run)
        return await _as_of_now(self.transcript, run)


def checked_start(where: str, given: object) -> Start | None:
    """From a result or a saved state. Raises TypeError for anything else, the `ProgramError` of a run that failed."""
    if given is None:
        return None
    if isinstance(given, Result):
        return Start(*given.left(), given.vocabulary)
    if isinstance(given, SavedState):
        return Start(given.transcript, given.variables, given.spans, given.known_vocabulary)
    raise wrong_type(where, "a result, or a state from load_state", given)


async def _as_of_now(transcript: Transcript, run: Run) -> Transcript:
    """With what the template writes now to compare later turns with. Some templates print the date: the ids keep that
    of their day, and nothing else may differ."""
    if run.layout is None or not transcript.gaps:
        return transcript
    gaps, _ = await run.layout.gaps(transcript.heads[: len(transcript.gaps)], True, transcript.tools)
    for turn, (before, now) in enumerate(zip(transcript.gaps, gaps, strict=True)):
        if _undated(before) != _undated(now):
            raise StateInvalid(
                f"before turn {turn} the chat template wrote {_text(before)!r} when the state was saved, and now "
                f"writes {_text(now)!r}"
            )
    return transcript._replace(gaps=gaps)


def _text(gap: Gap) -> str:
    return "".join(segment.text for segment in gap)


def _undated(gap: Gap) -> list[tuple[str, bool]]:
    return [(_DATED.sub("", segment.text), segment.control) for segment in gap]
