"""For every test: what the runs of its programs show is not learnt, so that no test depends on another, nor on what a
person has run before. Tests of learning have a book of their own. Where there is no CUDA device, Triton kernels are
interpreted: Triton reads that setting once, when it is first imported. What talks to the server of the embedded model,
or needs a device, is `alone`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

import bosquet

bosquet.set_learning(False)

TESTS = Path(__file__).parent


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell has sent to the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        served = "served" in getattr(item, "fixturenames", ())
        if served or item.path.is_relative_to(TESTS / "device"):
            item.add_marker(pytest.mark.alone)
