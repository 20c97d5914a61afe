"""One pass: a workload run once against one server. Decides nothing about what the readings mean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from ...errors import Unavailable
from ...types import Message
from .answers import Answer, read
from .target import Counters, Target
from .workloads import Level, Script, Tree, Workload

Asker = Callable[[str | list[Message], int], Awaitable[Answer]]
"""Sends one request for so many tokens."""


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
    target: Target, workload: Workload, script: Script | Tree, streamed: bool, began: float
) -> AsyncIterator[Answer]:
    """The answers to one script, up to the first that is an error; of a tree, up to the level that has one."""

    async def ask(said: str | list[Message], tokens: int) -> Answer:
        sent = time.perf_counter()
        try:
            reply = await target.ask(workload, said, streamed, tokens)
        except Unavailable as error:
            return Answer(sent - began, time.perf_counter() - sent, error=str(error))
        return replace(read(reply, began, streamed), asked=tokens)

    tokens = target.tokens(workload)
    answers = _grown(ask, script, tokens) if isinstance(script, Tree) else _talked(ask, script, tokens)
    async for answer in answers:
        yield answer


async def _talked(ask: Asker, script: Script, tokens: int) -> AsyncIterator[Answer]:
    if isinstance(script.opening, str):
        yield await ask(script.opening, tokens)
        return
    said = list(script.opening)
    for reply in (*script.replies, None):
        answer = await ask(said, tokens)
        yield answer
        if answer.error is not None or reply is None:
            return
        said += [Message(role="assistant", content=answer.text), Message(role="user", content=reply)]


async def _grown(ask: Asker, tree: Tree, tokens: int) -> AsyncIterator[Answer]:
    paths = [list(tree.opening)]
    for level in tree.levels:
        thoughts = await asyncio.gather(
            *(_thought(ask, tree, path, hint, tokens) for path, hint in _branches(paths, level))
        )
        for answer in (answer for _, answers in thoughts for answer in answers):
            yield answer
        if any(answers[-1].error is not None for _, answers in thoughts):
            return
        paths = [thoughts[number][0] for number in level.kept]


def _branches(paths: Sequence[list[Message]], level: Level) -> list[tuple[list[Message], str]]:
    each = len(level.hints) // len(paths)
    return [(paths[number // each], hint) for number, hint in enumerate(level.hints)]


async def _thought(
    ask: Asker, tree: Tree, path: list[Message], hint: str, tokens: int
) -> tuple[list[Message], list[Answer]]:
    """The path with the thought that follows, and what was answered: the thought and its score, or an error."""
    said = [*path, Message(role="user", content=hint)]
    thought = await ask(said, tokens)
    if thought.error is not None:
        return said, [thought]
    said.append(Message(role="assistant", content=thought.text))
    score = await ask([*said, Message(role="user", content=tree.score)], tree.score_tokens)
    return said, [thought, score]
