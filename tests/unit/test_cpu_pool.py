"""The pool does every piece of every loop once, in order, and without a data race (ThreadSanitizer's word)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bosquet.kernels import cpu

COMPILER = shutil.which("g++")
NATIVE = Path(cpu.__file__).parent / "native"
STRESS = Path(__file__).parents[1] / "data" / "pool_stress.cpp"


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("no compiler")
    target = tmp_path_factory.mktemp("pool") / "stress"
    command = [COMPILER, "-std=c++17", "-O1", "-g", "-msse2", "-pthread", f"-I{NATIVE}", STRESS, NATIVE / "pool.cpp"]
    for sanitizer in (["-fsanitize=thread"], []):  # not every compiler has its library
        if subprocess.run([*command, *sanitizer, "-o", target], capture_output=True, check=False).returncode == 0:
            return target
    raise AssertionError("the pool does not compile alone")


@pytest.mark.alone
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_piece_once_and_loops_in_order(stress: Path, threads: int) -> None:
    run = subprocess.run([stress, str(threads), "400"], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
