"""Compiles the native library, once for each instruction set. The install runs it; it needs a C++17 compiler.

Each library exports the same functions, so choosing an instruction set is choosing a file. Knows nothing of tensors.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCES = FOLDER / "native"

FLAGS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"),
    "avxvnni": ("-mavxvnni", "-mavx2", "-mfma", "-mf16c"),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
}
"""Instruction sets, the best first, with what the compiler has to be told."""

_COMMON: tuple[str, ...] = (
    "-O3", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-fno-math-errno",
    "-ffp-contract=off",  # a multiply-add is fused where the source says so, and nowhere else
    "-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized",  # GCC 12 warns of its own AVX-512 headers
)  # fmt: skip


def library_path(isa: str) -> Path:
    """Where the library for an instruction set lies, if it was built."""
    return FOLDER / f"libbosquet_{isa}.so"


def compiler() -> str | None:
    """The first C++ compiler that is found."""
    return next((found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))), None)


def build() -> list[str]:
    """Make every library that is missing or older than its sources; the names of those made.

    Raises `RuntimeError` with the compiler's words when it fails.
    """
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        return []
    command = compiler()
    if command is None:
        return []
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        made = compilers.map(lambda isa: _brought_up_to_date(isa, command), FLAGS)
        return [isa for isa, was_made in zip(FLAGS, made, strict=True) if was_made]


def _brought_up_to_date(isa: str, command: str) -> bool:
    target, stamp = library_path(isa), library_path(isa).with_suffix(".stamp")
    digest = _digest(command, FLAGS[isa])
    if target.is_file() and stamp.is_file() and stamp.read_text() == digest:
        return False
    _compile(command, FLAGS[isa], target)
    stamp.write_text(digest)
    return True


def _compile(command: str, flags: tuple[str, ...], target: Path) -> None:
    fresh = target.with_suffix(f".new{os.getpid()}")
    sources = sorted(str(path) for path in SOURCES.glob("*.cpp"))
    line = [command, *_COMMON, *flags, *sources, "-o", str(fresh)]
    run = subprocess.run(line, check=False, capture_output=True, text=True)
    if run.returncode:
        fresh.unlink(missing_ok=True)
        raise RuntimeError(f"{command} failed for {target.name}:\n{run.stderr.strip()[-4000:]}")
    os.replace(fresh, target)


def _digest(command: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr((command, _COMMON, flags)).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print("built:", ", ".join(build()) or "nothing")
