"""Starts an engine process and says when it has ended. Knows nothing of messages."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from . import env
from .settings import EngineConfig


class EngineProcess:
    """One engine process. It ends when `close` is called or this process dies: it watches a pipe that we hold open.

    It is started at once, with no event loop, so that it may load while its parent still imports.
    `folder` is private to this user (0700); the socket lives there.
    """

    def __init__(self, config: EngineConfig, folder: Path, incarnation: int) -> None:
        self.address = f"ipc://{folder}/engine-{incarnation}"
        read_end, write_end = os.pipe()
        launch = {
            "address": self.address,
            "incarnation": incarnation,
            "lifeline": read_end,
            "config": msgspec.to_builtins(config),
        }
        try:
            self._process = subprocess.Popen(
                (
                    sys.executable,
                    "-P",  # the folder that we were started in must not be on the path: see docs/decisions
                    "-m",
                    f"{__package__}.engine_process",
                    msgspec.json.encode(launch).decode(),
                ),
                stdin=subprocess.DEVNULL,
                pass_fds=(read_end,),
                env=env.for_compute(),
            )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._lifeline: int | None = write_end

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        code = self._process.poll()
        if code is not None:
            return code
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        pidfd = os.pidfd_open(self._process.pid)  # readable once the process has ended
        try:
            loop.add_reader(pidfd, over.set)
            await over.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return self._process.wait()

    async def close(self, patience_s: float = 5.0) -> None:
        """Ask it to end, and insist after `patience_s`."""
        self._let_go()
        try:
            await asyncio.wait_for(self.ended(), patience_s)
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """End it without asking."""
        self._let_go()
        self._process.kill()
        self._process.wait()

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
