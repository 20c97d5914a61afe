"""transformers' `generate`, behind a server of ours that batches what waits."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..workloads import Workload
from .peer import BESIDE, PORT, SCRIPTS, Setting, cores, need
from .vllm import MODEL, dtype


class Transformers:
    """The same setting for all workloads. It cannot hold answers to a schema."""

    name = "transformers"
    constrains = False
    patience_s = 300.0

    def __init__(self, folder: Path, flags: Collection[str]) -> None:
        home = folder / "transformers"
        python = home / "bin" / "python"
        self._python = need(self.name, python, f"python3 -m venv {home} && {home}/bin/pip install torch transformers")
        self._model = need(self.name, folder / MODEL, f"bosquet export embedded {folder / MODEL}")
        self._script = need(self.name, SCRIPTS / "transformers_server.py", "a checkout of Bosquet")
        self._dtype = dtype(flags)

    def setting(self, workload: Workload) -> Setting:
        options = f"--dtype {self._dtype} --threads {len(cores())} --most 32"
        return Setting(
            about=f"{self._script.name} {options}: generate() in batches of what waits",
            command=(str(self._python), str(self._script), str(self._model), "--port", PORT, *options.split()),
            environment=(("HF_HUB_OFFLINE", "1"), (BESIDE, "")),
        )
