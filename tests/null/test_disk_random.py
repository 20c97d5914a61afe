"""Random workloads over a disk tier: answers are right and pages conserved, whatever the disk does and when."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from disk_bed import FORM, World
from fakes import END

from bosquet.runtime import disk_tier
from bosquet.runtime.disk_store import WorkerThread
from bosquet.types import PAGE, Ahead, Origin, Request, SamplingParams


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single page is worth reading."""
    monkeypatch.setattr(disk_tier, "HANDOVER_S", 0.0)


def random_request(rng: random.Random, number: int, prompts: list[list[int]], largest: int) -> Request:
    base = rng.choice(prompts[:8]) if prompts and rng.random() < 0.8 else []
    own = [rng.randrange(END) for _ in range(rng.choice([0, 1, 15, 16, 17, 60]))]
    ids = (base[: rng.randint(len(base) // 2, len(base))] + own)[: largest - 1] or [rng.randrange(END)]
    prompts.append(ids)
    sampling = SamplingParams(
        seed=rng.randrange(1000),
        n=rng.choice([1, 1, 1, 2]),
        max_tokens=rng.choice([0, 1, 2, 8, 30]),
        prompt_logprobs=rng.choice([None, None, None, 0]),
        prompt_logprobs_from=rng.randint(1, len(ids)),
    )
    return Request(
        id=str(number),
        ids=ids,
        sampling=sampling,
        origin=Origin(tenant=rng.choice("aab"), program="agent", run=rng.choice(["", "one", "two"])),
        ahead=Ahead(returns=rng.choice([None, True, False])),
        priority=rng.choice([0, 0, 5]),
        timeout_s=rng.choice([None, None, None, 2.0]),
        reuse=rng.random() < 0.9,
    )


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("pages", [6, 12, 24])
@pytest.mark.parametrize("seed", range(6))
def test_random_workload(seed: int, pages: int, tmp_path: Path) -> None:
    """Threads work now and then, pages are damaged, requests are cancelled, the engine is restarted."""
    rng = random.Random(f"{seed}-{pages}")
    prompts: list[list[int]] = []
    read = 0
    for _ in range(2):
        bound = rng.choice([40, 400]) * FORM.entry
        world = World(tmp_path, pages, bound=bound, by_itself=rng.random() < 0.5)
        for number in range(40):
            world.add(random_request(rng, number, prompts, pages * PAGE))
            for _ in range(rng.choice([0, 1, 5, 9])):
                world.step()
                world.reads.work(rng.choice([0, 0, 1]))
                world.writes.work(rng.choice([0, 0, 3]))
            live = [name for name in world.requests if world.engine.has(name)]
            if live and rng.random() < 0.2:
                world.cancel(rng.choice(live))
            if rng.random() < 0.05:
                damage(world, rng)
        world.finish()
        world.check_answers()
        world.close()
        read += world.engine.stats().disk_pages_read
    assert read > 0


def damage(world: World, rng: random.Random) -> None:
    for segment in world.store._segments:
        os.pwrite(segment._fd, rng.randbytes(3), rng.randrange(segment.size))


@pytest.mark.usefixtures("cheap")
def test_random_workload_with_threads(tmp_path: Path) -> None:
    rng = random.Random(3)
    prompts: list[list[int]] = []
    world = World(tmp_path, 12, by_itself=False, reader=WorkerThread("reader"))
    world.store._writer = WorkerThread("writer")
    for number in range(120):
        world.add(random_request(rng, number, prompts, 12 * PAGE))
        for _ in range(rng.choice([0, 1, 5])):
            world.step()
            time.sleep(0.0002)
    world.finish()
    world.check_answers()
    stats = world.engine.stats()
    assert stats.disk_pages_written > 0
    assert stats.disk_pages_read > 0
