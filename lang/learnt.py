"""What earlier runs of a program have shown of its steps: their order, how long their outputs are, whether and after
which pause the program goes on from them, how wide it forks.

A small file, kept where `keep_in` says, which is read and written by threads of its own: no run waits for it, and one
that is damaged or cannot be written is as good as none. Knows nothing of texts or tokens: it holds names and averages.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Final

import msgspec
from msgspec import Struct, field

from .journal import Journal
from .loop import settled

PROGRAMS: Final = 256
"""Most programs that are remembered; those not used for longest go first."""
STEPS: Final = 64
"""Most steps of one program."""
SAVE_AFTER_S: Final = 2.0
_FILE: Final = "learnt.json"
_FORMAT: Final = 1
_MEMORY: Final = 8  # about as many requests count


class Habit(Struct):
    """Averages over the requests of one step. `returned` is the share of those from whose tokens the run went on,
    `pause_s` how long after, `left` the requests on the longest path from there."""

    seen: int = 0
    returned: float = 0.0
    pause_s: float = 0.0
    left: float = 0.0
    tokens: float = 0.0

    @property
    def returns(self) -> bool | None:
        """What the next one will do, if they have agreed so far."""
        if self.seen < 3 or 0.1 < self.returned < 0.9:
            return None
        return self.returned >= 0.9

    def add(self, pause: float | None, left: int, tokens: int) -> None:
        self.seen += 1
        weight = 1 / min(self.seen, _MEMORY)
        self.returned += weight * ((pause is not None) - self.returned)
        self.left += weight * (left - self.left)
        self.tokens += weight * (tokens - self.tokens)
        if pause is not None:
            self.pause_s += (weight if self.pause_s else 1) * (pause - self.pause_s)


class Habits(Struct):
    """Of one program: its steps in the order in which they were first asked for, and after which of them it forks how
    wide. `code` tells its text apart from that of another, or of an earlier one, of the same name."""

    code: int = 0
    used: float = 0.0  # Unix time
    steps: dict[str, Habit] = field(default_factory=dict)
    forks: dict[str, float] = field(default_factory=dict)

    def of(self, step: str, request: int = 0) -> Habit | None:
        """`request` counts those of the step, of which an `act` makes several."""
        return self.steps.get(_key(step, request))

    def only(self, steps: Container[str]) -> Habits:
        """What is known of these steps."""

        def wanted(key: str) -> bool:
            step, further, _ = key.rpartition("+")
            return key in steps or (bool(further) and step in steps)

        return Habits(
            self.code,
            self.used,
            {key: habit for key, habit in self.steps.items() if wanted(key)},
            {step: width for step, width in self.forks.items() if not step or step in steps},
        )

    def learn(self, journal: Journal) -> None:
        """Add what one run has shown."""
        for lesson in sorted(journal.lessons(), key=lambda lesson: lesson.began):
            key = _key(lesson.step, lesson.request)
            if key in self.steps or len(self.steps) < STEPS:
                self.steps.setdefault(key, Habit()).add(lesson.pause, lesson.left, lesson.tokens)
        for _, step, width in journal.forks:
            if step in self.forks or len(self.forks) < STEPS:
                known = self.forks.get(step, float(width))
                self.forks[step] = known + (width - known) / _MEMORY


class _Book(Struct):
    format: int
    programs: dict[str, Habits]


class Learnt:
    """The habits of all programs. `folder` is asked for the first time that they are needed; None keeps them in memory
    only."""

    def __init__(self, folder: Callable[[], Path] | None = None) -> None:
        self._folder = folder
        self._programs: dict[str, Habits] = {}
        self._lock = threading.Lock()  # of the dict; held for as long as it takes to look something up
        self._unsaved = False
        self._loader: threading.Thread | None = None
        self._saver: threading.Thread | None = None

    def of(self, program: str, code: int) -> Habits | None:
        """What is known of a program by now."""
        self._begin()
        with self._lock:
            known = self._programs.get(program)
            return known if known is not None and known.code == code else None

    def learn(self, program: str, code: int, journal: Journal) -> None:
        """Add what a run has shown."""
        with self._lock:
            known = self._programs.pop(program, None)  # to its end: the oldest stand first
            if known is None or known.code != code:
                known = Habits(code)
            known.used = time.time()
            known.learn(journal)
            self._programs[program] = known
            self._unsaved = True
            while len(self._programs) > PROGRAMS:
                del self._programs[next(iter(self._programs))]
            if self._folder is None or (self._saver is not None and self._saver.is_alive()):
                return
            self._saver = threading.Thread(target=self._save_later, name="bosquet-learnt", daemon=True)
        self._saver.start()

    def _begin(self) -> None:
        if self._loader is None and self._folder is not None:
            atexit.register(self._at_exit)
            self._loader = threading.Thread(target=self.load, name="bosquet-learnt", daemon=True)
            self._loader.start()

    def load(self) -> None:
        """Read the file; what was learnt since then stays."""
        if self._folder is None:
            return
        found = self._read()
        with self._lock:
            self._programs = {**found, **self._programs}

    def save(self) -> None:
        """Write the file, with what other processes have written meanwhile."""
        if self._folder is None:
            return
        others = self._read()
        with self._lock:
            mine = self._programs
            newest = {**others, **{name: ours for name, ours in mine.items() if ours.used >= _used(others.get(name))}}
            self._unsaved = False
            kept = sorted(newest.items(), key=lambda pair: pair[1].used)[-PROGRAMS:]
            text = msgspec.json.encode(_Book(_FORMAT, dict(kept)))
        _replace(self._folder() / _FILE, text)

    def _at_exit(self) -> None:
        settled()
        if self._unsaved:
            self.save()

    def _save_later(self) -> None:
        time.sleep(SAVE_AFTER_S)
        self.save()

    def _read(self) -> dict[str, Habits]:
        assert self._folder is not None
        try:
            book = msgspec.json.decode((self._folder() / _FILE).read_bytes(), type=_Book)
        except (OSError, msgspec.MsgspecError):
            return {}
        return book.programs if book.format == _FORMAT else {}


def _key(step: str, request: int) -> str:
    return f"{step}+{min(request, 8)}" if request else step


def _used(habits: Habits | None) -> float:
    return 0.0 if habits is None else habits.used


def _replace(path: Path, content: bytes) -> None:
    """So that readers see the old file or the new one, whole. A folder that cannot be written keeps nothing."""
    fresh = path.with_name(f".{path.name}.new-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(content)
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()


def code_of(function: Callable[..., object]) -> int:
    """The same number for the same code, whatever its texts say and wherever it stands."""

    def digest(code: CodeType, start: int) -> int:
        start = zlib.crc32(code.co_code, start)
        start = zlib.crc32(" ".join((*code.co_names, *code.co_varnames)).encode(), start)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                start = digest(constant, start)
        return start

    return digest(function.__code__, 0)


# -- the one of this process ------------------------------------------------------------------------------------------

_learnt: Learnt | None = Learnt()
_place: Callable[[], Path] | None = None


def keep_in(folder: Callable[[], Path]) -> None:
    """From now on, what is learnt is kept in this folder."""
    global _place
    _place = folder
    set_learning(True)


def set_learning(wanted: bool) -> None:
    """Whether runs of programs are learnt from, and what was learnt is told to backends. It is by default. What is
    kept are names of steps and averages: how long outputs are, how often and how long after a program goes on."""
    global _learnt
    _learnt = Learnt(_place) if wanted else None


def learnt() -> Learnt | None:
    """None where nothing is learnt."""
    return _learnt
