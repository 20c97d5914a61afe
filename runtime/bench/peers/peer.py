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

SCRIPTS = Path(__file__).resolve().parents[3] / "benchmarks" / "peers"
"""Servers for peers that have none of their own. They come with a checkout, not with the installed package."""

BESIDE = "PYTHONSAFEPATH"
"""Must be empty for a script that imports what lies beside it."""


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


def cores() -> list[int]:
    """Those that this process may use, and so its children."""
    return sorted(os.sched_getaffinity(0))
