"""Makes the record of a request whose choices are over, of what was noted of them."""

from __future__ import annotations

import time
from collections.abc import Sequence as Items

from .sequence import Sequence
from .trace import ChoiceTrace, Trace


def choice_trace(sequence: Sequence) -> ChoiceTrace:
    """The record of a choice that is over."""
    notes, arrival = sequence.notes, sequence.arrival

    def since(moment: float | None) -> float | None:
        return None if moment is None else max(0.0, moment - arrival)

    return ChoiceTrace(
        choice=sequence.choice,
        admitted=since(notes.admitted),
        first_token=since(notes.first_token) if sequence.generated else None,
        ended=max(0.0, notes.ended - arrival),
        finish=sequence.finish,
        match_seconds=notes.match_seconds,
        cached=sequence.cached_tokens or 0,
        computed=notes.computed,
        generated=sequence.generated,
        prefills=[part._replace(at=max(0.0, part.at - arrival)) for part in notes.prefills],
        prefill_seconds=notes.prefill_seconds,
        prefill_cost=notes.prefill_cost,
        decodes=notes.decodes,
        decode_seconds=notes.decode_seconds,
        mask_seconds=notes.mask_seconds,
        preemptions=notes.preemptions,
        drafts=notes.drafts,
        miss=notes.miss,
    )


def trace(sequences: Items[Sequence], now: float, pace: float) -> Trace:
    """The record of a request whose choices are all over. `now` is the engine clock's."""
    first = sequences[0]
    request = first.request
    return Trace(
        request=request.id,
        origin=request.origin,
        arrival=time.time() - (now - first.arrival),
        prompt_tokens=first.prompt_length,
        grammar=request.grammar.kind if request.grammar is not None else None,
        priority=request.priority,
        pace=pace,
        choices=[choice_trace(sequence) for sequence in sequences],
    )
