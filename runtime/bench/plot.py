"""A bar for each server and workload, as an SVG that needs no library. Knows nothing of how figures are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape

from .figures import Row

WIDTH, LEFT, RIGHT = 760, 150, 150
BAR, GAP, TITLE = 16, 6, 30
OURS, OTHERS = "#d9480f", ("#5c7cfa", "#20c997", "#fab005", "#be4bdb", "#868e96")
STYLE = "text{font:12px system-ui,sans-serif;fill:#343a40}.w{font-weight:600}.d{fill:#868e96}"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def svg(rows: Sequence[Row], first: str, about: str) -> str:
    """The longer a bar, the faster the server; each workload has a scale of its own. `first` is the server that the
    others are compared with, `about` a line on the machine. A thin line goes from the slowest round to the fastest."""
    names = dict.fromkeys(row.server for row in rows if row.server != first)
    colors = {first: OURS, **dict(zip(names, itertools.cycle(OTHERS), strict=False))}
    parts: list[str] = []
    y = TITLE
    for workload, group in itertools.groupby(rows, key=lambda row: row.workload):
        servers = list(group)
        parts.append(f'<text y="{y + 16}"><tspan class="w">{escape(workload)}</tspan> {escape(servers[0].unit)}</text>')
        y += TITLE - GAP
        best = max(_speed(row, value) for row in servers for value in (row.figure, row.low, row.high))
        for row in servers:
            parts += _bar(row, y, best, first, colors[row.server])
            y += BAR + GAP
        y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 {WIDTH + 24} {y + GAP}" width="{WIDTH + 24}">'
    ground = f'<rect x="-12" width="{WIDTH + 24}" height="{y + GAP}" fill="#fff"/>'
    title = f'<text class="d" y="20">{escape(about)}. The longer, the faster.</text>'
    return "\n".join([head, f"<style>{STYLE}</style>", ground, title, *parts, "</svg>\n"])


def _speed(row: Row, value: float | None) -> float:
    return 0.0 if not value else 1 / value if row.unit == "seconds" else value


def _bar(row: Row, y: int, best: float, first: str, color: str) -> Iterator[str]:
    middle, base = y + BAR / 2, y + 12
    yield f'<text x="{LEFT - 8}" y="{base}" text-anchor="end">{escape(row.server)}</text>'
    if row.figure is None:
        yield f'<text class="d" x="{LEFT}" y="{base}">{escape("; ".join(row.notes) or "no result")}</text>'
        return
    scale = (WIDTH - LEFT - RIGHT) / best if best else 0.0
    length = scale * _speed(row, row.figure)
    yield f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" fill="{color}"/>'
    ends = sorted(LEFT + scale * _speed(row, value) for value in (row.low, row.high))
    if row.low != row.high:
        yield f'<path d="M{ends[0]:.1f} {middle}H{ends[1]:.1f}" stroke="#343a40" stroke-opacity=".6"/>'
    told = row.lead is not None and row.server != first
    lead = f' <tspan class="d">({escape(first)} is {row.lead:.2f}×)</tspan>' if told else ""
    yield f'<text x="{max(LEFT + length, ends[1]) + 8:.1f}" y="{base}">{number(row.figure)}{lead}</text>'
