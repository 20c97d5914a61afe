"""What a structural format means, written down a second time, slowly: which texts are of a format.

For small texts. JSON parts are compared with the validator `jsonschema`, patterns with `re`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import jsonschema


def matches(node: dict[str, Any], text: str) -> bool:
    """Whether the whole text is of the format (one that `check_format` gave back)."""
    return len(text) in _ends(node, text, 0, ())


def _ends(node: dict[str, Any], text: str, at: int, stops: tuple[str, ...]) -> set[int]:
    """Where a match that begins at `at` may end. Free text holds none of `stops`."""
    kind = node["type"]
    rest = range(at, len(text) + 1)
    if kind == "const_string":
        return {at + len(node["value"])} if text.startswith(node["value"], at) else set()
    if kind == "regex":
        return {end for end in rest if re.fullmatch(node["pattern"], text[at:end])}
    if kind == "json_schema":
        return {end for end in rest if _is_json(node["json_schema"], text[at:end])}
    if kind == "any_text":
        return {end for end in rest if _free(text, at, end, stops)}
    if kind == "or":
        return {end for inner in node["elements"] for end in _ends(inner, text, at, stops)}
    if kind == "sequence":
        places = {at}
        for inner in node["elements"]:
            places = {end for place in places for end in _ends(inner, text, place, stops)}
        return places
    if kind == "tag":
        return _tag(node, text, at)
    if kind == "tags_with_separator":
        return _separated(node, text, at)
    return _triggered(node, text, at, stops)


def _is_json(schema: Any, text: str) -> bool:
    if text != text.strip():
        return False
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def _free(text: str, start: int, end: int, stops: Iterable[str]) -> bool:
    return not any(stop in text[start:end] for stop in stops)


def _tag(node: dict[str, Any], text: str, at: int) -> set[int]:
    if not text.startswith(node["begin"], at):
        return set()
    inner = at + len(node["begin"])
    found = set()
    for place in _ends(node["content"], text, inner, tuple(node["end"])):
        for end in node["end"]:
            if text.startswith(end, place) and _first(node["content"], text, inner, place, end, node["end"]):
                found.add(place + len(end))
    return found


def _first(content: dict[str, Any], text: str, inner: int, place: int, end: str, ends: list[str]) -> bool:
    """Free text stops at the first end that is spelled, also by its own last characters."""
    if content["type"] != "any_text":
        return True
    whole = text[inner : place + len(end)]
    return all(whole.find(other) in (-1, len(whole) - len(other)) for other in ends if other)


def _separated(node: dict[str, Any], text: str, at: int) -> set[int]:
    found = set() if node["at_least_one"] else {at}
    reached = {end for tag in node["tags"] for end in _tag(tag, text, at)}
    while reached - found:
        found |= reached
        if node["stop_after_first"]:
            break
        separator = node["separator"]
        after = [end + len(separator) for end in reached if text.startswith(separator, end)]
        reached = {end for place in after for tag in node["tags"] for end in _tag(tag, text, place)}
    return found


def _triggered(node: dict[str, Any], text: str, at: int, stops: tuple[str, ...]) -> set[int]:
    once = node["stop_after_first"]
    if node["at_least_one"]:
        firsts = {end for tag in node["tags"] for end in _tag(tag, text, at)}
        return firsts if once else {end for place in firsts for end in _text_and_tags(node, text, place, stops, once)}
    return _text_and_tags(node, text, at, stops, once)


def _text_and_tags(node: dict[str, Any], text: str, at: int, stops: tuple[str, ...], once: bool) -> set[int]:
    found: set[int] = set()
    waiting = [at]
    seen = set()
    while waiting:
        start = waiting.pop()
        if start in seen:
            continue
        seen.add(start)
        markers = (*node["triggers"], *stops)
        found |= {end for end in range(start, len(text) + 1) if _free(text, start, end, markers)}
        for trigger in node["triggers"]:
            place = text.find(trigger, start)
            if place < 0 or not _free(text, start, place + len(trigger) - 1, markers):
                continue
            after = {end for tag in node["tags"] if tag["begin"].startswith(trigger) for end in _tag(tag, text, place)}
            if once:
                found |= after
            else:
                waiting += after
    return found
