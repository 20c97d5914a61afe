"""The peers by name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from ....errors import ConfigError
from .llama_cpp import LlamaCpp
from .openvino import OpenVino
from .peer import Peer
from .transformers import Transformers
from .vllm import Vllm

PEERS: dict[str, Callable[[Path, Collection[str]], Peer]] = {
    "vllm": Vllm,
    "llama.cpp": LlamaCpp,
    "openvino": OpenVino,
    "transformers": Transformers,
}


def installed(name: str, folder: Path, flags: Collection[str]) -> Peer:
    """The peer of this name, in the folder that holds all; `flags` are the processor's. `llama.cpp:KIND` is held to
    files of that kind. Raises `ConfigError` when there is none, or it is not installed."""
    base, colon, kind = name.partition(":")
    if base == "llama.cpp" and colon:
        return LlamaCpp(folder, flags, kind)
    if name not in PEERS:
        raise ConfigError(f"--against {name}: expected NAME=URL or one of {', '.join(PEERS)}")
    return PEERS[name](folder, flags)
