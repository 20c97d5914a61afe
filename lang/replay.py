"""A saved state made again from its token ids: does a model still say what it said?

Knows nothing of programs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from ..errors import BosquetError, StateInvalid
from ..types import Call
from .backend import Backend
from .calls import Span, collect
from .defaults import resolve
from .expressions import Sampling
from .loop import hop, inside_a_loop, submit
from .run import Run
from .saved import SavedState, check_vocabulary


class Replayed(NamedTuple):
    """One generation, made again from the same prompt. `found` are the ids that came now; None where the generation was
    sampled without a seed, so that no two need be the same, and it was left out."""

    step: str
    expected: tuple[int, ...]
    found: tuple[int, ...] | None

    @property
    def same(self) -> bool | None:
        """Whether the ids are what they were; None where it was left out."""
        return None if self.found is None else self.found == self.expected


def replay(saved: SavedState, backend: Backend | None = None) -> list[Replayed]:
    """Make each generation of the state's own branch again, in its order, and compare. Raises `StateInvalid` for a
    backend to which ids mean something else, and what a call raises. Inside an event loop: await `areplay`."""
    if inside_a_loop():
        raise RuntimeError("replay would block the event loop that runs here: await areplay(...)")
    return submit(_replay(saved, resolve(backend))).result()


async def areplay(saved: SavedState, backend: Backend | None = None) -> list[Replayed]:
    """The same, awaited."""
    return await hop(_replay(saved, resolve(backend)))


async def _replay(saved: SavedState, backend: Backend) -> list[Replayed]:
    run = Run(saved.program, backend, Sampling())
    try:
        await check_vocabulary(saved.vocabulary, run)
        if not saved.vocabulary:
            raise StateInvalid("a state of chat messages has no token ids to be replayed from")
        return [await _again(saved, span, run) for span in saved.spans]
    finally:
        run.close()
        if run.carries_tokens:
            with suppress(BosquetError):  # a backend that cannot be told forgets the run in time
                await run.tokens.end(run.id)


async def _again(saved: SavedState, span: Span, run: Run) -> Replayed:
    if span.sampling.temperature > 0 and span.sampling.seed is None:
        return Replayed(span.step, span.ids, None)
    call = Call(
        sampling=span.sampling,
        origin=run.origin("", span.step),
        grammar=span.grammar,
        ids=saved.ids[: span.start],
        tools=span.tools,
        reasoning=span.reasoning,
    )
    made = await collect(run, call, _ignore)
    return Replayed(span.step, span.ids, tuple(made.ids))


def _ignore(text: str) -> None:
    pass
