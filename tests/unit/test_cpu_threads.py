"""Where the native kernels' threads run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from bosquet.errors import ConfigError
from bosquet.kernels.cpu.library import Library, processors, usable
from bosquet.kernels.cpu.linear import NativeLinear
from bosquet.runtime.precision import resolve_precision
from bosquet.runtime.settings import EngineConfig

HERE = sorted(os.sched_getaffinity(0))


def threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(not usable(), reason="no native library for this processor")
def test_each_thread_runs_where_it_was_pinned() -> None:
    before = threads()
    cpus = (HERE[-1], HERE[0])
    library = Library(usable()[0], 3, cpus)
    made = sorted(threads() - before)
    assert [os.sched_getaffinity(thread) for thread in made] == [{cpus[1]}, {cpus[0]}]
    assert os.sched_getaffinity(0) == set(HERE)  # the caller, who is the first of them, is where it was
    native, x = NativeLinear(library), torch.randn(3, 64)
    free = NativeLinear(Library(usable()[0], 3))
    weight = torch.randn(48, 64)
    assert torch.equal(native.linear(x, native.pack(weight)), free.linear(x, free.pack(weight)))


def test_processors_are_named_one_by_one_and_by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 7})
    assert processors("") == ()
    assert processors("5") == (5,)
    assert processors("7, 0-2") == (7, 0, 1, 2)


@pytest.mark.parametrize("text", ["0-", "2-1", "1,,2", "-1", "all", " ", "1-999999", "6", "1,0-2"])
def test_other_words_name_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 7})
    assert processors(text) is None


def test_the_reference_kernels_pin_nothing() -> None:
    with pytest.raises(ConfigError, match="cpus is 0; the reference kernels pin no threads"):
        resolve_precision(EngineConfig(kernels="reference", cpus="0"))
