"""From engine requests to an HTTP answer, whole or as a stream: what all protocols share.

Knows nothing of what an answer says; a `Writer` does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from .errors import json_response
from .generation import Generation
from .record import Record
from .schemas import StreamOptions
from .streaming import EventStream
from .wire import Extras, RelaxedKeyword, Usage


class Writer(Protocol):
    """Writes one answer. Both manners read the same flow of deltas, so both say the same."""

    async def whole(self, generation: Generation) -> object:
        """The deltas folded into one body."""

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The deltas as events."""


async def respond(generation: Generation, writer: Writer, record: Record, *, stream: bool | None) -> Response:
    """The answer, once the engine has accepted the requests; on any error nothing is left running."""
    record.stream = bool(stream)
    try:
        await generation.start()
        if stream:
            return EventStream(writer.events(generation), generation)
        async with generation.deadline():
            answer = await writer.whole(generation)
        record.count(generation.usage)
        return json_response(answer)
    except BaseException:
        await generation.close()
        raise


class UsageWanted:
    """Where in a stream the usage stands: in a last chunk of its own, and perhaps in every chunk."""

    def __init__(self, options: StreamOptions | None) -> None:
        self.last = bool(options and options.include_usage)
        self._always = bool(options and options.continuous_usage_stats)

    def of_chunk(self, generation: Generation) -> Usage | UnsetType | None:
        """What a chunk with choices says of it."""
        if self._always:
            return generation.usage
        return None if self.last else UNSET


def extras(generation: Generation) -> Extras | UnsetType:
    """What an answer, or the first chunk of one, says beyond the protocol."""
    relaxed = [RelaxedKeyword(entry.path, entry.keyword, entry.reason) for entry in generation.relaxed]
    said = Extras(
        relaxed or UNSET,
        generation.scribe.history if generation.scribe else UNSET,
        (generation.joined and generation.joined.told) or UNSET,
    )
    return UNSET if said == Extras() else said
