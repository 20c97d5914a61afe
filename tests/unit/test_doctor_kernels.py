"""`bosquet doctor` says which kernels compute, and what to do when they are not the native ones."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from rich.console import Console

from bosquet.kernels.cpu import library
from bosquet.runtime import doctor

AVX2 = frozenset({"avx2", "fma", "f16c"})


def said(findings: list[doctor.Finding]) -> dict[str, str]:
    return {finding.what: finding.found for finding in findings}


@pytest.mark.skipif(not library.usable(), reason="no native library for this processor")
def test_native_kernels_are_named_with_their_threads() -> None:
    found = doctor._kernels("AVX2")
    assert said(found)["kernels"].startswith(f"native, {library.usable()[0]}")
    assert f"{library.default_threads()} thread" in said(found)["kernels"]
    assert "as the file stores them" in said(found)["weights"]
    assert found[0].well is True


@pytest.mark.parametrize(
    ("system", "flags", "compiler", "expected"),
    [
        ("aarch64", frozenset(), "/bin/g++", "there are none for Linux on aarch64"),
        ("x86_64", frozenset({"sse2"}), "/bin/g++", "the processor lacks AVX2"),
        ("x86_64", AVX2, None, "no C++ compiler is here; install g++"),
        ("x86_64", AVX2, "/bin/g++", "they were not built; run `python -m bosquet.kernels.cpu.build`"),
    ],
)
def test_without_them_the_reason_is_said(
    system: str,
    flags: frozenset[str],
    compiler: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: system)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(library, "processor_flags", lambda: flags)
    monkeypatch.setattr(library, "compiler", lambda: compiler)
    monkeypatch.setattr(library, "library_path", lambda isa: tmp_path / f"{isa}.so")
    found = doctor._kernels("AVX2")
    assert expected in said(found)["kernels"]
    assert said(found)["kernels"].startswith("reference (torch operations, AVX2)")
    assert said(found)["weights"] in ("float32 by default", "bfloat16 by default")
    assert found[0].well is None  # it works all the same


@pytest.mark.skipif(not library.usable(), reason="no native library for this processor")
def test_a_damaged_library_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"\x7fELF")
    monkeypatch.setattr(library, "library_path", lambda isa: damaged)
    monkeypatch.setattr(doctor, "CHECKS", (doctor._compute,))
    console = Console(width=200, record=True)
    monkeypatch.setattr(doctor, "Console", lambda: console)
    assert doctor.report() == 1
    assert "damaged.so" in console.export_text()
