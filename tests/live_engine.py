"""A real `bosquet serve` in a process of its own, for tests that need the whole of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil


class Served:
    """A server under test."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    def health(self) -> tuple[int, dict[str, Any]]:
        try:
            answer = httpx.get(f"{self.url}/health", timeout=30)
        except httpx.TransportError:
            return 0, {}
        return answer.status_code, answer.json()

    def until_ready(self, limit_s: float = 90, incarnation: int = 1) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
            status, body = self.health()
            if status == 200 and body["incarnation"] >= incarnation:
                return
            time.sleep(0.1)
        raise AssertionError(f"not ready in {limit_s} s: {self.health()}")

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
        assert values, f"no metric {name}"
        return sum(values)

    def engine_pid(self) -> int:
        return next(
            c.pid for c in psutil.Process(self.process.pid).children() if "engine_process" in " ".join(c.cmdline())
        )

    def running_pages(self) -> float:
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        return next(
            float(ln.rsplit(" ", 1)[1]) for ln in lines if ln.startswith("bosquet_pages{") and '"running"' in ln
        )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Served]:
    """Start it, wait until it is ready, and end it."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "bosquet"), "serve", "embedded", "--port", str(port), *options]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONSAFEPATH": "1"})
    served = Served(process, f"http://127.0.0.1:{port}")
    try:
        served.until_ready()
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
