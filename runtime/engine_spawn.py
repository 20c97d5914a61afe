"""Starts an engine process and says when it has ended. Knows nothing of messages."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import TracebackType

import msgspec

from . import env
from .settings import EngineConfig


class EngineProcess:
    """One engine process. It ends when `close` is called or this process dies: it watches a pipe that we hold open."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int, address: str) -> None:
        self._process = process
        self._lifeline: int | None = lifeline
        self.address = address

    @classmethod
    async def start(cls, config: EngineConfig, folder: Path, incarnation: int) -> EngineProcess:
        """`folder` is private to this user (0700); the socket lives there."""
        address = f"ipc://{folder}/engine-{incarnation}"
        read_end, write_end = os.pipe()
        launch = {
            "address": address,
            "incarnation": incarnation,
            "lifeline": read_end,
            "config": msgspec.to_builtins(config),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the folder that we were started in must not be on the path: see docs/decisions
                "-m",
                f"{__package__}.engine_process",
                msgspec.json.encode(launch).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(read_end,),
                env=env.for_compute(),
            )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        return cls(process, write_end, address)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        return await self._process.wait()

    async def close(self, patience_s: float = 5.0) -> None:
        """Ask it to end, and insist after `patience_s`."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        try:
            await asyncio.wait_for(self._process.wait(), patience_s)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def __aenter__(self) -> EngineProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
