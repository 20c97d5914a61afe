"""Runs the application on a socket until it is told to stop. Knows nothing of the routes or of the engine."""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ...errors import ConfigError
from ..heap import limit_heaps
from .arrival import arriving_within
from .config import ServerConfig
from .logs import configure_logs
from .services import Lifecycle, Services

log = logging.getLogger("bosquet.server")

KEEP_ALIVE_S = 75
"""Longer than the pools of usual clients keep a connection, so that it is not closed under a request."""


class Server(uvicorn.Server):
    """On the first SIGTERM or SIGINT: still listens, refuses new requests with 503, and ends when those in flight have,
    or their time is over. A second signal ends at once."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._drain_timeout_s = drain_timeout_s
        self._drain_until = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._lifecycle.draining:
            self.should_exit = self.force_exit = True
            return
        self.drain()

    def drain(self) -> None:
        """Begin to end."""
        self._drain_until = time.monotonic() + self._drain_timeout_s
        self._lifecycle.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self._lifecycle.draining and not self.should_exit:
            self.should_exit = not self._lifecycle.in_flight or time.monotonic() >= self._drain_until
        return await super().on_tick(counter)


def make_server(app: FastAPI, config: ServerConfig) -> Server:
    """A server for an application that `create_app` made."""
    services: Services = app.state.services
    settings = uvicorn.Config(
        app,
        loop="uvloop",
        http=arriving_within(config.arrival_timeout_s),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,  # the drain has waited already
    )
    return Server(settings, services.lifecycle, config.drain_timeout_s)


def listen(config: ServerConfig) -> socket.socket:
    """The listening socket, bound at once so that a taken port is a clear error. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
        sock.listen(2048)
    except (OSError, OverflowError) as error:
        sock.close()
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error}") from None
    sock.set_inheritable(True)
    return sock


def run_server(app: FastAPI, config: ServerConfig, on_listening: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. `on_listening` is given the URL before the model is
    loaded. Raises ConfigError when the address cannot be had."""
    configure_logs(config.json_logs)
    limit_heaps(large_apart=True)
    services: Services = app.state.services
    if not is_loopback(config.host) and not len(services.keys):
        log.warning("listening on %s without API keys: whoever reaches it may use it; see --keys-file", config.host)
    with listen(config) as sock:
        if on_listening is not None:
            on_listening(url_of(sock))
        make_server(app, config).run(sockets=[sock])


def url_of(sock: socket.socket) -> str:
    """The address as a URL."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
