"""A conversation in the terminal with any back end of the language.

Knows nothing of engines or HTTP. What the model writes is never trusted: control characters are shown, not obeyed.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from rich.console import Console

from ..errors import BosquetError, ConfigError, ModelLoadError, PromptTooLong
from ..types import Call, Chunk, Message, Origin, SamplingParams, Segment

T = TypeVar("T")

HELP = "/reset starts over, /quit or Ctrl-D ends, Ctrl-C stops an answer"
ORIGIN = Origin(program="chat")


class Run(Protocol):
    """Starts a coroutine on the event loop that the back end lives on, in another thread."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> Future[T]: ...


class Backend(Protocol):
    """What is asked of a back end that carries messages."""

    @property
    def capabilities(self) -> frozenset[str]: ...

    def generate(self, call: Call) -> AsyncGenerator[Chunk, None]: ...


class TokenBackend(Backend, Protocol):
    """What is asked besides of one that carries token ids."""

    async def text_start(self) -> list[int]: ...

    async def encode(self, segments: Sequence[Segment]) -> list[int]: ...

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[Segment]: ...


@dataclass(slots=True)
class Answer:
    """One answer as it grows, and what is known of it."""

    text: str = ""
    tokens: int = 0
    cached: int | None = None
    seconds: float = 0.0

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.tokens = self.tokens + len(chunk.ids) if chunk.completion_tokens is None else chunk.completion_tokens
        self.cached = self.cached if chunk.cached_tokens is None else chunk.cached_tokens

    @property
    def figures(self) -> str:
        """Such as `(12 tokens, 240 cached, 31 tok/s)`."""
        parts = [f"{self.tokens} token{'' if self.tokens == 1 else 's'}"]
        if self.cached is not None:
            parts.append(f"{self.cached} cached")
        if self.seconds > 0:
            parts.append(f"{self.tokens / self.seconds:.0f} tok/s")
        return f"({', '.join(parts)})"


@dataclass(slots=True)
class Conversation:
    """What has been said, and how answers are asked for."""

    backend: Backend
    sampling: SamplingParams
    system: str
    messages: list[Message] = field(default_factory=list)

    def reset(self) -> None:
        self.messages = [Message(role="system", content=self.system)] if self.system else []

    async def load(self) -> None:
        """Wait until a back end that loads a model has done so."""
        if (tokens := self._tokens()) is not None:
            await tokens.text_start()

    async def answer(self, put: Callable[[Chunk], None]) -> None:
        """Generate the answer to the messages so far."""
        async with aclosing(self.backend.generate(await self._call())) as chunks:
            async for chunk in chunks:
                put(chunk)

    async def _call(self) -> Call:
        tokens = self._tokens()
        if tokens is None:
            return Call(sampling=self.sampling, origin=ORIGIN, messages=list(self.messages))
        segments = await tokens.render(self.messages, add_generation_prompt=True)
        return Call(sampling=self.sampling, origin=ORIGIN, ids=await tokens.encode(segments))

    def _tokens(self) -> TokenBackend | None:
        return cast(TokenBackend, self.backend) if "tokens" in self.backend.capabilities else None


def converse(
    backend: Backend,
    *,
    system: str,
    max_tokens: int,
    temperature: float,
    run: Run,
    console: Console | None = None,
    ask: Callable[[str], str] = input,
) -> None:
    """Talk until the input ends. `system` may be empty. Raises `ConfigError` for a wrong setting, `ModelLoadError`."""
    if max_tokens < 1:
        raise ConfigError("--max-tokens must be at least 1")
    if temperature < 0:
        raise ConfigError("--temperature must not be negative")
    console = console or Console()
    sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    conversation = Conversation(backend, sampling, whole_characters(system))
    conversation.reset()
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # gives `input` a history and line editing
    with console.status("loading") if console.is_terminal else contextlib.nullcontext():
        run(conversation.load()).result()
    console.print(HELP, style="dim", highlight=False)
    for said in _lines(ask, console):
        if said == "/reset":
            conversation.reset()
            console.print("a new conversation", style="dim")
        else:
            _turn(conversation, said, console, run)


def _lines(ask: Callable[[str], str], console: Console) -> Iterator[str]:
    """What the user says, up to /quit or the end of the input."""
    prompt = "> " if console.is_terminal else ""
    while True:
        try:
            said = whole_characters(ask(prompt)).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            console.print(f"\n{HELP}", style="dim", highlight=False)
            continue
        if said == "/quit":
            return
        if said.startswith("/") and said != "/reset":
            console.print(f"no command {clean(said)}: {HELP}", style="dim", highlight=False, markup=False)
        elif said:
            yield said


def _turn(conversation: Conversation, said: str, console: Console, run: Run) -> None:
    """One question and its answer. An answer that was stopped is kept as far as it went; a failed turn is undone."""
    conversation.messages.append(Message(role="user", content=said))
    answer, began = Answer(), time.perf_counter()
    chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
    work = run(conversation.answer(chunks.put))
    work.add_done_callback(lambda _: chunks.put(None))
    stopped = False
    while True:
        try:
            chunk = chunks.get()
            if chunk is None:
                break
            if not stopped:
                answer.add(chunk)
                console.print(clean(chunk.text), end="", markup=False, highlight=False, emoji=False, soft_wrap=True)
        except KeyboardInterrupt:
            stopped = True
            work.cancel()
    answer.seconds = time.perf_counter() - began
    error = _error(work)
    if answer.text:
        console.print()
    if error is not None:
        console.print(f"{error}{_hint(error)}", style="red", markup=False, highlight=False, emoji=False)
    else:
        console.print(answer.figures + (" stopped" if stopped else ""), style="dim", highlight=False)
    if error is None and answer.text:
        conversation.messages.append(Message(role="assistant", content=answer.text))
    else:
        conversation.messages.pop()


def _error(work: Future[None]) -> BosquetError | None:
    """What ended the answer early and is no reason to leave."""
    try:
        work.result()
    except ModelLoadError:
        raise
    except BosquetError as error:
        return error
    except CancelledError:
        pass
    return None


def _hint(error: BosquetError) -> str:
    return "; /reset starts over" if isinstance(error, PromptTooLong) else ""


def whole_characters(text: str) -> str:
    """The text with U+FFFD for what is no character: bytes of the input, or of an option, that are not UTF-8."""
    return _HALF.sub("\ufffd", text)


_HALF = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with control characters made visible, so that no terminal obeys them. Line feeds and tabs stay."""
    return text.translate(_VISIBLE)


_VISIBLE = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},  # the Unicode pictures of controls
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
