"""A strict reader of the Trace Event Format, written from its public description and from nothing of ours.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. `faults` names the rule that is broken:

    document     an object with the array traceEvents ("JSON Object Format")
    unit         displayTimeUnit is ms or ns
    known        what else stands beside traceEvents has the type that the description gives it
    phase        ph is one of the letters of the table of event types
    name, cat    are texts; cat is a list of words between commas
    ids          pid and tid are whole numbers that 32 bits hold: viewers read no others
    time         ts is a finite number of microseconds, not below zero; only metadata goes without
    args         is an object, with JSON values and texts for names
    complete     X has dur, a finite number not below zero; so have tts and tdur where they are there
    metadata     M has one of five names, and in args what belongs to it, of its type
    nesting      slices of a thread lie beside or within each other: viewers drop those that overlap in part
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

PHASES = frozenset("BEXiICbneSTpFstfPNODMVvRc(),")
BESIDE: dict[str, type | tuple[type, ...]] = {
    "displayTimeUnit": str, "systemTraceEvents": str, "otherData": dict, "stackFrames": dict, "samples": list,
    "controllerTraceDataKey": str, "powerTraceAsString": str, "metadata": dict,
}  # fmt: skip
METADATA: dict[str, tuple[str, type]] = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def faults(document: Any) -> list[str]:
    """The broken rules, each with the number of the event; empty for a file that keeps to all of them."""
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        return ["document"]
    found = [f"known: {name}" for name, kind in BESIDE.items() if name in document and not _is(document[name], kind)]
    if document.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        found.append("unit")
    for number, event in enumerate(document["traceEvents"]):
        found += [f"{rule}: {number}" for rule in _broken(event)]
    return found or [f"nesting: {number}" for number in _misnested(document["traceEvents"])]


def _broken(event: Any) -> Iterator[str]:
    if not isinstance(event, dict) or event.get("ph") not in PHASES:
        yield "phase"
        return
    rules: dict[str, Callable[[dict[str, Any]], bool]] = {
        "name": lambda e: isinstance(e.get("name"), str),
        "cat": lambda e: "cat" not in e or (isinstance(e["cat"], str) and all(map(str.strip, e["cat"].split(",")))),
        "ids": lambda e: all(_is(e.get(field), int) and 0 <= e[field] < 2**31 for field in ("pid", "tid")),
        "time": lambda e: _is_time(e["ts"]) if "ts" in e else e["ph"] == "M",
        "args": lambda e: "args" not in e or (isinstance(e["args"], dict) and _is_json(e["args"])),
    }
    if event["ph"] == "X":
        rules["complete"] = lambda e: _is_time(e.get("dur")) and all(_is_time(e.get(f, 0)) for f in ("tts", "tdur"))
    if event["ph"] == "M":
        rules["metadata"] = _is_metadata
    yield from (rule for rule, kept in rules.items() if not kept(event))


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    return _is(value, (int, float)) and math.isfinite(value) and value >= 0


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def _is_metadata(event: dict[str, Any]) -> bool:
    field, kind = METADATA.get(str(event.get("name")), ("", str))
    args = event.get("args")
    return isinstance(args, dict) and field in args and _is(args[field], kind)


def _misnested(events: list[dict[str, Any]]) -> Iterator[int]:
    """Slices that begin in another one of their thread and end after it."""
    open_: dict[tuple[int, int], list[float]] = defaultdict(list)
    slices = [(event["ts"], number, event) for number, event in enumerate(events) if event["ph"] == "X"]
    for start, number, event in sorted(slices, key=lambda each: each[:2]):  # in a file's order where times are equal
        ends, end = open_[event["pid"], event["tid"]], start + event["dur"]
        while ends and ends[-1] <= start:
            ends.pop()
        if ends and ends[-1] < end:
            yield number
        ends.append(end)
