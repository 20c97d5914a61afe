"""The language's own event loop: one thread in which every call of every program runs.

Knows nothing of programs or backends. User code of sync programs never runs here, so nothing blocks it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

THREADS = 64
"""Most sync program functions that run at the same time besides the caller's own thread."""


FAREWELL_S = 1.0
"""How long the interpreter's end waits for `see_off`."""


class Closable(Protocol):
    async def aclose(self) -> None: ...


class _Background:
    """A loop in a daemon thread, and a pool for sync functions. Made on first use, once a process."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="bosquet-program")
        self.closables: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._posted: deque[tuple[Callable[[], object], Context]] = deque()
        self._woken = False
        self.farewells: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve, name="bosquet-loop", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def post(self, work: Callable[[], object]) -> None:
        self._posted.append((work, copy_context()))
        if not self._woken:  # to wake a thread costs more than most of what is posted
            self._woken = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        while self._posted:
            work, context = self._posted.popleft()
            context.run(work)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _wind_down(self) -> None:
        if self.farewells:
            await asyncio.wait(self.farewells, timeout=FAREWELL_S)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for closable in list(self.closables):
            await closable.aclose()
        await self.loop.shutdown_asyncgens()

    def _stop(self) -> None:
        if self is not _background:
            return  # in a forked child
        asyncio.run_coroutine_threadsafe(self._wind_down(), self.loop).result(timeout=5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)
        self.loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """With uvloop, where there is one, a turn of the loop takes a fifth of the time, and every call takes a few."""
    try:
        import uvloop  # heavy, and only for those who run something
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_background: _Background | None = None
_lock = threading.Lock()


def _get() -> _Background:
    global _background
    if _background is None:
        with _lock:
            if _background is None:
                _background = _Background()
    return _background


def _forget() -> None:
    """In a forked child, which has the object but not the thread."""
    global _background, _lock
    _background, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def language_loop() -> asyncio.AbstractEventLoop:
    """The loop, started if need be."""
    return _get().loop


def function_threads() -> ThreadPoolExecutor:
    """The threads in which sync functions run when their caller must not be blocked."""
    return _get().pool


def close_at_exit(closable: Closable) -> None:
    """Have `closable.aclose()` awaited on the loop before the interpreter ends, if it still lives then."""
    _get().closables.add(closable)


def see_off(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it on the loop, without anybody waiting for it; the interpreter does for a moment before it ends. Called on
    the loop."""
    farewells = _get().farewells
    task = language_loop().create_task(coroutine)
    farewells.add(task)
    task.add_done_callback(farewells.discard)


def post(work: Callable[[], object]) -> None:
    """Call it on the loop, from any thread, in the context of now. What is posted is called in order."""
    _get().post(work)


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run it on the loop, from any thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, language_loop())


async def hop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it on the language's loop and await it on the caller's."""
    if asyncio.get_running_loop() is language_loop():
        return await coroutine
    return await asyncio.wrap_future(submit(coroutine))


def settled() -> None:
    """Wait, for a moment at most, until the loop has done what it was told up to now. Not called on the loop."""
    if _background is not None and _background.loop.is_running():
        done = threading.Event()
        _background.loop.call_soon_threadsafe(done.set)
        done.wait(FAREWELL_S)


def inside_a_loop() -> bool:
    """Whether the calling thread runs an event loop, so that blocking it would be wrong."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
