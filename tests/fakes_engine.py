"""An engine without a model, and the text side that fits it: what the server needs, told in advance to the last token.

The vocabulary is the 256 bytes and a few special tokens. Outputs come from a script or, without one, from a hash of
prompt, seed and choice. Steps can be delayed, tokens come in pieces of any size, requests can be refused, the engine
can die.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Set
from itertools import cycle
from typing import Any

from bosquet.errors import BosquetError, EngineDied, Overloaded, TemplateFailed, Unavailable
from bosquet.runtime.cache_view import Reuse, Tree
from bosquet.runtime.server.services import Text, TextServices, Tokenizer
from bosquet.runtime.text_stream import TextStream
from bosquet.runtime.trace import ChoiceTrace, Prefill, Trace
from bosquet.types import (
    EngineState,
    FinishReason,
    ModelInfo,
    Output,
    Relaxed,
    Request,
    Segment,
    Stats,
    StopMatch,
    TokenLogprob,
)

START, END, BEGIN = 256, 257, 258  # <|im_start|>, <|im_end|> and <s>
SPECIALS = {START: b"<|im_start|>", END: b"<|im_end|>", BEGIN: b"<s>"}
VOCABULARY = 260
_ID_OF = {text: token for token, text in SPECIALS.items()}
_SPECIAL = re.compile(b"(" + b"|".join(re.escape(text) for text in _ID_OF) + b")")

Script = Callable[[Request, int], Sequence[int]]


def info(**changes: Any) -> ModelInfo:
    facts: dict[str, Any] = {
        "name": "toy", "folder": "", "vocab_size": VOCABULARY, "context_length": 512, "dtype": "none",
        "device": "none", "kernels": "none", "pages": 64, "max_waiting": 64, "end_ids": (END,),
    }  # fmt: skip
    return ModelInfo(**(facts | changes))


class ByteTokenizer:
    """One token a byte; special strings become special tokens only where that is asked for."""

    size = VOCABULARY
    special_ids = control_ids = frozenset(SPECIALS)
    token_bytes = tuple(SPECIALS.get(token) or (bytes([token]) if token < 256 else b"") for token in range(VOCABULARY))

    def __init__(self, add_bos: bool = False) -> None:
        self.add_bos = add_bos

    def encode_segments(self, segments: Sequence[Segment], *, bos: bool = False) -> list[int]:
        ids = [BEGIN] if bos else []
        for text, control in segments:
            ids += self._encode(text.encode(), control)
        return ids

    def split_controls(self, segments: Sequence[Segment]) -> list[Segment]:
        names = {self.bytes_of(token).decode() for token in self.control_ids}
        cut = re.compile("(" + "|".join(map(re.escape, sorted(names))) + ")")
        pieces = [
            Segment(part, control and part in names)
            for text, control in segments
            for part in (cut.split(text) if control else [text])
        ]
        return [piece for piece in pieces if piece.text]

    def _encode(self, raw: bytes, control: bool) -> list[int]:
        if not control:
            return list(raw)
        ids: list[int] = []
        for part in _SPECIAL.split(raw):
            ids += [_ID_OF[part]] if part in _ID_OF else list(part)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, at_start: bool = False) -> str:
        shown = [token for token in ids if token < 256 or not skip_special]
        return b"".join(self.bytes_of(token) for token in shown).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        return self.token_bytes[token]

    def id_of_special(self, text: str) -> int | None:
        return _ID_OF.get(text.encode())


class ChatMl:
    """The ChatML template, written out. A system message "fail" makes it refuse."""

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> list[Segment]:
        segments = []
        for message in messages:
            if message["content"] == "fail":
                raise TemplateFailed("the template does not like this")
            segments.append(Segment(f"<|im_start|>{message['role']}\n", True))
            content = message["content"]
            parts = [content] if isinstance(content, str) else [part["text"] for part in content]
            segments.append(Segment("\n".join(parts), False))
            segments.append(Segment("<|im_end|>\n", True))
        if continue_final_message:
            segments.pop()
        if add_generation_prompt:
            segments.append(Segment("<|im_start|>assistant\n", True))
        return segments


def text_services(add_bos: bool = False, **changes: Any) -> TextServices:
    tokenizer = ByteTokenizer(add_bos)

    def stream(stop: Sequence[bytes], shown: Set[int]) -> TextStream:
        return TextStream(tokenizer, stop, shown=shown)

    return TextServices(Text(tokenizer, ChatMl(), info(**changes), stream))


def says(*texts: str, end: bool = True) -> Script:
    """Choice i says texts[i mod len], then ends."""
    return lambda request, choice: [*texts[choice % len(texts)].encode(), *([END] if end else [])]


def hashed(request: Request, choice: int) -> list[int]:
    """Printable tokens that depend on prompt, seed and choice, without an end."""
    key = repr((request.ids, request.sampling.seed or 0, choice)).encode()
    return [32 + byte % 95 for byte in hashlib.shake_128(key).digest(min(request.sampling.max_tokens, 65536))]


def logprob_of(token: int, top: int) -> TokenLogprob:
    """A made-up log-probability that a test can work out."""
    return TokenLogprob(token, -token / 256, [((token + k) % 256, -k - 1.0) for k in range(top)])


class FakeEngine:
    """EngineApi. `pieces` are the numbers of tokens a step, repeated; `tokenizer` tells the bytes of tokens, for stop
    strings; `requests` and `cancelled` record what it saw."""

    def __init__(
        self,
        script: Script = hashed,
        *,
        delay: float = 0.0,
        pieces: Iterable[int] = (1,),
        reject: BosquetError | None = None,
        capacity: int | None = None,
        honest_deadline: bool = True,
        clock: Callable[[], float] = time.monotonic,
        tokenizer: Tokenizer | None = None,
        relaxed: Sequence[Relaxed] = (),
        **changes: Any,
    ) -> None:
        self.script = script
        self.delay = delay
        self.pieces = tuple(pieces)
        self.reject = reject
        self.capacity = capacity
        self.accepts = True  # while it is false, requests wait to be accepted
        self.asked = 0  # requests, accepted or not
        self.honest_deadline = honest_deadline
        self.clock = clock
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        self.relaxed = tuple(relaxed)
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.finished: list[str] = []
        self.running: set[str] = set()
        self.ended: list[tuple[str, str]] = []  # runs
        self.incarnation = 1
        self.state: EngineState = "ready"
        self.numbers = Stats()
        self._info = info(**changes)
        self.on_trace: Callable[[Trace], None] | None = None
        self._died = asyncio.Event()

    @property
    def info(self) -> ModelInfo:
        if self.state == "starting":
            raise Unavailable("starting")
        return self._info

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self._info.end_ids

    async def submit(self, request: Request) -> FakeStream:
        self.asked += 1
        await asyncio.sleep(0)
        while not self.accepts:
            await asyncio.sleep(0.001)
        if self.state != "ready":
            raise Unavailable(f"the engine is {self.state}")
        if self.reject is not None:
            raise self.reject
        if self.capacity is not None and len(self.running) >= self.capacity:
            raise Overloaded("the queue is full", retry_after=3.2)
        cached = max((_shared(request.ids, before.ids) for before in self.requests), default=0)
        self.requests.append(request)
        self.running.add(request.id)
        self.numbers.requests += 1
        self.numbers.prompt_tokens += len(request.ids)
        self.numbers.cached_tokens += min(cached, len(request.ids) - 1)
        return FakeStream(self, request, min(cached, len(request.ids) - 1))

    async def end_run(self, tenant: str, run: str) -> None:
        self.ended.append((tenant, run))

    async def stats(self) -> Stats:
        if self.state != "ready":
            raise Unavailable(f"the engine is {self.state}")
        self.numbers.incarnation = self.incarnation
        self.numbers.running = len(self.running)
        return self.numbers

    async def tree(self, tenant: str | None = None) -> Tree:
        return Tree([], 0, 64, 0, 64)

    async def reuse(self) -> Reuse:
        return Reuse([], 64, 0, 1)

    def die(self) -> None:
        """The engine process ends; every stream raises EngineDied."""
        self.state = "restarting"
        self._died.set()

    def restart(self) -> None:
        self._died = asyncio.Event()
        self.incarnation += 1
        self.running.clear()
        self.state = "ready"

    async def pause(self) -> None:
        """One step's time. Raises EngineDied."""
        if self.delay:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._died.wait(), self.delay)
        else:
            await asyncio.sleep(0)
        if self._died.is_set():
            raise EngineDied("the engine process ended")


class FakeStream:
    """The outputs of one request, all choices in step."""

    def __init__(self, engine: FakeEngine, request: Request, cached: int) -> None:
        self._engine = engine
        self._request = request
        self._cached = cached
        self._cancelled = asyncio.Event()
        self._generated = [0] * request.sampling.n
        self._began = engine.clock()

    @property
    def relaxed(self) -> tuple[Relaxed, ...]:
        return self._engine.relaxed

    async def cancel(self) -> None:
        if self._request.id in self._engine.running:
            self._engine.running.discard(self._request.id)
            self._engine.cancelled.append(self._request.id)
            self._engine.numbers.cancelled += 1
            self._cancelled.set()
            self._tell("abort")

    def _tell(self, finish: FinishReason | None) -> None:
        """The engine's record: admitted at once, with what is not cached computed in one pass."""
        if self._engine.on_trace is None or self._engine._died.is_set():
            return
        request, seconds = self._request, self._engine.clock() - self._began
        computed = len(request.ids) - self._cached
        choices = [
            ChoiceTrace(
                choice=choice, admitted=0.0, first_token=0.0 if generated else None, ended=seconds, finish=finish,
                cached=self._cached, computed=computed, generated=generated, prefills=[Prefill(computed, 0.0, 0.0)],
            )
            for choice, generated in enumerate(self._generated)
        ]  # fmt: skip
        arrival = time.time() - seconds
        self._engine.on_trace(
            Trace(
                request=request.id, origin=request.origin, arrival=arrival, prompt_tokens=len(request.ids),
                choices=choices,
            )
        )  # fmt: skip

    async def __aiter__(self) -> AsyncIterator[list[Output]]:
        request, engine = self._request, self._engine
        began = self._began = engine.clock()
        flows = [_choice_outputs(engine, request, choice, self._cached) for choice in range(request.sampling.n)]
        live = dict(enumerate(flows))
        while live and not self._cancelled.is_set():
            await engine.pause()
            late = request.timeout_s is not None and engine.clock() - began > request.timeout_s
            if late and engine.honest_deadline:
                engine.running.discard(request.id)
                self._tell("abort")
                reason = ("deadline_exceeded", "the request's time is over")
                yield [Output(request.id, choice, [], finish="abort", error=reason) for choice in live]
                return
            outputs = [next(flow) for flow in live.values()]
            for output in outputs:
                engine.numbers.generated_tokens += len(output.tokens)
                self._generated[output.choice] += len(output.tokens)
                if output.finish is not None:
                    del live[output.choice]
            if not live:
                engine.running.discard(request.id)
                engine.finished.append(request.id)
                engine.numbers.finished += 1
                self._tell(outputs[-1].finish)
            yield outputs


def _choice_outputs(engine: FakeEngine, request: Request, choice: int, cached: int) -> Iterable[Output]:
    sampling = request.sampling
    tokens, finish, stop = _finish(list(engine.script(request, choice)), request, engine)
    scores = None
    if sampling.prompt_logprobs is not None and choice == 0:
        scores = [logprob_of(t, sampling.prompt_logprobs) for t in request.ids[sampling.prompt_logprobs_from :]]
    sizes = cycle(engine.pieces)
    at = 0
    while True:
        size = max(1, next(sizes))
        part = tokens[at : at + size]
        at += size
        last = at >= len(tokens)
        yield Output(
            request.id, choice, part,
            logprobs=None if sampling.logprobs is None else [logprob_of(t, sampling.logprobs) for t in part],
            finish=finish if last else None, stop=stop if last else None,
            cached_tokens=cached, prompt_logprobs=scores,
        )  # fmt: skip
        scores = None
        if last:
            return


def _finish(tokens: list[int], request: Request, engine: FakeEngine) -> tuple[list[int], Any, StopMatch | None]:
    """Cut a script where the engine would stop."""
    sampling = request.sampling
    ends = (() if sampling.ignore_eos else engine.end_ids) + sampling.stop_token_ids
    raw = b""
    for count, token in enumerate(tokens[: sampling.max_tokens], 1):
        if token in ends:
            return tokens[:count], "stop", StopMatch(token=token)
        if token not in engine.tokenizer.special_ids:
            raw += engine.tokenizer.bytes_of(token)
        hits = [(raw.find(stop) + len(stop), raw.find(stop), stop) for stop in sampling.stop if stop in raw]
        if hits:
            _, start, stop = min(hits)
            return tokens[:count], "stop", StopMatch(text=stop.decode(), trim=len(raw) - start)
    return tokens[: sampling.max_tokens], "length", None


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
