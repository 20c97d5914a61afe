"""An engine on this machine for programs in the DSL: the engine's client, the tokenizer and the chat template as one
back end that carries token ids.

Has the shape of `lang.backend.TokenBackend`, which it need not import. Every method but `close` runs on the language's
own event loop; the engine process starts with the first call.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from ..errors import BosquetError, EngineDied, rejection
from ..types import (
    DRAFT_SOURCES,
    Call,
    Chunk,
    Message,
    ModelInfo,
    Origin,
    Output,
    Request,
    SamplingParams,
    Segment,
    ToolSpec,
)
from .client import EngineClient
from .settings import EngineConfig
from .templates import ChatTemplate
from .text_stream import TextStream
from .tokenizer import Tokenizer
from .tool_calls import CallReader, ToolManner, by_token, with_stops

CAPABILITIES = frozenset(
    (
        *("tokens", "text", "continue", "select", "logprobs", "top_logprobs"),
        *("json_schema", "json_object", "regex", "choice", "ebnf", "lark", "structural_tag", "tools", "reasoning"),
        *("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed"),
        *("min_tokens", "stop_token_ids", "ignore_eos", "speculation"),
    )
)


class LocalEngine:
    """`LocalEngine()` serves the embedded model; any field of `EngineConfig` may be given by name.

    Close it, or use it in a `with` block; its process ends with this one in any case.
    """

    capabilities = CAPABILITIES

    def __init__(self, model: str = "embedded", **config: Any) -> None:
        self._config = EngineConfig(model=model, **config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None
        self._client: EngineClient | None = None
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        self._tools: ToolManner | None = None

    async def _started(self) -> EngineClient:
        """The client, once the engine is ready. Raises `ModelLoadError`."""
        if self._starting is None:
            self._loop = asyncio.get_running_loop()
            self._starting = self._loop.create_task(self._start())
        await asyncio.shield(self._starting)
        assert self._client is not None
        return self._client

    async def _start(self) -> None:
        self._client = EngineClient(self._config)
        self._client.start()
        folder = await self._client.folder()
        self._tokenizer = Tokenizer.from_folder(folder)
        self._template = ChatTemplate.from_folder(folder)
        self._tools = ToolManner(self._template, self._tokenizer)
        await self._client.ready()

    async def _text(self) -> tuple[Tokenizer, ChatTemplate]:
        await self._started()
        assert self._tokenizer is not None
        assert self._template is not None
        return self._tokenizer, self._template

    async def _manner(self) -> ToolManner:
        await self._started()
        assert self._tools is not None
        return self._tools

    async def info(self) -> ModelInfo:
        return (await self._started()).info

    # ---- what the language asks ------------------------------------------------------------------------------------

    async def encode(self, segments: Sequence[Segment]) -> list[int]:
        return (await self._text())[0].encode_segments(segments)

    async def decode(self, ids: Sequence[int]) -> str:
        return (await self._text())[0].decode(ids)

    async def text_start(self) -> list[int]:
        tokenizer, _ = await self._text()
        return [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []

    async def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, tools: Sequence[ToolSpec] = ()
    ) -> list[Segment]:
        if tools:
            return (await self._manner()).render(messages, tools, add_generation_prompt)
        _, template = await self._text()
        return template.render(messages, add_generation_prompt=add_generation_prompt)

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        client = await self._started()
        tokenizer, _ = await self._text()
        request = Request(
            id=secrets.token_hex(8),
            ids=list(call.ids),
            sampling=call.sampling,
            grammar=call.grammar,
            origin=call.origin,
            ahead=call.ahead,
            speculation=DRAFT_SOURCES if call.speculation is None else call.speculation,
        )
        text = TextStream(tokenizer, call.sampling.stop)
        calls: CallReader | None = None
        if call.tools is not None:
            manner = await self._manner()
            request.grammar = manner.grammar(call.tools, call.ids, call.grammar)
            calls = manner.reader(call, call.tools)
            request.sampling = replace(with_stops(call.sampling, manner.stop_ids), stop=())
            text = TextStream(tokenizer, shown=manner.shown)
        elif call.reasoning:
            manner = await self._manner()
            request.grammar = manner.answer_grammar(call.ids, call.grammar)
            calls = manner.answer_reader(call)
            text = TextStream(tokenizer, call.sampling.stop, shown=manner.shown)
        stream = await client.submit(request)
        relaxed, completion = stream.relaxed, 0
        try:
            async for outputs in stream:
                for output in outputs if calls is None else by_token(outputs):
                    _raise_error(output)
                    completion += len(output.tokens)
                    chunk = Chunk(
                        text.push(output.tokens, output.finish, output.stop),
                        output.tokens,
                        output.finish,
                        _stop(output),
                        len(request.ids),
                        completion,
                        output.cached_tokens,
                        output.logprobs,
                        relaxed,
                    )
                    relaxed = ()
                    if calls is not None:
                        chunk = calls.read(chunk)
                    yield chunk
                    if chunk.finish is not None:
                        return
        finally:
            await stream.cancel()

    async def end(self, run: str) -> None:
        if self._client is not None:
            await self._client.end_run("", run)

    async def score(self, ids: Sequence[int], choices: Sequence[Sequence[int]], origin: Origin) -> list[list[float]]:
        return list(await asyncio.gather(*(self._score(ids, choice, origin) for choice in choices)))

    async def _score(self, ids: Sequence[int], choice: Sequence[int], origin: Origin) -> list[float]:
        client = await self._started()
        sampling = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=len(ids))
        request = Request(id=secrets.token_hex(8), ids=[*ids, *choice], sampling=sampling, origin=origin)
        stream = await client.submit(request)
        scores: list[float] = []
        try:
            async for outputs in stream:
                for output in outputs:
                    _raise_error(output)
                    scores += [found.logprob for found in output.prompt_logprobs or ()]
        finally:
            await stream.cancel()
        return scores

    # ---- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()

    def close(self) -> None:
        """End the engine process. Called from any thread but the language's own."""
        if self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self.aclose(), self._loop).result()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _raise_error(output: Output) -> None:
    if output.error is not None:
        code, message = output.error
        raise rejection(code, message) if code != "internal_error" else BosquetError(message)
    if output.finish == "abort":
        raise EngineDied("the engine stopped this request")


def _stop(output: Output) -> str | int | None:
    if output.stop is None:
        return None
    return output.stop.text if output.stop.text is not None else output.stop.token
