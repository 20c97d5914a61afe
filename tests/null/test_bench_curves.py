"""Panels of curves are well-formed, and points stand where their numbers say."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from bosquet.runtime.bench.curves import HEIGHT, TOP, WIDTH, Curve, Panel, curves

SVG = "{http://www.w3.org/2000/svg}"


def test_points_stand_where_their_numbers_say() -> None:
    measured = Curve("a <b>", [(1, 2.0), (2, 4.0), (8, 16.0)])
    root = ElementTree.fromstring(
        curves([Panel("T & t", "streams", [measured]), Panel("u", "v", [measured, measured])])
    )
    dots = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in root.iter(f"{SVG}circle")]
    assert len(dots) == 9
    left = dots[0][0]
    for (x, y), (cx, cy) in zip(measured.points, dots, strict=False):
        assert cx - left == pytest.approx(WIDTH * math.log2(x) / 3, abs=0.1)
        assert TOP + HEIGHT - cy == pytest.approx(HEIGHT * y / 16, abs=0.1)
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert all(0 < x < width and 0 < y < height for x, y in dots)
    text = [element.text for element in root.iter(f"{SVG}text")]
    assert text.count("a <b>") == 3
    assert "T & t" in text


def test_one_point_and_nothing_but_zeros_are_drawn() -> None:
    ElementTree.fromstring(
        curves([Panel("one", "x", [Curve("a", [(4, 3.0)])]), Panel("0", "x", [Curve("b", [(1, 0)])])])
    )
