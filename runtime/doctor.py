"""What this machine has, what Bosquet makes of it, and what to do about what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from ..errors import BosquetError
from ..kernels.cpu.library import Library, default_threads, usable, why_none
from . import env
from .models.cpu import dtype_name, has_native_bf16
from .models.source import embedded_file
from .settings import free_memory


class Finding(NamedTuple):
    """`well` is None for a plain fact."""

    what: str
    found: str
    well: bool | None = None


def report() -> int:
    """Print the findings; returns the exit code: 1 if something that is needed is missing."""
    findings = [finding for check in CHECKS for finding in _guarded(check)]
    table = Table(box=None, show_header=False, pad_edge=False)
    signs = {True: "[green]ok[/green]", False: "[red]missing[/red]", None: ""}
    for finding in findings:
        table.add_row(signs[finding.well], finding.what, finding.found)
    Console().print(table)
    return int(any(finding.well is False for finding in findings))


def _guarded(check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except (BosquetError, OSError, ImportError) as error:
        return [Finding(check.__name__.strip("_").replace("_", " "), str(error), False)]


def _python() -> list[Finding]:
    version = platform.python_version()
    return [Finding("Python", f"{version}, {sys.executable}", (3, 11) <= sys.version_info[:2] < (3, 13))]


def _machine() -> list[Finding]:
    cores = len(os.sched_getaffinity(0))
    flags = _cpu_flags()
    known = [
        flag for flag in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in flags
    ]
    bf16 = "computes bfloat16 itself" if has_native_bf16() else "no bfloat16 of its own"
    disk = shutil.disk_usage(Path.home()).free / 2**30
    return [
        Finding("processor", f"{cores} cores, {' '.join(known) or platform.machine()}; {bf16}"),
        Finding("memory", f"{free_memory() / 2**30:.1f} GiB free, {disk:.0f} GiB of disk"),
    ]


def _packages() -> list[Finding]:
    names = ("torch", "tokenizers", "xgrammar", "pyzmq", "fastapi", "uvicorn")
    return [Finding(name, importlib.metadata.version(name), True) for name in names]


def _embedded_model() -> list[Finding]:
    path = embedded_file()
    return [Finding("embedded model", f"{path.name}, {path.stat().st_size / 1e6:.0f} MB", True)]


def _cache_folder() -> list[Finding]:
    folder = env.cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    writable = os.access(folder, os.W_OK)
    return [Finding("cache folder", f"{folder}, {used / 1e6:.0f} MB used", writable)]


def _compute() -> list[Finding]:
    import torch  # only here: it takes seconds, and the rest of the report should stand without it

    from .gpu.choose import fault_of_gpu

    fault = fault_of_gpu()
    if fault is None:
        memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        gpu = Finding("GPU", f"{torch.cuda.get_device_name()}, {memory / 1e9:.0f} GB; engines run on it", True)
    else:
        gpu = Finding("GPU", f"none: {fault}")
    return [*_kernels(torch.backends.cpu.get_cpu_capability()), gpu]


def _kernels(torch_uses: str) -> list[Finding]:
    """What `--kernels auto` takes, and what it does with weights. Loads the library, so a damaged one shows."""
    found = usable()
    if not found:
        return [
            Finding("kernels", f"reference (torch operations, {torch_uses}); no native ones: {why_none()}"),
            Finding("weights", f"{dtype_name('auto')} by default"),
        ]
    Library(found[0], 1).close()
    others = f" (built too: {', '.join(found[1:])})" if found[1:] else ""
    threads = default_threads()
    return [
        Finding("kernels", f"native, {found[0]}{others}, {threads} thread{'s' * (threads != 1)}", True),
        Finding("weights", "stay as the file stores them; keys and values in bfloat16"),
    ]


CHECKS = (_python, _machine, _packages, _embedded_model, _cache_folder, _compute)


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(flags.split())
    return set()
