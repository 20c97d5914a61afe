"""One pass: a workload run once against one server. Decides nothing about what the readings mean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from ...errors import Unavailable
from ...types import Message
from .answers import Answer, read
from .target import Counters, Target
from .workloads import Script, Workload


@dataclass(frozen=True, slots=True)
class Pass:
    """`seconds` from the first request to the last answer; `client_cpu_s` is what this process itself computed
    meanwhile. `steps` is how the engine's counters grew, where that was asked for and the server has them."""

    workload: str
    server: str
    round: int
    streamed: bool
    seconds: float
    client_cpu_s: float
    answers: list[Answer] = field(repr=False)
    steps: Counters | None = None

    @property
    def good(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.error is None]

    @property
    def errors(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error is not None]


async def run_pass(
    target: Target,
    workload: Workload,
    round: int,
    streamed: bool,
    *,
    profile: bool = False,
    on_answer: Callable[[], None] = lambda: None,
) -> Pass:
    """Never more than `workload.in_flight` conversations at once; a new one begins when one ends."""
    scripts = iter(workload.draw(round, streamed))
    before = await target.counters() if profile else None
    answers: list[Answer] = []
    cpu, began = time.process_time(), time.perf_counter()

    async def client() -> None:
        for script in scripts:
            async for answer in converse(target, workload, script, streamed, began):
                answers.append(answer)
                on_answer()

    async with asyncio.TaskGroup() as clients:
        for _ in range(workload.in_flight):
            clients.create_task(client())
    cpu_s = time.process_time() - cpu
    seconds = max(answer.sent + answer.seconds for answer in answers)
    after = await target.counters() if before is not None else None
    steps = {name: after[name] - before[name] for name in before} if before is not None and after is not None else None
    return Pass(workload.name, target.name, round, streamed, seconds, cpu_s, answers, steps)


async def converse(
    target: Target, workload: Workload, script: Script, streamed: bool, began: float
) -> AsyncIterator[Answer]:
    """The answers to one script, up to the first that is an error."""
    if isinstance(script.opening, str):
        yield await _one(target, workload, script.opening, streamed, began)
        return
    said = list(script.opening)
    for reply in (*script.replies, None):
        answer = await _one(target, workload, said, streamed, began)
        yield answer
        if answer.error is not None or reply is None:
            return
        said += [Message(role="assistant", content=answer.text), Message(role="user", content=reply)]


async def _one(target: Target, workload: Workload, said: str | list[Message], streamed: bool, began: float) -> Answer:
    sent = time.perf_counter()
    try:
        reply = await target.ask(workload, said, streamed)
    except Unavailable as error:
        return Answer(sent - began, time.perf_counter() - sent, error=str(error))
    return read(reply, began, streamed)
