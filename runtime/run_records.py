"""What programs' runs have done before: how long they stay silent between requests, and whether they come back at all.

Bounded, and learnt only from what happens; knows nothing of caches.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

REMEMBERED = 256  # silences of a program
ENOUGH = 20  # silences from which a program's patience is learnt
PATIENCE_S, LEAST_S, MOST_S = 5.0, 0.5, 120.0  # before enough is known; bounds of what is learnt
PROGRAMS = 1000  # of which something is remembered


class Program(NamedTuple):
    tenant: str
    name: str


class _Record:
    __slots__ = ("patience", "returned", "silences", "usual")

    def __init__(self) -> None:
        self.silences: deque[float] = deque(maxlen=REMEMBERED)
        self.returned: deque[bool] = deque(maxlen=REMEMBERED)  # whether a run that fell silent had more requests
        self.patience = PATIENCE_S
        self.usual = 0.0


class RunRecords:
    """By program, the least recently seen forgotten first."""

    def __init__(self) -> None:
        self._records: dict[Program, _Record] = {}

    def came_back(self, program: Program, silence: float, *, given_up: bool = False) -> None:
        """A run had another request after this many seconds; `given_up`: it had been told as over."""
        if given_up:
            self.was_told(program)
        record = self._record(program)
        record.returned.append(True)
        record.silences.append(silence)
        self._conclude(record)

    def was_over(self, program: Program) -> None:
        """A run that fell silent had no more requests, as far as one knows."""
        record = self._record(program)
        record.returned.append(False)
        self._conclude(record)

    def was_told(self, program: Program) -> None:
        """A run that had been told as over has said so itself, or was not over: it says nothing of silences."""
        returned = self._record(program).returned
        if False in returned:
            returned.remove(False)

    @staticmethod
    def _conclude(record: _Record) -> None:
        """With p the share of runs that come back and S(t) the share of silences longer than t, a run that has been
        silent for t comes back with p·S(t) against 1 - p: it is given up where the second outweighs."""
        if not record.silences:
            return
        ordered = sorted(record.silences)
        record.usual = ordered[len(ordered) // 2]
        if len(ordered) >= ENOUGH:
            came, gone = sum(record.returned), record.returned.count(False)
            longer = min(1.0, max(0.05, gone / max(1, came)))
            most = ordered[min(len(ordered) - 1, int(len(ordered) * (1 - longer)))]
            record.patience = min(MOST_S, max(LEAST_S, most))

    def patience(self, program: Program) -> float:
        """Seconds of silence after which a run is taken to be over: when it is more likely over than not, and in any
        case when it is longer than 95 of 100 silences."""
        record = self._records.get(program)
        return PATIENCE_S if record is None else record.patience

    def usual_silence(self, program: Program) -> float:
        """Half of its runs' silences were shorter, in seconds."""
        record = self._records.get(program)
        return 0.0 if record is None else record.usual

    def chance(self, program: Program) -> float:
        """Of its runs that fell silent, the share that came back; 1 of an unknown program."""
        record = self._records.get(program)
        return 1.0 if record is None else sum(record.returned) / max(1, len(record.returned))

    def returns(self, program: Program) -> bool:
        """Whether most runs that fell silent came back; of an unknown program none did."""
        record = self._records.get(program)
        return record is not None and 2 * sum(record.returned) > len(record.returned)

    def _record(self, program: Program) -> _Record:
        record = self._records.pop(program, None) or _Record()
        self._records[program] = record  # the newest last
        if len(self._records) > PROGRAMS:
            del self._records[next(iter(self._records))]
        return record
