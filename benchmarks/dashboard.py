"""What an open dashboard costs the server: tokens a second of 8 streams, with the page's requests beside them and not.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/dashboard.py [--rounds 5] [--view overview]

The page runs in somebody's browser; what the server has of it are the requests that it makes, at the intervals that it
makes them (`runtime/dashboard/page`). They come from a process of their own here, which has begun before the clock
does. Each side answers prompts that are new, without drafts, and the same number of tokens; which side is first changes
with each round. The median of the rounds' ratios counts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import httpx

from bosquet.runtime.bench.own_server import own_server

VIEWS = {
    # view: (seconds between, what it asks for)
    "overview": (2.0, "/metrics"),
    "requests": (3.0, "/v1/requests?limit=100"),
    "tree": (5.0, "/v1/cache/tree"),
}

STREAMS, TOKENS, REQUESTS = 8, 128, 4


def look(url: str, view: str) -> None:
    """What the page asks for, until this process is ended. Says when it has begun."""
    every, path = VIEWS[view]
    with httpx.Client(base_url=url, timeout=30) as client:
        for at in itertools.count():
            client.get(path).raise_for_status()
            if at == 0:
                print("begun", flush=True)
            time.sleep(every)


@contextmanager
def looking(url: str, view: str) -> Iterator[None]:
    """Inside, the page is open."""
    command = [sys.executable, "-P", __file__, "--view", view, "--look", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as page:
        try:
            assert page.stdout is not None
            page.stdout.readline()
            yield
        finally:
            page.terminate()


async def speed(url: str, names: Iterator[int]) -> float:
    """Tokens a second of `STREAMS` clients that ask one thing after the other."""

    async def client(http: httpx.AsyncClient) -> None:
        for _ in range(REQUESTS):
            prompt, seed = f"Story {next(names)} of a forest", next(names)
            body = {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "seed": seed, "speculation": "off"}
            (await http.post("/v1/completions", json=body)).raise_for_status()

    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        began = time.monotonic()
        await asyncio.gather(*(client(http) for _ in range(STREAMS)))
    return STREAMS * REQUESTS * TOKENS / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--view", choices=VIEWS, default="overview")
    parser.add_argument("--look", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        look(options.look, options.view)
    with own_server() as url:
        names = itertools.count()
        asyncio.run(speed(url, names))
        ratios = []
        for at in range(options.rounds):
            found = {}
            for open_page in (at % 2 == 1, at % 2 == 0):
                with looking(url, options.view) if open_page else nullcontext():
                    found[open_page] = asyncio.run(speed(url, names))
            ratios.append(found[True] / found[False])
            print(f"without {found[False]:7.1f} tok/s   with {found[True]:7.1f}   {ratios[-1]:.3f}", flush=True)
    print(f"{options.view}: {statistics.median(ratios):.3f} of the speed without the page ({options.rounds} rounds)")


if __name__ == "__main__":
    main()
