"""The order of a measurement: each workload, in each round, on all servers in turn. Keeps every reading."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import ConfigError
from .figures import figure
from .passes import Pass, converse, run_pass
from .progress import Progress
from .target import Target
from .workloads import Workload


@dataclass(slots=True)
class Session:
    """`targets[0]` is the server that the others are compared with. `passes` holds what is known at any time;
    `left_out`, by the names of both, why a workload is not run on a server."""

    targets: Sequence[Target]
    workloads: Sequence[Workload]
    rounds: int
    profile: bool
    progress: Progress
    passes: list[Pass] = field(default_factory=list)
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)

    async def run(self) -> None:
        """Measure everything. Raises `ConfigError` when a server cannot be reached at all, `BosquetError` when one that
        is to be started does not start."""
        try:
            for workload in self.workloads:
                await self._measure(workload)
        finally:
            for target in self.targets:
                target.client.close()
            await asyncio.sleep(0)  # connections are closed by the loop's next turn

    async def _measure(self, workload: Workload) -> None:
        able = []
        for target in self.targets:
            if why := target.why_not(workload):
                self.left_out[workload.name, target.name] = why
            else:
                await target.prepare(workload)
                able.append(target)
        self._check_names()
        for target in able:
            await self._warm_up(target, workload)
        for round in range(self.rounds):
            for streamed in (False, True) if workload.has_streamed_pass else (False,):
                for target in able:
                    await self._pass(target, workload, round, streamed)

    def _check_names(self) -> None:
        names = [target.name for target in self.targets]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two servers are called {name!r}; give --against another name")

    async def _warm_up(self, target: Target, workload: Workload) -> None:
        """One conversation's first request that does not count: schemas are compiled, weights are in memory."""
        script = workload.draw(-1, False)[0]
        with target.awake():
            async for _ in converse(target, workload, script, False, 0.0):
                return

    async def _pass(self, target: Target, workload: Workload, round: int, streamed: bool) -> None:
        requests = sum(script.requests for script in workload.draw(round, streamed))
        what = f"{workload.name}, {target.name}, {'latency' if streamed else 'throughput'}, round {round + 1}"
        with target.awake(), self.progress.bar(what, requests) as advance:
            reading = await run_pass(
                target, workload, round, streamed, profile=self.profile and not streamed, on_answer=advance
            )
        self.passes.append(reading)
        self.progress.say(what, _outcome(workload, reading))


def _outcome(workload: Workload, reading: Pass) -> str:
    value = figure(workload, reading)
    failed = f", {len(reading.errors)} failed" if reading.errors else ""
    return ("no result" if value is None else f"{value:.1f} {workload.metric}") + failed
