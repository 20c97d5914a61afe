"""The API process as a whole: the HTTP server, the engine's keeper, and the text side of the loaded model.

Never imports torch. The server listens at once and answers 503 until the engine is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence, Set
from pathlib import Path

from fastapi import FastAPI

from ..errors import ConfigError, ModelLoadError
from ..grammar import reasoning, tools
from ..types import ModelInfo
from .client import EngineClient
from .server.app import create_app
from .server.config import ServerConfig
from .server.serve import run_server
from .server.services import Services, Text, TextServices
from .templates import ChatTemplate
from .text_stream import TextStream
from .tokenizer import Tokenizer


def serve(
    client: EngineClient,
    server_config: ServerConfig,
    on_listening: Callable[[str], None],
    on_ready: Callable[[ModelInfo], None],
) -> None:
    """Serve until SIGTERM or SIGINT. Starts `client` and closes it. Raises `ConfigError` and `ModelLoadError`."""
    failures: list[ModelLoadError | ConfigError] = []
    text = TextServices()

    async def load() -> None:
        try:
            files = await asyncio.to_thread(read_text, await client.folder(), server_config)
            text.install(_text(await client.ready(), *files, server_config))
            on_ready(client.info)
        except (ModelLoadError, ConfigError) as error:
            failures.append(error)
            signal.raise_signal(signal.SIGTERM)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        client.start()
        loading = asyncio.create_task(load())
        try:
            yield
        finally:
            loading.cancel()
            await client.close()
            services: Services = app.state.services
            services.close()

    run_server(create_app(client, text, server_config, lifespan), server_config, on_listening)
    if failures:
        raise failures[0]


def read_text(folder: Path, config: ServerConfig) -> tuple[Tokenizer, ChatTemplate]:
    """What a model's folder says of texts. Raises `ModelLoadError` and `ConfigError`."""
    own = Path(config.chat_template) if config.chat_template else None
    return Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder, own)


def text_for_comparing(tokenizer: Tokenizer, template: ChatTemplate) -> Text:
    """Where there is no engine: for prompts that are only looked at."""
    info = ModelInfo(
        name="", folder="", vocab_size=tokenizer.size, context_length=1 << 30, dtype="", device="", kernels="", pages=0,
        max_waiting=0,
    )  # fmt: skip
    return _text(info, tokenizer, template, ServerConfig())


def _text(info: ModelInfo, tokenizer: Tokenizer, template: ChatTemplate, config: ServerConfig) -> Text:
    def stream(stop: Sequence[bytes], shown: Set[int]) -> TextStream:
        return TextStream(tokenizer, stop, shown=shown)

    name = None if config.tool_format == "auto" else config.tool_format
    form = tools.detect(template.source, template.specials, name)
    return Text(tokenizer, template, info, stream, form, reasoning.detect(template.source))
