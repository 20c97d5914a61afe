"""The API process as a whole: the HTTP server, the engine's keeper, and the text side of the loaded model.

Never imports torch. The server listens at once and answers 503 until the engine is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from fastapi import FastAPI

from ..errors import ConfigError, ModelLoadError
from ..types import ModelInfo
from .client import EngineClient
from .server.app import create_app
from .server.config import ServerConfig
from .server.serve import run_server
from .server.services import Text, TextServices
from .settings import EngineConfig
from .templates import ChatTemplate
from .text_stream import TextStream
from .tokenizer import Tokenizer


def serve(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    on_listening: Callable[[str], None],
    on_ready: Callable[[ModelInfo], None],
) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ConfigError` and `ModelLoadError`."""
    failures: list[ModelLoadError | ConfigError] = []
    text = TextServices()
    client = EngineClient(engine_config)

    async def load() -> None:
        try:
            info = await client.ready()
            text.install(_text(info, server_config))
            on_ready(info)
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

    run_server(create_app(client, text, server_config, lifespan), server_config, on_listening)
    if failures:
        raise failures[0]


def _text(info: ModelInfo, config: ServerConfig) -> Text:
    folder = Path(info.folder)
    tokenizer = Tokenizer.from_folder(folder)
    template = ChatTemplate.from_folder(folder, Path(config.chat_template) if config.chat_template else None)

    def stream(stop: Sequence[bytes]) -> TextStream:
        return TextStream(tokenizer, stop)

    return Text(tokenizer, template, info, stream)
