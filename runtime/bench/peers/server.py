"""A peer's server while it runs: started, waited for, put to sleep, ended. Knows nothing of which peer it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ....errors import BosquetError, Unavailable
from ..http_client import HttpClient
from . import guard
from .peer import PORT, Setting

POLL_S = 0.1
GRACE_S = 15.0
"""How long a server may take to end before it is ended."""


class Server:
    """Listens at `url` on this machine once `started` has returned. Ends with this process, whatever ends that."""

    def __init__(self, name: str, setting: Setting, log: Path, grace_s: float = GRACE_S) -> None:
        self.setting = setting
        self._name = name
        self._log = log
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = ["env", *(f"{key}={value}" for key, value in setting.environment)] if setting.environment else []
        command += [part.replace(PORT, str(port)) for part in setting.command]
        with log.open("wb") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(grace_s), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,  # Ctrl-C is for us
            )
        assert self._guard.stdout is not None
        self._group = int(self._guard.stdout.readline() or 0)

    async def started(self, patience_s: float) -> None:
        """Returns when requests are served. Raises `BosquetError` with the log's last words when that never comes."""
        client = HttpClient(self.url)
        until = time.monotonic() + patience_s
        try:
            while not await self._answers(client):
                if self._guard.poll() is not None:
                    raise BosquetError(f"{self._name} ended at its start: {self._last_words()} (log: {self._log})")
                if time.monotonic() > until:
                    raise BosquetError(f"{self._name} did not start within {patience_s:.0f} s (log: {self._log})")
                await asyncio.sleep(POLL_S)
        finally:
            client.close()

    async def _answers(self, client: HttpClient) -> bool:
        try:
            return (await client.get(self.setting.ready)).status == 200
        except Unavailable:
            return False

    def sleep(self) -> None:
        """Stop all its processes, so that they take nothing from a server that is measured."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        self.wake()
        try:
            yield
        finally:
            self.sleep()

    def _signal(self, number: signal.Signals) -> None:
        if self._group and self._guard.poll() is None:  # its group is its own only while the guard has not ended
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)

    def end(self) -> None:
        """Returns when the last of its processes has ended."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.wait()
        self._guard.stdout.close()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "it said nothing")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
