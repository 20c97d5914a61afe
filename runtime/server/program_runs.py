"""The runs that are open over HTTP: their handles cannot be guessed, they are bounded for each tenant, and those that
nobody uses are closed.

Knows nothing of how steps are carried out.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from ...errors import BosquetError, BranchBusy, Overloaded, UnknownHandle
from ...prompts.template import Layout
from ...prompts.text_side import TextSide
from ..engine_api import EngineApi
from .program_branch import Branch
from .program_sizes import BRANCH_BYTES, Holdings

MAX_RUNS = 256
"""Runs that a tenant may have open."""
MAX_BRANCHES = 1024
"""Branches that a run may have."""
MAX_BYTES = 128 << 20
"""What the branches of a tenant's runs may hold before no more is taken in; what branches share counts once."""
LAYOUTS = 4
"""Answers of the chat template that a run keeps. Their size is that of its turns, and counted with them."""
IDLE_S = 600.0
"""How long a run is kept without a step, unless it says otherwise."""
SWEEP_S = 5.0
"""How often runs that nobody uses are looked for."""


class Closable(Protocol):
    """A generation under way."""

    async def close(self) -> None: ...


class Hold:
    """Says that a branch is in the middle of a step, until it is let go."""

    def __init__(self, run: OpenRun, branch: Branch) -> None:
        self._run = run
        self._branch: Branch | None = branch
        branch.held = True
        run.holds += 1

    def let_go(self) -> None:
        """Any number of times."""
        branch, self._branch = self._branch, None
        if branch is not None:
            branch.held = False
            self._run.holds -= 1
            self._run.note(branch)


class OpenRun:
    """A run. `generations` are under way."""

    def __init__(self, tenant: str, name: str, side: TextSide, idle_s: float, clock: Callable[[], float]) -> None:
        self.id = f"run-{secrets.token_urlsafe(18)}"
        self.tenant = tenant
        self.name = name
        self.side = side
        self.layout = Layout(side, LAYOUTS)
        self.idle_s = idle_s
        self.closed = False
        self.generations: set[Closable] = set()
        self.holds = 0
        self.branches: dict[str, Branch] = {}
        self._holdings = Holdings()
        self._clock = clock
        self.used = clock()
        self.add(Branch())

    def branch(self, name: str | None, field: str = "branch") -> Branch:
        """The one of this name; None: the main branch. Raises UnknownHandle."""
        found = self.branches.get(name or "")
        if found is None:
            raise UnknownHandle(f"{field}: this run has no branch {(name or '')[:64]!r}, or it has been joined", field)
        return found

    def hold(self, branch: Branch, field: str = "branch") -> Hold:
        """Begin a step of the branch. Raises BranchBusy, and UnknownHandle for a run that was closed meanwhile."""
        if self.closed:
            raise closed(self.id)
        if branch.held:
            raise BranchBusy(f"{field}: branch {branch.path!r} is in the middle of another step", field)
        return Hold(self, branch)

    @contextmanager
    def step(self, branch: Branch) -> Iterator[None]:
        """Holds the branch meanwhile."""
        hold = self.hold(branch)
        try:
            yield
        finally:
            hold.let_go()

    def check_room(self, branches: int) -> None:
        """Raises Overloaded if the run cannot have so many branches more."""
        if len(self.branches) + branches > MAX_BRANCHES:
            raise Overloaded(f"a run has at most {MAX_BRANCHES} branches: join some")

    def add(self, branch: Branch) -> None:
        """One that was forked."""
        self.branches[branch.path] = branch
        self.note(branch)

    def remove(self, branch: Branch) -> None:
        """One that is over."""
        del self.branches[branch.path]
        self._holdings.forget(branch)

    def note(self, branch: Branch) -> None:
        """The branch has changed."""
        self.used = self._clock()
        if branch.path in self.branches:
            self._holdings.note(branch)

    @property
    def size(self) -> int:
        """About how many bytes its branches hold."""
        return self._holdings.size

    @property
    def idle(self) -> bool:
        """Whether nobody has used it for too long."""
        return not self.holds and self._clock() - self.used > self.idle_s


def closed(handle: str) -> UnknownHandle:
    return UnknownHandle(f"the run {handle} was closed")


class Programs:
    """All of them. Lives on the event loop."""

    def __init__(self, engine: EngineApi, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._runs: dict[str, OpenRun] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, tenant: str, name: str, side: TextSide, idle_s: float | None) -> OpenRun:
        """A new run with a main branch. Raises Overloaded."""
        self.sweep()
        if sum(run.tenant == tenant for run in self._runs.values()) >= MAX_RUNS:
            raise Overloaded(f"{MAX_RUNS} runs are open: close those that are over")
        run = OpenRun(tenant, name, side, IDLE_S if idle_s is None else idle_s, self._clock)
        self._runs[run.id] = run
        self._watch()
        return run

    def find(self, tenant: str, handle: str) -> OpenRun:
        """The tenant's run. Raises UnknownHandle."""
        run = self._runs.get(handle)
        if run is None or run.tenant != tenant or run.idle:
            raise UnknownHandle(f"there is no open run {handle[:64]!r}: it was closed, has expired, or never was")
        run.used = self._clock()
        return run

    def check_room(self, tenant: str, size: int = 0, *, branches: int = 0) -> None:
        """Raises Overloaded if what the tenant's runs hold would be too much with `size` bytes and so many branches
        more."""
        held = sum(run.size for run in self._runs.values() if run.tenant == tenant)
        if held + size + branches * BRANCH_BYTES > MAX_BYTES:
            raise Overloaded(f"open runs hold {held >> 20} MiB, at most {MAX_BYTES >> 20}: close those that are over")

    async def close(self, run: OpenRun) -> None:
        """Cancel what is under way in the run, and forget it."""
        if not run.closed:
            self._forget(run)
            await self._end(run)

    async def end(self, tenant: str, handle: str) -> None:
        """No request of this run will come any more, be it open here or only a name that requests carried."""
        run = self._runs.get(handle)
        if run is not None and run.tenant == tenant:
            await self.close(run)
        else:
            await self._tell_end(tenant, handle)

    def sweep(self) -> None:
        """Close what nobody has used for too long."""
        for run in [run for run in self._runs.values() if run.idle]:
            self._forget(run)
            task = asyncio.create_task(self._end(run))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _forget(self, run: OpenRun) -> None:
        run.closed = True
        del self._runs[run.id]

    async def _end(self, run: OpenRun) -> None:
        for generation in tuple(run.generations):
            await generation.close()
        await self._tell_end(run.tenant, run.id)

    async def _tell_end(self, tenant: str, run: str) -> None:
        with suppress(BosquetError):  # an engine that is gone keeps nothing
            await self._engine.end_run(tenant, run)

    def _watch(self) -> None:
        """Sweep now and then, as long as there are runs."""
        if self._timer is None and self._runs:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._swept)

    def _swept(self) -> None:
        self._timer = None
        self.sweep()
        self._watch()
