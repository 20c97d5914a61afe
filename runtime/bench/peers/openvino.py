"""OpenVINO GenAI, which has no server: one of ours for it, on the embedded file as it is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ...models.source import embedded_file
from ..workloads import Workload
from .peer import Script, Setting, cores


class OpenVino:
    """The same setting for all workloads."""

    name = "openvino"
    constrains = True
    patience_s = 300.0

    def __init__(self, folder: Path, flags: Collection[str]) -> None:
        self._server = Script(self.name, folder, "openvino-genai")

    def setting(self, workload: Workload) -> Setting:
        model = embedded_file()
        options = f"--threads {len(cores())} --cache 2"
        return self._server.setting(model, options, f"continuous batching, prefix caching, {model.name}")
