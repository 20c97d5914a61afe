"""Looks at a share of the finished structured outputs, off the event loop, and counts what does not fit its schema.

Knows nothing of HTTP. What an output said is never logged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...grammar.tools.base import Event, Parsed
from ...types import Output, Relaxed
from .metrics import Metrics
from .output_check import Finding, as_enforced, check_text

log = logging.getLogger("bosquet.server")

_background: set[asyncio.Task[None]] = set()  # the loop holds tasks weakly


@dataclass(frozen=True, slots=True)
class Expected:
    """What an output is held to, besides its shape. `answer` is the schema of the text, at `answer_at` in the grammar;
    None: the text is free. `tools` are the schemas of arguments by tool, `tools_at` their places."""

    answer: dict[str, Any] | bool | None = None
    answer_at: str = "#"
    tools: Mapping[str, Any] = field(default_factory=dict)
    tools_at: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.answer is not None or bool(self.tools)


class Inspection:
    """That of one request. `relaxed` is what the engine says that the output is not held to, once it has said so."""

    def __init__(self, expected: Expected, request_id: str, metrics: Metrics) -> None:
        self.relaxed: Sequence[Relaxed] = ()
        self._expected = expected
        self._request_id = request_id
        self._metrics = metrics
        self._parsed: dict[int, Parsed] = {}

    def see(self, choice: int, events: Sequence[Event], output: Output) -> None:
        """Takes what a step added to a choice; with the last, the check begins, in the background."""
        parsed = self._parsed.setdefault(choice, Parsed()).add(events)
        if output.finish is None:
            return
        del self._parsed[choice]
        cut = output.finish != "stop" or (output.stop is not None and output.stop.text is not None)
        if not cut:
            task = asyncio.create_task(self._check(parsed))
            _background.add(task)
            task.add_done_callback(_background.discard)

    async def _check(self, parsed: Parsed) -> None:
        findings = await asyncio.to_thread(self._findings, parsed)
        for kind, finding in findings:
            self._metrics.checked.labels(kind, finding.verdict).inc()
            if finding.verdict == "invalid":
                log.error("request %s: its %s breaks the schema at %s", self._request_id, kind, finding.keyword)

    def _findings(self, parsed: Parsed) -> list[tuple[str, Finding]]:
        expected = self._expected
        findings = []
        if expected.answer is not None and not parsed.calls:
            schema = as_enforced(expected.answer, self.relaxed, expected.answer_at)
            findings.append(("json", check_text(parsed.content, schema)))
        for call in parsed.calls:
            if call.name not in expected.tools:
                findings.append(("arguments", Finding("invalid", "no such tool")))
                continue
            place = expected.tools_at.get(call.name)
            schema = expected.tools[call.name]
            if place is not None:
                schema = as_enforced(schema, self.relaxed, place)
            elif self.relaxed:
                findings.append(("arguments", Finding("undecided")))
                continue
            findings.append(("arguments", check_text(call.arguments, schema)))
        return findings


def inspection(share: float, expected: Expected, request_id: str, metrics: Metrics) -> Inspection | None:
    """None for what has no schema, and for those that chance passes over."""
    if not expected or random.random() >= share:
        return None
    return Inspection(expected, request_id, metrics)
