"""Lines through measured points, several panels side by side, as an SVG that needs no library. The horizontal axis is
logarithmic, since what is drawn is measured at 1, 2, 4, … of something. Knows nothing of how figures are made."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from .plot import OTHERS, OURS, STYLE, number

WIDTH, HEIGHT, GAP = 250, 170, 56
TOP, BOTTOM = 30, 40
COLORS = (OURS, *OTHERS)
LEGEND = 16


class Curve(NamedTuple):
    """Points (x, y), x at least 1."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    title: str
    across: str
    curves: Sequence[Curve]


def curves(panels: Sequence[Panel]) -> str:
    """Each panel has scales of its own; the vertical one begins at 0."""
    lines = max(len(panel.curves) for panel in panels)
    width = len(panels) * (WIDTH + GAP) + 12
    height = TOP + HEIGHT + BOTTOM + LEGEND * lines
    parts = [part for at, panel in enumerate(panels) for part in _panel(panel, GAP + at * (WIDTH + GAP))]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    ground = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", ground, *parts, "</svg>\n"])


def _panel(panel: Panel, left: float) -> Iterator[str]:
    points = [point for curve in panel.curves for point in curve.points]
    xs = sorted({x for x, _ in points})
    span, top = math.log2(xs[-1] / xs[0]) or 1.0, max(y for _, y in points) or 1.0
    bottom = TOP + HEIGHT

    def across(x: float) -> float:
        return left + WIDTH * math.log2(x / xs[0]) / span

    def up(y: float) -> float:
        return bottom - HEIGHT * y / top

    yield f'<text class="w" x="{left}" y="18">{escape(panel.title)}</text>'
    yield f'<path d="M{left} {TOP}V{bottom}H{left + WIDTH}" fill="none" stroke="#adb5bd"/>'
    for x in xs:
        yield f'<text class="d" x="{across(x):.1f}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>'
    yield f'<text class="d" x="{left + WIDTH / 2}" y="{bottom + 32}" text-anchor="middle">{escape(panel.across)}</text>'
    for y in (0.0, top / 2, top):
        yield f'<text class="d" x="{left - 6}" y="{up(y) + 4:.1f}" text-anchor="end">{number(y)}</text>'
        yield f'<path d="M{left} {up(y):.1f}h{WIDTH}" stroke="#adb5bd" stroke-opacity=".3"/>'
    for at, (curve, color) in enumerate(zip(panel.curves, itertools.cycle(COLORS), strict=False)):
        ordered = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in sorted(curve.points))
        yield f'<polyline points="{ordered}" fill="none" stroke="{color}" stroke-width="2"/>'
        for x, y in curve.points:
            yield f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{color}"/>'
        base = bottom + BOTTOM + LEGEND * at + 8
        yield f'<path d="M{left} {base - 4}h14" stroke="{color}" stroke-width="2"/>'
        yield f'<text x="{left + 20}" y="{base}">{escape(curve.name)}</text>'
