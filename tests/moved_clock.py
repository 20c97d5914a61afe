"""Time that a test moves: what happens late is brought about, not waited for, so that no pause has to be short."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvloop

from bosquet.lang.loop import language_loop

TURNS = 10
"""Of the loop, after the clock was put forward: until what the timers woke has done its part."""


class Clock:
    """That of an event loop. It goes on as ever, and can be put forward: timers that are due then go off at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ahead = 0.0
        self._loop: Any = loop
        self._time, self._later = loop.time, loop.call_later
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._loop.time, self._loop.call_later, self._loop.call_at = self.time, self._call_later, self._call_at
        self._loop._timer_handle_cancelled = self._forget

    def time(self) -> float:
        return self._time() + self.ahead

    def move(self, seconds: float) -> None:
        """Put it forward, from the loop's own thread."""
        self.ahead += seconds
        due = [timer for timer in self._timers.values() if timer.when() <= self.time()]
        for timer in sorted(due, key=asyncio.TimerHandle.when):
            self._loop.call_soon(self._ring, timer)

    def forward(self, seconds: float) -> None:
        """Put it forward, from another thread. Returns when what is due then has happened."""
        asyncio.run_coroutine_threadsafe(self._moved(seconds), self._loop).result(60)

    async def _moved(self, seconds: float) -> None:
        self.move(seconds)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def _call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self._call_at(self.time() + delay, callback, *args, context=context)

    def _call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self._loop, context)
        self._timers[id(timer)] = timer
        self._later(max(0.0, when - self.time()), self._ring, timer)
        return timer

    def _ring(self, timer: asyncio.TimerHandle) -> None:
        if self._timers.get(id(timer)) is timer:
            self._forget(timer)
            timer._run()  # type: ignore[attr-defined]

    def _forget(self, timer: asyncio.TimerHandle) -> None:
        self._timers.pop(id(timer), None)

    def release(self) -> None:
        """The loop keeps its own time again."""
        for name in ("time", "call_later", "call_at"):
            delattr(self._loop, name)


def clocked_loop() -> tuple[asyncio.AbstractEventLoop, Clock]:
    """A new loop, and its clock."""
    loop = uvloop.new_event_loop()
    return loop, Clock(loop)


@contextlib.contextmanager
def language_clock() -> Iterator[Clock]:
    """The clock of the loop that runs the calls of programs."""
    clock = Clock(language_loop())
    try:
        yield clock
    finally:
        clock.release()
