"""The plot is well-formed, and its bars are as long as the servers are fast."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bosquet.runtime.bench.figures import Row
from bosquet.runtime.bench.plot import OURS, number, svg

SVG = "{http://www.w3.org/2000/svg}"


def row(workload: str, server: str, figure: float | None, lead: float | None = 1.0, unit: str = "output tok/s") -> Row:
    return Row(workload, server, unit, figure, low=figure, high=figure, lead=lead)


def drawn(rows: list[Row]) -> tuple[list[tuple[str, float]], str]:
    """Colour and length of each bar, and all text."""
    root = ElementTree.fromstring(svg(rows, "ours", "a <CPU> & cores"))
    assert root.tag == f"{SVG}svg"
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.get("rx")]
    width, bottom = float(root.get("viewBox", "").split()[2]), float(root.get("viewBox", "").split()[3])
    for bar in bars:
        assert float(bar.get("x", "")) + float(bar.get("width", "")) < width
        assert float(bar.get("y", "")) + float(bar.get("height", "")) < bottom
    lengths = [(str(bar.get("fill")), float(bar.get("width", ""))) for bar in bars]
    return lengths, " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))


def test_bars_are_as_long_as_servers_are_fast() -> None:
    rows = [row("single", "ours", 120.0), row("single", "a<b", 30.0, 4.0), row("single", "c", 60.0, 2.0)]
    bars, text = drawn(rows)
    assert [bar[0] == OURS for bar in bars] == [True, False, False]
    assert len({color for color, _ in bars}) == 3
    assert [length / bars[0][1] for _, length in bars] == pytest.approx([1.0, 0.25, 0.5], abs=1e-3)
    assert "a<b" in text
    assert "a <CPU> & cores" in text
    assert "30.0 (ours is 4.00×)" in text
    assert text.count("ours is") == 2


def test_fewer_seconds_are_a_longer_bar_and_workloads_have_their_own_scale() -> None:
    rows = [row("agents", "ours", 20.0, unit="seconds"), row("agents", "peer", 50.0, 2.5, unit="seconds")]
    bars, _ = drawn([*rows, row("single", "ours", 1.0), row("single", "peer", 4.0, 0.25)])
    longest = bars[0][1]
    assert [length / longest for _, length in bars] == pytest.approx([1.0, 0.4, 0.25, 1.0], abs=1e-3)
    assert [color for color, _ in bars[:2]] == [color for color, _ in bars[2:]]


def test_a_thin_line_shows_the_rounds() -> None:
    spread = Row("single", "ours", "output tok/s", 50.0, low=40.0, high=100.0, lead=1.0)
    shown = svg([spread], "ours", "")
    line = ElementTree.fromstring(shown).find(f"{SVG}path")
    bar = next(rect for rect in ElementTree.fromstring(shown).iter(f"{SVG}rect") if rect.get("rx"))
    assert line is not None
    left, least, most = (
        float(x) for x in (bar.get("x", ""), *line.get("d", "M0 0H0")[1:].replace(" ", "H").split("H")[::2])
    )
    assert (most - left) / (least - left) == pytest.approx(100 / 40, abs=0.01)
    assert (most - left) / float(bar.get("width", "")) == pytest.approx(2, abs=0.01)
    assert "<path" not in svg([row("single", "ours", 50.0)], "ours", "")


def test_what_was_not_measured_says_why() -> None:
    bars, text = drawn([row("json", "ours", 2.0), Row("json", "peer", "valid/s", notes=("it can't",))])
    assert len(bars) == 1
    assert "it can't" in text
    bars, text = drawn([Row("json", "ours", "valid/s")])
    assert (bars, "no result" in text) == ([], True)


def test_numbers() -> None:
    assert [number(value) for value in (1234.5, 123.45, 12.345, 1.2345, 0.0)] == [
        "1,234",
        "123.5",
        "12.3",
        "1.23",
        "0.00",
    ]
