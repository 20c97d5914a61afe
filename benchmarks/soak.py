"""Many clients with random requests and random cancels, for minutes: does anything break, leak or grow?

    python benchmarks/soak.py                                      its own server, 64 clients, two minutes
    python benchmarks/soak.py --url http://127.0.0.1:8000 --pid N  a server that runs; N is its process

Every answer is checked for its shape and, where the output was constrained, for its content. At the end nothing may be
running and every page be free or cached. Memory is sampled every second; what may grow is the prefix tree until the
pool is full, so the pool is small and the judgement is on the last minute only. Exit code 1 on any failure.

Knows the protocol and the names of metrics; imports nothing of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import numpy as np
import psutil  # type: ignore[import-untyped]

LIMIT_MB_PER_MINUTE = 1.0
JUDGED_S = 60.0
"""The slope is judged over the last so many seconds, and only if the load lasted at least half as long again."""
CACHE_TOKENS = 8192
ANSWER_S = 120.0
"""No answer may take longer: a hang is an error."""

WORDS = ("river", "stone", "window", "paper", "garden", "little", "yellow", "winter", "morning", "letter", "number")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "minimum": 0}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
REGEX = "[a-z]{2,9}(-[0-9]{1,3}){0,2}"
CHOICES = ["yes", "no", "perhaps", "非常に"]
BAD: tuple[tuple[str, str | dict[str, Any]], ...] = (
    ("/v1/completions", '{"prompt": "x", '),
    ("/v1/completions", {"prompt": "x", "max_tokens": -1}),
    ("/v1/completions", {"prompt": "x", "regex": "["}),
    ("/v1/completions", {"prompt": [99_999_999]}),
    ("/v1/completions", {"prompt": "word " * 9000, "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "model": "no such model"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stop": [""], "stream": True}),
)


class Wrong(Exception):
    """An answer that is not what it must be."""


@dataclass
class Report:
    """What happened."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # process → (s, MB)
    final: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def slopes(self) -> dict[str, float]:
        """MB a minute of each process over the last minute, by linear regression."""
        found = {}
        for name, samples in self.memory.items():
            at, size = np.array([s for s in samples if s[0] >= samples[-1][0] - JUDGED_S]).T
            found[name] = float(np.polyfit(at, size, 1)[0] * 60) if len(at) > 2 else float("nan")
        return found

    def failures(self) -> list[str]:
        """Everything that must not be; empty if all is well."""
        found = list(self.errors)
        gone = ("requests_running", "requests_waiting", "pages_running")
        found += [f"{name} is {self.final.get(name)} at the end" for name in gone if self.final.get(name) != 0]
        kept = self.final.get("pages_free", -1) + self.final.get("pages_cached", -1)
        if kept != self.final.get("pages_capacity"):
            found.append(f"{kept:g} pages are free or cached, of {self.final.get('pages_capacity')}")
        if self.seconds >= 1.5 * JUDGED_S:
            found += [
                f"{name} grows by {slope:.2f} MB a minute"
                for name, slope in self.slopes().items()
                if not slope < LIMIT_MB_PER_MINUTE
            ]
        return found


# ---- requests --------------------------------------------------------------------------------------------------------


class Client:
    """One user: sometimes a new conversation, sometimes the next turn of the old one."""

    def __init__(self, http: httpx.AsyncClient, seed: int, number: int, report: Report) -> None:
        self.http = http
        self.rng = random.Random(f"{seed}-{number}")
        self.report = report
        self.turns: list[dict[str, str]] = []

    async def work(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                if self.rng.random() < 0.05:
                    await self.bad()
                else:
                    await self.good()
            except (Wrong, httpx.HTTPError, TimeoutError) as error:
                self.report.outcomes["error"] += 1
                self.report.errors.append(f"{type(error).__name__}: {error}"[:400])
                await asyncio.sleep(1.0)  # a server that is gone is not to be flooded

    async def bad(self) -> None:
        """It must be refused with its field or code named."""
        path, body = self.rng.choice(BAD)
        content = body if isinstance(body, str) else json.dumps(body)
        answer = await self.http.post(path, content=content, headers={"content-type": "application/json"})
        if not (400 <= answer.status_code < 500 and answer.json()["error"]["message"]):
            raise Wrong(f"a bad request got {answer.status_code}: {answer.text[:200]}")
        self.report.outcomes["refused, as it must be"] += 1

    async def good(self) -> None:
        path, body = self.random_request()
        patience = self.rng.expovariate(0.5) if self.rng.random() < 0.25 else None
        kind = "streamed" if body.get("stream") else "whole"
        try:
            async with asyncio.timeout(ANSWER_S):
                if patience is None:
                    await self.ask(path, body)
                else:
                    async with asyncio.timeout(patience):
                        await self.ask(path, body)
        except TimeoutError:
            if patience is None:
                raise Wrong(f"no answer in {ANSWER_S:g} s to {json.dumps(body)[:200]}") from None
            self.report.outcomes[f"{kind}, given up"] += 1
            return
        self.report.outcomes[f"{kind}, answered"] += 1

    async def ask(self, path: str, body: dict[str, Any]) -> None:
        if body.get("stream"):
            choices = await self.streamed(path, body)
        else:
            answer = await self.http.post(path, json=body)
            if answer.status_code != 200:
                raise Wrong(f"status {answer.status_code}: {answer.text[:200]}")
            choices = {
                c["index"]: (c["message"]["content"] if "message" in c else c["text"], c["finish_reason"])
                for c in answer.json()["choices"]
            }
        if sorted(choices) != list(range(body.get("n", 1))):
            raise Wrong(f"choices {sorted(choices)} of {body.get('n', 1)}")
        for text, finish in choices.values():
            check_answer(body, text, finish)
        if "messages" in body:
            self.turns = [*body["messages"], {"role": "assistant", "content": choices[0][0]}]

    async def streamed(self, path: str, body: dict[str, Any]) -> dict[int, tuple[str, str | None]]:
        texts: dict[int, str] = {}
        ends: dict[int, str | None] = {}
        last = ""
        async with self.http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                raise Wrong(f"status {answer.status_code}: {(await answer.aread())[:200]!r}")
            async for line in answer.aiter_lines():
                if not line:
                    continue
                if not line.startswith("data: ") or last == "data: [DONE]":
                    raise Wrong(f"not an event, or after the end: {line[:200]}")
                last = line
                if line == "data: [DONE]":
                    continue
                try:
                    chunk = json.loads(line[6:])
                except ValueError:
                    raise Wrong(f"an event is not JSON: {line[:200]}") from None
                if "error" in chunk:
                    raise Wrong(f"an error in a stream: {line[:300]}")
                for piece in chunk["choices"]:
                    index = piece["index"]
                    if ends.get(index) is not None:
                        raise Wrong(f"choice {index} goes on after its end")
                    more = piece["delta"].get("content", "") if "delta" in piece else piece["text"]
                    texts[index] = texts.get(index, "") + more
                    ends[index] = piece["finish_reason"]
        if last != "data: [DONE]":
            raise Wrong("a stream without [DONE]")
        return {index: (text, ends[index]) for index, text in texts.items()}

    def random_request(self) -> tuple[str, dict[str, Any]]:
        rng = self.rng
        body: dict[str, Any] = {
            "max_tokens": rng.choice([1, 8, 24, 48]),
            "temperature": rng.choice([0, 0.7, 1.0]),
            "seed": rng.randrange(1000),
            "stream": rng.random() < 0.5,
        }
        if rng.random() < 0.2:
            body["n"] = rng.choice([2, 3])
        if rng.random() < 0.2:
            body["presence_penalty"] = 0.5
        body |= rng.choice([{}, {}, {"stop": [" the", "\n\n"]}, {"ignore_eos": True}])
        if "ignore_eos" not in body and rng.random() < 0.4:
            body |= rng.choice([
                {"response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}},
                {"response_format": {"type": "json_object"}}, {"regex": REGEX}, {"choice": CHOICES},
            ])  # fmt: skip
        own = " ".join(rng.choices(WORDS, k=rng.choice([3, 20, 60])))
        if rng.random() < 0.5:
            if rng.random() < 0.3:
                body["logprobs"] = True
                body["top_logprobs"] = rng.choice([0, 5])
            if not self.turns or len(self.turns) > 6 or rng.random() < 0.5:
                self.turns = [{"role": "system", "content": stem(rng.randrange(3))}]
            body["messages"] = [*self.turns, {"role": "user", "content": own}]
            return "/v1/chat/completions", body
        if rng.random() < 0.3:
            body["logprobs"] = rng.choice([0, 5])
            body["echo"] = "stop" not in body and not is_constrained(body)
        body["prompt"] = rng.choice([own, f"{stem(rng.randrange(3))} {own}"])
        return "/v1/completions", body


def stem(number: int) -> str:
    """One of the prefixes that many requests share: some 200 words."""
    return " ".join(random.Random(number).choices(WORDS, k=200))


def is_constrained(body: dict[str, Any]) -> bool:
    return any(name in body for name in ("response_format", "regex", "choice"))


def check_answer(body: dict[str, Any], text: str, finish: str | None) -> None:
    """Raise `Wrong` if a constrained answer that is whole is not what was asked for."""
    if finish not in ("stop", "length"):
        raise Wrong(f"finish_reason {finish}")
    if finish == "length" or "stop" in body or not is_constrained(body):
        return
    if "regex" in body and not re.fullmatch(REGEX, text):
        raise Wrong(f"does not match the regex: {text!r}")
    if "choice" in body and text not in CHOICES:
        raise Wrong(f"is none of the choices: {text!r}")
    if "response_format" in body:
        try:
            value = json.loads(text)
            jsonschema.validate(value, SCHEMA if "json_schema" in body["response_format"] else {"type": "object"})
        except (ValueError, jsonschema.ValidationError) as error:
            raise Wrong(f"not JSON as asked for: {text[:100]!r}: {str(error)[:100]}") from None


# ---- looking at the server -------------------------------------------------------------------------------------------


async def read_metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """The gauges that tell what is held, by short names."""
    found = {}
    for line in (await http.get("/metrics")).text.splitlines():
        match = re.fullmatch(r'bosquet_(requests_\w+|pages\w*)(?:\{state="(\w+)"\})? (\S+)', line)
        if match:
            found[match[1] + (f"_{match[2]}" if match[2] else "")] = float(match[3])
    return found


async def warm_up(http: httpx.AsyncClient) -> None:
    """Write to every page once, with prompts that share nothing: a page's memory comes with its first use."""
    pages = (await read_metrics(http))["pages_capacity"]
    for number in range(int(pages) // 32 + 1):
        ids = [100 + (number * 7919 + position) % 40_000 for position in range(512)]
        (await http.post("/v1/completions", json={"prompt": ids, "max_tokens": 1})).raise_for_status()


async def sample_memory(pid: int, report: Report) -> None:
    """Unshared memory of the server's process and of its engine, every second until cancelled."""
    began = time.monotonic()
    server = psutil.Process(pid)
    engine = next(c for c in server.children() if "engine_process" in " ".join(c.cmdline()))
    while True:
        for name, process in (("API process", server), ("engine", engine)):
            size = process.memory_full_info().uss / 1e6
            report.memory.setdefault(name, []).append((time.monotonic() - began, size))
        await asyncio.sleep(1.0)


async def soak(url: str, pid: int | None, clients: int, seconds: float, seed: int) -> Report:
    """Load the server at `url` for `seconds`, wait until it has calmed down, and report."""
    report = Report(seconds=seconds)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, limits=limits) as http:
        if seconds >= 1.5 * JUDGED_S:
            await warm_up(http)
        sampler = asyncio.create_task(sample_memory(pid, report)) if pid is not None else None
        until = time.monotonic() + seconds
        await asyncio.gather(*(Client(http, seed, number, report).work(until) for number in range(clients)))
        if sampler is not None:
            sampler.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampler
        for _ in range(50):  # a cancel needs a moment to arrive; a leak stays
            report.final = await read_metrics(http)
            if not report.final["requests_running"] + report.final["requests_waiting"]:
                break
            await asyncio.sleep(0.1)
    return report


@contextlib.contextmanager
def own_server() -> Iterator[tuple[str, int, Path]]:
    """A server on the embedded model with a small cache: its URL, its process and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).parent / "bosquet"), "serve", "embedded",
        "--port", str(port), "--cache-tokens", str(CACHE_TOKENS),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "PYTHONSAFEPATH": "1"})
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                if process.poll() is not None:
                    raise SystemExit(f"soak: the server ended:\n{log.read_text()}")
                time.sleep(0.2)
            yield url, process.pid, log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def print_report(report: Report) -> None:
    for name, count in sorted(report.outcomes.items()):
        print(f"{name:28} {count:8}")
    for name, value in sorted(report.final.items()):
        print(f"{name:28} {value:8.0f}")
    for name, slope in report.slopes().items():
        samples = report.memory[name]
        print(f"{name:28} {samples[0][1]:8.1f} MB -> {samples[-1][1]:.1f} MB; last minute {slope:+.2f} MB/min")
    if not report.memory:
        print("memory: not measured, since no --pid was given")
    elif report.seconds < 1.5 * JUDGED_S:
        print(f"memory: not judged, since the load lasted less than {1.5 * JUDGED_S:g} s")
    failures = report.failures()
    for failure, count in Counter(failures).most_common(20):
        print(f"FAILED ({count} times): {failure}")
    print("all is well" if not failures else f"{len(failures)} failures")


def main() -> int:
    parser = argparse.ArgumentParser(description="Load a server with random requests and cancels; find what breaks.")
    parser.add_argument("--url", help="a server that runs; without it, one is started")
    parser.add_argument("--pid", type=int, help="process of the server at --url, to measure its memory")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    what = (options.clients, options.seconds, options.seed)
    if options.url:
        report = asyncio.run(soak(options.url, options.pid, *what))
    else:
        with own_server() as (url, pid, log):
            report = asyncio.run(soak(url, pid, *what))
            if "Traceback" in (text := log.read_text()):
                report.errors.append(f"a traceback in the server's log:\n{text[text.index('Traceback') :][:2000]}")
    print_report(report)
    return 1 if report.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
