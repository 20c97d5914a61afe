"""What an open dashboard costs the server: tokens a second of 8 streams, with the page's requests beside them and not.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/dashboard.py [--rounds 5] [--view overview]

The page runs in somebody's browser; what the server has of it are the requests that it makes, at the intervals that it
makes them (`runtime/dashboard/page`). They come from a process of their own here. Sides alternate; the median of the
rounds' ratios counts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time

import httpx

from bosquet.runtime.bench.own_server import own_server

VIEWS = {
    # view: (seconds between, what it asks for)
    "overview": (2.0, "/metrics"),
    "requests": (3.0, "/v1/requests?limit=100"),
    "tree": (5.0, "/v1/cache/tree"),
}

STREAMS, TOKENS, SECONDS = 8, 128, 12.0


def look(url: str, view: str) -> None:
    """What the page asks for, until this process is ended."""
    every, path = VIEWS[view]
    with httpx.Client(base_url=url, timeout=30) as client:
        while True:
            client.get(path).raise_for_status()
            time.sleep(every)


async def speed(url: str, seconds: float) -> float:
    """Tokens a second of `STREAMS` clients that ask one thing after the other."""
    tokens = 0
    end = time.monotonic() + seconds

    async def client(http: httpx.AsyncClient, number: int) -> None:
        nonlocal tokens
        at = 0
        while time.monotonic() < end:
            at += 1
            body = {"prompt": f"Story {number}-{at} of a forest", "max_tokens": TOKENS, "ignore_eos": True, "seed": at}
            answer = await http.post("/v1/completions", json={"model": model, **body})
            answer.raise_for_status()
            if time.monotonic() < end:
                tokens += answer.json()["usage"]["completion_tokens"]

    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        began = time.monotonic()
        await asyncio.gather(*(client(http, number) for number in range(STREAMS)))
    return tokens / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--view", choices=VIEWS, default="overview")
    parser.add_argument("--look", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        look(options.look, options.view)
    with own_server() as url:
        asyncio.run(speed(url, 5.0))
        ratios = []
        for _ in range(options.rounds):
            without = asyncio.run(speed(url, SECONDS))
            page = subprocess.Popen([sys.executable, __file__, "--view", options.view, "--look", url])
            try:
                beside = asyncio.run(speed(url, SECONDS))
            finally:
                page.terminate()
                page.wait()
            ratios.append(beside / without)
            print(f"without {without:7.1f} tok/s   with {beside:7.1f}   {ratios[-1]:.3f}", flush=True)
    print(f"{options.view}: {statistics.median(ratios):.3f} of the speed without the page ({options.rounds} rounds)")


if __name__ == "__main__":
    main()
