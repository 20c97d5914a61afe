"""A peer as a target of the measurement: its server is started when a workload needs it, in the setting for that."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from ..http_client import HttpClient
from ..progress import Progress
from ..target import Target
from ..workloads import Workload
from .peer import Peer
from .server import Server


class Started(Target):
    """Sleeps while it is not asked. `end` must be called."""

    def __init__(self, peer: Peer, folder: Path, progress: Progress) -> None:
        super().__init__("http://127.0.0.1", peer.name)
        self.constrains = peer.constrains
        self._peer = peer
        self._log = folder / f"{peer.name}.log"
        self._progress = progress
        self._server: Server | None = None

    async def prepare(self, workload: Workload) -> None:
        began = time.monotonic()
        with self._progress.waiting(f"starting {self.name}, at most {self._peer.patience_s:.0f} s"):
            setting = self._peer.setting(workload)
            self.uses(setting.about, workload)
            if self._server is not None and self._server.setting == setting:
                return
            self.end()
            self._server = server = Server(self.name, setting, self._log)
            self.client, self.url = HttpClient(server.url), server.url
            await server.started(self._peer.patience_s)
        await self.look()
        server.sleep()
        self._progress.say(self.name, f"started in {time.monotonic() - began:.0f} s: {setting.about}")

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        with self._server.awake() if self._server is not None else contextlib.nullcontext():
            yield

    def end(self) -> None:
        self.client.close()
        if self._server is not None:
            self._server.end()
            self._server = None
