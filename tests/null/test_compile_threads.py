"""Compiles side by side: shared, bounded, and a stuck one holds up nobody."""

from __future__ import annotations

import threading
import time

import pytest

from bosquet.runtime.compile_threads import CompileThreads


class Gate:
    """Work that waits to be let go."""

    def __init__(self, result="done"):
        self.result = result
        self.begun = threading.Event()
        self.open = threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.open.wait(20)
        return self.result


@pytest.fixture
def woken():
    return threading.Semaphore(0)


def pool(woken, **bounds):
    return CompileThreads(woken.release, **bounds)


def test_results_and_errors_reach_all_who_wait(woken):
    threads = pool(woken)
    gate = Gate()
    first, second = threads.submit("a", gate), threads.submit("a", gate)
    assert first is second
    gate.open.set()
    assert first.future.result(10) == "done"
    assert woken.acquire(timeout=10)

    def bad():
        raise KeyError("no")

    with pytest.raises(KeyError):
        threads.submit("b", bad).future.result(10)
    assert woken.acquire(timeout=10)


def test_only_so_many_run_at_once_and_the_rest_follow_in_order(woken):
    threads = pool(woken, threads=2)
    gates = [Gate(at) for at in range(4)]
    jobs = [threads.submit(at, gate) for at, gate in enumerate(gates)]
    assert gates[0].begun.wait(10)
    assert gates[1].begun.wait(10)
    assert [job.began is not None for job in jobs] == [True, True, False, False]
    gates[1].open.set()
    assert gates[2].begun.wait(10)
    assert jobs[3].began is None
    for gate in gates:
        gate.open.set()
    assert [job.future.result(10) for job in jobs] == [0, 1, 2, 3]


def test_an_abandoned_job_makes_room_until_too_many_are_stuck(woken):
    threads = pool(woken, threads=1, stuck=2)
    stuck = [Gate() for _ in range(4)]
    jobs = []
    for at, gate in enumerate(stuck[:2]):
        jobs.append(threads.submit(f"stuck {at}", gate))
        assert gate.begun.wait(10)
        threads.abandon(jobs[-1])
        assert jobs[-1].abandoned
    assert threads.submit("quick", lambda: 1).future.result(10) == 1
    jobs.append(threads.submit("stuck 2", stuck[2]))
    assert stuck[2].begun.wait(10)
    threads.abandon(jobs[-1])
    waiting = threads.submit("waiting", lambda: 2)
    time.sleep(0.05)
    assert waiting.began is None
    assert threads.submit("stuck 0", stuck[0]) is jobs[0]  # still known, as abandoned
    stuck[0].open.set()
    assert waiting.future.result(10) == 2
    for gate in stuck:
        gate.open.set()
    assert [job.future.result(10) for job in jobs] == ["done"] * 3
    assert threads.submit("stuck 0", lambda: 3).future.result(10) == 3


def test_a_job_that_has_not_begun_is_forgotten_when_abandoned(woken):
    threads = pool(woken, threads=1)
    gate = Gate()
    running = threads.submit("running", gate)
    queued = threads.submit("queued", lambda: pytest.fail("nobody waits for it"))
    threads.abandon(queued)
    threads.abandon(queued)
    gate.open.set()
    assert running.future.result(10) == "done"
    threads.abandon(running)  # over: nothing to do
    assert not running.abandoned
    assert threads.submit("queued", lambda: 4).future.result(10) == 4
    assert not queued.future.done()
