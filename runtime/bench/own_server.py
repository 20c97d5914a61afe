"""A server of ours on a free port, for the time of a measurement.

Run as a module it is that server: what `bosquet serve` runs, with its address told on standard output. It ends when its
standard input does, so it never outlives who started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

from ...errors import BosquetError, ModelLoadError
from ..launch import serve
from ..server.config import ServerConfig
from ..settings import EngineConfig

READY = "ready"
SPOKEN = "bosquet: "


@contextlib.contextmanager
def own_server(model: str = "embedded") -> Iterator[str]:
    """Gives the address once requests are served. Raises `ModelLoadError` with what the server said last."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is for us: what is known is printed first
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if process.stdout.readline().strip() != READY:
                process.wait()
                raise ModelLoadError(_reason(log))
            yield url
        finally:
            process.stdin.close()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _reason(log: IO[str]) -> str:
    """What the server's processes said of why it did not start: the first line that bears our name, else the last."""
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    named = [line.removeprefix(SPOKEN) for line in lines if line.startswith(SPOKEN)]
    return (named or lines[-1:] or ["the server did not start"])[0]


def main(model: str) -> int:
    """The server process."""

    def end_with_parent() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    settings = EngineConfig(model=model), ServerConfig(port=0)
    try:
        serve(*settings, lambda url: print(url, flush=True), lambda info: print(READY, flush=True))
    except BosquetError as error:
        print(f"{SPOKEN}{error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
