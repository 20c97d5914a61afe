"""transformers' `generate`, behind a server of ours that batches what waits."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..workloads import Workload
from .peer import Script, Setting, cores, need
from .vllm import MODEL, dtype


class Transformers:
    """The same setting for all workloads. It cannot hold answers to a schema."""

    name = "transformers"
    constrains = False
    patience_s = 300.0

    def __init__(self, folder: Path, flags: Collection[str]) -> None:
        self._server = Script(self.name, folder, "torch transformers")
        self._model = need(self.name, folder / MODEL, f"bosquet export embedded {folder / MODEL}")
        self._dtype = dtype(flags)

    def setting(self, workload: Workload) -> Setting:
        options = f"--dtype {self._dtype} --threads {len(cores())} --most 32"
        about = "generate() in batches of what waits"
        return self._server.setting(self._model, options, about, ("HF_HUB_OFFLINE", "1"))
