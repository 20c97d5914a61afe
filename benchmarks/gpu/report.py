"""The table's lines, the targets, and how the minutes are dealt out. Pure functions, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

WIDTHS = (9, 50, 15, 24, 7)
HEADER = ("part", "case", "found", "held against", "share")


class Finding(NamedTuple):
    """One line: what was found, what it is held against, and the found share of that. `verdict` is empty for a figure
    that is neither right nor wrong; `facts` go to the file."""

    found: str
    against: str = ""
    share: str = ""
    verdict: str = ""
    facts: Mapping[str, Any] = {}


def line(part: str, case: str, finding: Finding) -> str:
    return _row((part, case, finding.found, finding.against, finding.share), finding.verdict)


def header() -> str:
    return f"{_row(HEADER, 'verdict')}\n{'-' * (sum(WIDTHS) + 2 * len(WIDTHS) + 7)}"


def _row(cells: Sequence[str], last: str) -> str:
    return "  ".join([*(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)), last]).rstrip()


def seconds(value: float) -> str:
    """In the unit that leaves one to three digits before the point."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} us"


def share(value: float) -> str:
    return f"{value:.0%}"


def compared(worst: float, bound: float, **facts: Any) -> Finding:
    """A worst error beside its bound. What is no number is wrong."""
    right = worst <= bound
    return Finding(
        f"error {worst:.1e}", f"at most {bound:.1e}", "", "ok" if right else "WRONG",
        {"worst": worst, "bound": bound, "right": right, **facts},
    )  # fmt: skip


def exact(right: bool, what: str, **facts: Any) -> Finding:
    return Finding(what, "exactly", "", "ok" if right else "WRONG", {"right": right, **facts})


class Target(NamedTuple):
    """`figure` is the name under which a part leaves its number; at least `bound`, or at most it."""

    name: str
    figure: str
    bound: float
    at_most: bool = False
    unit: str = "%"


TARGETS = (
    Target("decode batch 1, 8B bf16, of bytes / copy", "decode 8B bfloat16 1x1024", 0.85),
    Target("decode batch 64, context 8k: attention, of copy", "attention decode 64x8192", 0.75),
    Target("decode batch 64, context 8k: step over floor", "step 8B bfloat16 64x8192", 1.2, True, "x"),
    Target("prefill 8k, of the GEMM rate", "prefill 8B bfloat16 8192", 0.60),
    Target("fp8 over bf16, batch 1", "speed-up fp8", 1.6, unit="x"),
    Target("int4 over bf16, batch 1", "speed-up int4", 2.3, unit="x"),
    Target("host gap between steps, overlap and graphs", "host gap", 0.03, True),
    Target("draft model, acceptance 0.8, batch 1", "draft model", 2.0, unit="x"),
)


def judge(target: Target, figures: Mapping[str, float]) -> Finding:
    """A target's line; `figures` by name."""
    relation = "at most" if target.at_most else "at least"
    against = f"{relation} {_number(target.bound, target.unit)}"
    value = figures.get(target.figure)
    if value is None:
        return Finding("-", against, "", "not run", {"target": target.name, "met": None})
    met = value <= target.bound if target.at_most else value >= target.bound
    facts = {"target": target.name, "value": value, "bound": target.bound, "met": met}
    return Finding(_number(value, target.unit), against, "", "met" if met else "MISSED", facts)


def _number(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "%" else f"{value:.2f}{unit}"


def derived(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures made of others: what smaller weights gain in decoding one sequence of the 8B shape, as a ratio of tokens
    a second; and the largest host gap, whatever the number of streams."""
    plain = figures.get("rate 8B bfloat16 1x1024")
    rates = {storage: figures.get(f"rate 8B {storage} 1x1024") for storage in ("fp8", "int4")}
    found = {f"speed-up {storage}": rate / plain for storage, rate in rates.items() if rate and plain}
    gaps = [value for name, value in figures.items() if name.startswith("host gap ")]
    return found | ({"host gap": max(gaps)} if gaps else {})


def allotted(left: float, shares: Sequence[float]) -> float:
    """Seconds for the first of the parts that are still to come, each of which has a share; what one leaves over goes
    to those after it."""
    return max(0.0, left) * shares[0] / sum(shares)


class Countdown:
    """Seconds that are left of so many."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        return self._end - self._clock()
