"""The measured programs as one writes them on a client of the OpenAI protocol: every call sends the whole conversation.

What `lang.classics` has in the language, with the same names, arguments, texts and numbers of tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ...errors import BosquetError
from ...types import Message
from .answers import Answer, read
from .target import Target, request

Talk = list[Message]


class Client:
    """Asks one server, and keeps its answers."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.answers: list[Answer] = []

    async def ask(self, talk: Talk, tokens: int, **sampling: Any) -> str:
        """The answer to a conversation: exactly so many tokens. Raises `BosquetError`."""
        path, body = request(self._target.model, talk, tokens, None, False)
        began = time.perf_counter()
        reply = await self._target.client.post(path, msgspec.json.encode({**body, **sampling}))
        answer = replace(read(reply, began, False), asked=tokens)
        if answer.error is not None:
            raise BosquetError(f"{self._target.name}: {answer.error}")
        self.answers.append(answer)
        return answer.text


def _system(content: str) -> Message:
    return Message(role="system", content=content)


def _user(content: str) -> Message:
    return Message(role="user", content=content)


def _assistant(content: str) -> Message:
    return Message(role="assistant", content=content)


async def tree_of_thought(
    client: Client, problem: str, hints: Sequence[str], depth: int, tokens: int, rate: str
) -> None:
    async def grow(talk: Talk, left: int) -> None:
        if not left:
            await client.ask([*talk, _user(rate)], 4)
            return
        await asyncio.gather(*(think([*talk, _user(hint)], left) for hint in hints))

    async def think(talk: Talk, left: int) -> None:
        thought = await client.ask(talk, tokens)
        await grow([*talk, _assistant(thought)], left - 1)

    await grow([_system(problem)], depth)


async def skeleton_of_thought(client: Client, task: str, points: Sequence[str], tokens: int, whole: str) -> None:
    talk = [_user(task)]
    talk.append(_assistant(await client.ask(talk, tokens)))
    texts = await asyncio.gather(*(client.ask([*talk, _user(point)], tokens) for point in points))
    await client.ask([*talk, _user("\n".join([whole, *texts]))], tokens)


async def judge(client: Client, rules: str, essay: str, sides: Sequence[str], tokens: int, verdict: str) -> None:
    talk = [_system(rules), _user(essay)]
    judgements = await asyncio.gather(*(client.ask([*talk, _user(side)], tokens) for side in sides))
    await client.ask([*talk, _user("\n".join([verdict, *judgements]))], tokens)


async def vote(client: Client, examples: str, question: str, chains: int, tokens: int, agree: str) -> None:
    talk = [_system(examples), _user(question)]
    # Without the program's seeds: vLLM's build for processors ends on one that meets a prompt cut into chunks.
    said = await asyncio.gather(*(client.ask(talk, tokens, temperature=0.8) for _ in range(chains)))
    await client.ask([*talk, _user("\n".join([agree, *said]))], 8)


async def react(
    client: Client, examples: str, question: str, found: Sequence[str], waits: Sequence[float], tokens: int
) -> None:
    talk = [_system(examples), _user(question)]
    for observation, wait in zip(found, waits, strict=True):
        talk.append(_assistant(await client.ask(talk, tokens)))
        await asyncio.sleep(wait)
        talk.append(_user(observation))
    await client.ask(talk, tokens)


async def chat(client: Client, system: str, questions: Sequence[str], tokens: int) -> None:
    talk = [_system(system)]
    for question in questions:
        talk.append(_user(question))
        talk.append(_assistant(await client.ask(talk, tokens)))


PROGRAMS: Mapping[str, Callable[..., Awaitable[None]]] = {
    each.__name__: each for each in (tree_of_thought, skeleton_of_thought, judge, vote, react, chat)
}
