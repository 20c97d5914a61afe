"""Seconds to the first token of a prompt that was evicted: computed again, read back from disk, and after a restart.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/disk_tier.py [--tokens 2000] [--rounds 2]

Uses the embedded model and a cache folder of its own, which it deletes.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
from pathlib import Path

from bosquet.runtime.assembly import assemble
from bosquet.runtime.engine import Engine
from bosquet.runtime.settings import EngineConfig
from bosquet.types import Request, SamplingParams

LOOKS_AGAIN_S = 0.005  # as the engine process does


def build(disk_mb: int) -> Engine:
    return assemble(EngineConfig(cache_tokens=4096, disk_mb=disk_mb), lambda path: None)[0]


def first_token(engine: Engine, ids: list[int]) -> str:
    engine.add(Request(id="x", ids=ids, sampling=SamplingParams(temperature=0.0, max_tokens=1)))
    began, cached = time.perf_counter(), 0
    while not engine.idle:
        for output in engine.step():
            cached = output.cached_tokens
        if engine.waits:
            time.sleep(LOOKS_AGAIN_S)
    return f"{time.perf_counter() - began:7.3f} s   {cached:5} tokens reused"


def evict(engine: Engine) -> None:
    engine.scheduler.evict(engine.stats().pages_total)
    time.sleep(1.0)  # until it is written


def drop_page_cache(folder: Path) -> None:
    for path in folder.rglob("segment-*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the disk tier gains.")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    rng = random.Random(1)
    ids = [rng.randrange(100, 40_000) for _ in range(arguments.tokens)]
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BOSQUET_CACHE"] = folder
        engine = build(2048)
        print(f"computed           {first_token(engine, ids[::-1])}")
        print(f"computed           {first_token(engine, ids)}")
        for _ in range(arguments.rounds):
            evict(engine)
            print(f"evicted            {first_token(engine, ids)}")
        evict(engine)
        drop_page_cache(Path(folder))
        print(f"not in page cache  {first_token(engine, ids)}")
        evict(engine)
        del engine
        gc.collect()  # it is in a ring with its tier, which holds the folder
        print(f"after a restart    {first_token(build(2048), ids)}")


if __name__ == "__main__":
    main()
