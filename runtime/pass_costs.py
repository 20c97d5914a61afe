"""How long passes of a few widths take, measured once before the first request.

Knows the runner and plans; nothing of what the figures are for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..types import PAGE, Row, SamplingParams
from .plan import Plan, Runner, SampleRow

WIDTHS = (1, 8)
"""Tokens of one row."""

TIMES = 3


def measure(runner: Runner, widths: Sequence[int] = WIDTHS) -> dict[int, float]:
    """Seconds by tokens, the least of a few tries each. Writes to the first pages, which nobody may own yet."""
    pages = range(-(-max(widths) // PAGE))
    greedy = SamplingParams(temperature=0)
    seconds: dict[int, float] = {}
    for _ in range(TIMES):
        for width in widths:
            began = time.perf_counter()
            plan = Plan([Row([0] * width, 0, pages, range(width))], draws=[0] * width)
            handle = runner.submit(plan)
            handle.sample([SampleRow(i, greedy, 0, 0, i + 1) for i in range(width)], [])
            handle.result()
            seconds[width] = min(seconds.get(width, 1e9), time.perf_counter() - began)
    return seconds
