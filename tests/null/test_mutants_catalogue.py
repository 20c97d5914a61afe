"""The faults of `scripts/mutants` still fit the sources; and what tenants may reuse, which two of them break."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from by_path import module_at
from fakes import END, VOCABULARY, HashRunner

from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.types import Origin, Request, SamplingParams

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    return module_at(ROOT / "scripts" / "mutants.py")


def test_every_fault_fits_exactly_one_place(mutants: ModuleType) -> None:
    assert list(mutants.misfits(ROOT)) == []


def test_a_fault_that_no_longer_fits_is_reported(mutants: ModuleType, tmp_path: Path) -> None:
    assert len(list(mutants.misfits(tmp_path))) == len(mutants.MUTANTS)


def test_every_invariant_of_the_main_path_has_at_least_two_faults(mutants: ModuleType) -> None:
    counts = {name: sum(m.invariant == name for m in mutants.MUTANTS) for name in ("I1", "I2", "I4", "I5", "I7")}
    assert min(counts.values()) >= 2, counts
    assert all(m.old != m.new for m in mutants.MUTANTS)
    assert len({(m.file, m.old, m.new) for m in mutants.MUTANTS}) == len(mutants.MUTANTS)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_tenant_reuses_its_own_prefix_and_nobody_elses(lag: int) -> None:
    engine = Engine(
        HashRunner(50),
        RadixCache(PagePool(50)),
        Limits(64, 8, ageing_s=5.0),
        Bounds(VOCABULARY, 800, max_waiting=10),
        Vocabulary([b"?"] * VOCABULARY, frozenset({END}), (END,)),
        lag=lag,
    )

    def cached(request_id: str, tenant: str) -> int:
        sampling = SamplingParams(seed=1, max_tokens=1)
        engine.add(Request(id=request_id, ids=[3] * 100, sampling=sampling, origin=Origin(tenant=tenant)))
        found = -1
        while not engine.idle:
            for output in engine.step():
                found = output.cached_tokens
        return found

    assert [cached("1", "a"), cached("2", "b"), cached("3", "a"), cached("4", "b")] == [0, 0, 99, 99]
