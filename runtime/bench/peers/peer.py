"""What a peer must tell: where it is, and how its server is started for a workload."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ....errors import ConfigError
from ..workloads import Workload

README = "benchmarks/peers/README.md"
PORT = "{port}"
"""Stands for the server's port in a command."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a server is started. Equal settings are one server, which stays up from workload to workload.

    `about` is for the table. `ready` answers 200 when requests are served. `environment` is added to ours.
    """

    about: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    ready: str = "/health"


class Peer(Protocol):
    """A peer that is installed. `constrains`: it can hold answers to a JSON schema. `patience_s` is how long its start
    may take."""

    @property
    def name(self) -> str: ...
    @property
    def constrains(self) -> bool: ...
    @property
    def patience_s(self) -> float: ...

    def setting(self, workload: Workload) -> Setting:
        """The best that we know for this workload on this machine."""


def need(name: str, path: Path, command: str) -> Path:
    """The path. Raises `ConfigError` with the command that makes it, if it is not there."""
    if not path.exists():
        raise ConfigError(f"--against {name}: there is no {path}; to have it: {command} (see {README})")
    return path


class Script:
    """`benchmarks/peers/{name}_server.py`, for a peer that has no server of its own, run by the peer's Python. It comes
    with a checkout, not with the installed package. `packages` is what pip needs. Raises `ConfigError`."""

    def __init__(self, name: str, folder: Path, packages: str) -> None:
        home = folder / name
        self._python = need(
            name, home / "bin" / "python", f"python3 -m venv {home} && {home}/bin/pip install {packages}"
        )
        scripts = Path(__file__).resolve().parents[3] / "benchmarks" / "peers"
        self._script = need(name, scripts / f"{name}_server.py", "a checkout of Bosquet")

    def setting(self, model: Path, options: str, about: str, *environment: tuple[str, str]) -> Setting:
        """`about` follows the options in what the table says."""
        return Setting(
            about=f"{self._script.name} {options}: {about}",
            command=(str(self._python), str(self._script), str(model), "--port", PORT, *options.split()),
            environment=(("PYTHONSAFEPATH", ""), *environment),  # it imports what lies beside it
        )


def cores() -> list[int]:
    """Those that this process may use, and so its children."""
    return sorted(os.sched_getaffinity(0))
