"""Short names for the shapes of structural formats (grammar/formats.py)."""

from __future__ import annotations

from collections.abc import Sequence

from .base import FormatJson, Tool

BLANKS: FormatJson = {"type": "regex", "pattern": "[ \\t\\r\\n]*"}
NOTHING: FormatJson = {"type": "regex", "pattern": "()"}
ANY: FormatJson = {"type": "any_text"}


def const(text: str) -> FormatJson:
    return {"type": "const_string", "value": text}


def sequence(*elements: FormatJson) -> FormatJson:
    return {"type": "sequence", "elements": list(elements)} if len(elements) != 1 else elements[0]


def either(*elements: FormatJson) -> FormatJson:
    return {"type": "or", "elements": list(elements)} if len(elements) != 1 else elements[0]


def tag(begin: str, content: FormatJson, end: str) -> FormatJson:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def schema(value: dict[str, object] | bool) -> FormatJson:
    return {"type": "json_schema", "json_schema": value}


def listed(tags: Sequence[FormatJson], separator: str, many: bool) -> FormatJson:
    """One of the tags, or several if `many`."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not many,
    }


def optional(*forms: FormatJson) -> FormatJson:
    """One of them, or nothing."""
    return either(*forms, NOTHING)


def repeated(*tags: FormatJson) -> FormatJson:
    """Any number of the tags."""
    return {**listed(tags, "", many=True), "at_least_one": False}


def triggered(trigger: str, tags: Sequence[FormatJson], many: bool) -> FormatJson:
    """Free text; when it spells the trigger, one of the tags follows. Without `many` that is the end."""
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": list(tags),
        "at_least_one": False,
        "stop_after_first": not many,
    }


def text_not_from(first: str) -> FormatJson:
    """Free text, perhaps none, whose first character besides blanks is not `first`, nor begins a marker `<|`. So what
    begins like a call has to be one."""
    opening = {"type": "regex", "pattern": f"[ \\t\\r\\n]*([^ \\t\\r\\n<\\{first}]|<[^|])"}
    return either(sequence(opening, ANY), BLANKS)


def arguments(tool: Tool) -> FormatJson:
    """The JSON text of a tool's arguments."""
    return schema(tool.schema)
