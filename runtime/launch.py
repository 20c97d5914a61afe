"""Starts the engine's process, and only then imports what serves HTTP: both take long, and so they run side by side.

Knows nothing of either.
"""

from __future__ import annotations

from collections.abc import Callable

from ..types import ModelInfo
from .client import EngineClient
from .server.config import ServerConfig
from .settings import EngineConfig


def serve(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    on_listening: Callable[[str], None],
    on_ready: Callable[[ModelInfo], None],
) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ConfigError` and `ModelLoadError`."""
    client = EngineClient(engine_config)
    client.launch()
    try:
        from .serving import serve as run  # half a second of imports

        run(client, server_config, on_listening, on_ready)
    finally:
        client.abandon()
