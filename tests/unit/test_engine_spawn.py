"""The engine's process as its parent sees it: started before any loop runs, ended with its parent or by it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from pathlib import Path

import psutil
import pytest

from bosquet.errors import ConfigError, ModelLoadError
from bosquet.runtime.client import EngineClient
from bosquet.runtime.engine_spawn import EngineProcess
from bosquet.runtime.launch import serve
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.settings import EngineConfig

NOWHERE = EngineConfig(model="/no/such/model.gguf")


def engines() -> list[psutil.Process]:
    return [c for c in psutil.Process().children() if "engine_process" in " ".join(c.cmdline())]


def test_the_end_is_told_however_it_comes(tmp_path: Path):
    process = EngineProcess(NOWHERE, tmp_path, 1)

    async def watch() -> list[int]:
        both = asyncio.gather(process.ended(), process.ended())
        os.kill(process.pid, signal.SIGKILL)
        return [*await both, await process.ended()]

    assert asyncio.run(watch()) == [-signal.SIGKILL] * 3
    assert not engines()


def test_closing_asks_first(tmp_path: Path):
    """It sees that its lifeline is cut once it is up; here it ends before, since there is no such model."""
    process = EngineProcess(NOWHERE, tmp_path, 1)
    asyncio.run(process.close(patience_s=60))
    assert asyncio.run(process.ended()) == 2


def test_what_cannot_start_is_told_to_those_who_wait():
    client = EngineClient(NOWHERE)
    client.launch()

    async def wait() -> list[BaseException | object]:
        client.start()
        try:
            return await asyncio.gather(client.folder(), client.ready(), return_exceptions=True)
        finally:
            await client.close()

    found = asyncio.run(wait())
    assert all(isinstance(error, ModelLoadError) and "/no/such/model.gguf" in str(error) for error in found)
    client.abandon()  # nothing is left to do
    assert not engines()


def test_a_server_that_cannot_listen_leaves_no_engine_behind(monkeypatch: pytest.MonkeyPatch):
    with tempfile.TemporaryDirectory() as own, socket.socket() as taken:
        monkeypatch.setattr(tempfile, "tempdir", own)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            serve(NOWHERE, ServerConfig(port=taken.getsockname()[1]), print, print)
        assert not list(Path(own).iterdir())
    assert not engines()
