"""OpenVINO GenAI, which has no server: one of ours for it, on the embedded file as it is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ...models.source import embedded_file
from ..workloads import Workload
from .peer import BESIDE, PORT, SCRIPTS, Setting, cores, need


class OpenVino:
    """The same setting for all workloads."""

    name = "openvino"
    constrains = True
    patience_s = 300.0

    def __init__(self, folder: Path, flags: Collection[str]) -> None:
        home = folder / "openvino"
        python = home / "bin" / "python"
        self._python = need(self.name, python, f"python3 -m venv {home} && {home}/bin/pip install openvino-genai")
        self._script = need(self.name, SCRIPTS / "openvino_server.py", "a checkout of Bosquet")

    def setting(self, workload: Workload) -> Setting:
        model = embedded_file()
        options = f"--threads {len(cores())} --cache 2"
        return Setting(
            about=f"{self._script.name} {model.name} {options}: continuous batching, prefix caching",
            command=(str(self._python), str(self._script), str(model), "--port", PORT, *options.split()),
            environment=((BESIDE, ""),),
        )
