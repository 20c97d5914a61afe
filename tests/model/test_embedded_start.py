"""The second start of the embedded model is quick: its weights lie converted on the disk."""

from __future__ import annotations

import subprocess
import sys

from bosquet.runtime.models.source import resolve

START = """
import time
from bosquet.runtime.models.source import resolve
begun = time.perf_counter()
folder = resolve("embedded", dtype="float32")
found = time.perf_counter()
import torch
from bosquet.kernels.registry import load_ops
from bosquet.runtime.models.registry import load_model
ops = load_ops("reference")
ready = time.perf_counter()
load_model(folder, torch.float32, ops)
print(found - begun, time.perf_counter() - ready)
"""
# Measured on an idle machine: 0.005 s and 1.5 s. The limits leave room for one that is busy; the best of three counts.
FIND_S, LOAD_S = 0.3, 2.5


def test_second_start_is_quick() -> None:
    resolve("embedded", dtype="float32")
    found, loaded = [], []
    for _ in range(3):
        said = subprocess.run(
            [sys.executable, "-P", "-c", START], capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()
        found.append(float(said[0]))
        loaded.append(float(said[1]))
        if found[-1] < FIND_S and loaded[-1] < LOAD_S:
            return
    raise AssertionError(f"found in {found} s (limit {FIND_S}), loaded in {loaded} s (limit {LOAD_S})")
