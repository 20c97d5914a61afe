"""The second start of the embedded model is quick: its weights lie converted on the disk.

What a start takes on the clock depends on what else the machine does, so processor time is counted: of the server and
of its engine, from the first byte of the interpreter to the first `ready` of `/health`. The two run side by side, so on
a quiet machine the clock shows a third less (medians of five, 2 cores: 3.3 s on the clock, 5.0 s of processor time).
"""

from __future__ import annotations

import time

import psutil
import pytest
from live_engine import serving

from bosquet.runtime.models.source import resolve

pytestmark = pytest.mark.alone
PROCESSOR_S = 10.0
"""Five seconds on two cores are ten of it. The best of three counts: a busy machine also slows what runs."""


def test_second_start_is_quick() -> None:
    resolve("embedded", dtype="auto")
    took = []
    for _ in range(3):
        began = time.monotonic()
        with serving() as server:
            processes = [psutil.Process(pid) for pid in (server.process.pid, server.engine_pid())]
            took.append(sum(sum(process.cpu_times()[:2]) for process in processes))
        print(f"start: {took[-1]:.1f} s of processor time, {time.monotonic() - began:.1f} s on the clock with its end")
        if took[-1] < PROCESSOR_S:
            return
    raise AssertionError(f"processor time of three starts: {took} s; limit {PROCESSOR_S}")
