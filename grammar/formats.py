"""Structural formats: what text around JSON may look like, such as the markers of tool calls. Shapes and their checks.

A format is a JSON object with a `type`:

    const_string{value}                 that text
    json_schema{json_schema}            a JSON text that the schema describes
    regex{pattern}                      a text that the whole pattern matches
    any_text{}                          any text; inside a tag, up to the first of the tag's ends
    sequence{elements}                  one after the other
    or{elements}                        one of them
    tag{begin, content, end}            begin, content, end; `end` may be a list: one of them
    triggered_tags{triggers, tags, at_least_one, stop_after_first}
                                        free text; whenever it spells a trigger, one of the tags that begin with that
                                        trigger follows. Inside a tag, the free text also ends at the tag's ends
    tags_with_separator{tags, separator, at_least_one, stop_after_first}
                                        tags with the separator between them, and nothing else

`at_least_one` of triggered tags: the text begins with a tag. `stop_after_first`: nothing follows the first tag.
The last two flags are false unless given. The shapes are those of the structural tags of xgrammar 0.2.

Knows nothing of engines, and needs none of their packages. What a schema or pattern inside may hold is not judged here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from ..errors import GrammarInvalid

Format = dict[str, Any]

MAX_DEPTH = 32
"""Formats nested in one another."""

_FLAGS = ("at_least_one", "stop_after_first")


def check_format(value: str) -> Format:
    """The format that is the JSON text `value`, with every flag present and every `end` a list.

    Raises `GrammarInvalid`, whose message holds the JSON pointer of what is wrong.
    """
    try:
        root = json.loads(value, parse_constant=_no_constant)
    except RecursionError:
        raise GrammarInvalid("format: nested too deep") from None
    except ValueError as error:
        raise GrammarInvalid(f"format: not valid JSON: {error}") from None
    return _checked(root, "#", 0)


def parts(node: Format, path: str = "#") -> Iterator[tuple[str, Format]]:
    """Every format inside a checked one, itself first, each with its JSON pointer."""
    yield path, node
    for name in ("elements", "tags"):
        for at, inner in enumerate(node.get(name, ())):
            yield from parts(inner, f"{path}/{name}/{at}")
    if "content" in node:
        yield from parts(node["content"], f"{path}/content")


def is_open(node: Format) -> bool:
    """The format ends in free text: only the text itself, or an enclosing tag's end, says where it is over."""
    kind: str = node["type"]
    if kind == "triggered_tags":
        return not all(node[name] for name in _FLAGS)
    if kind in ("sequence", "or"):
        return any(map(is_open, node["elements"]))
    return kind == "any_text"


def refuse(path: str, why: str) -> NoReturn:
    raise GrammarInvalid(f"format: {path}: {why}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _checked(node: Any, path: str, depth: int) -> Format:
    if depth > MAX_DEPTH:
        refuse(path, f"formats are nested more than {MAX_DEPTH} deep")
    if not isinstance(node, dict):
        refuse(path, f"a format is an object, not {_shown(node)}")
    kind = node.get("type")
    if not isinstance(kind, str) or kind not in _CHECKS:
        refuse(f"{path}/type", f"one of {', '.join(_CHECKS)}, not {_shown(kind)}")
    names, check = _CHECKS[kind]
    for name in node:
        if name != "type" and name not in names:
            refuse(path, f"`{_cut(name)}` is not known in a format of type {kind}")
    for name in names:
        if name not in node and name not in _FLAGS:
            refuse(path, f"`{name}` is missing")
    return {"type": kind, **check(node, path, depth)}


def _const_string(node: Format, path: str, depth: int) -> Format:
    return {"value": _text(node, "value", path)}


def _json_schema(node: Format, path: str, depth: int) -> Format:
    schema = node["json_schema"]
    if not isinstance(schema, (dict, bool)):
        refuse(f"{path}/json_schema", f"a schema is an object or a boolean, not {_shown(schema)}")
    return {"json_schema": schema}


def _regex(node: Format, path: str, depth: int) -> Format:
    return {"pattern": _text(node, "pattern", path)}


def _any_text(node: Format, path: str, depth: int) -> Format:
    return {}


def _sequence(node: Format, path: str, depth: int) -> Format:
    elements = _formats(node, "elements", path, depth)
    for at, element in enumerate(elements[:-1]):
        if is_open(element):
            refuse(f"{path}/elements/{at}", "nothing may follow free text that no tag ends")
    return {"elements": elements}


def _or(node: Format, path: str, depth: int) -> Format:
    return {"elements": _formats(node, "elements", path, depth)}


def _tag(node: Format, path: str, depth: int) -> Format:
    begin = _text(node, "begin", path)
    content = _checked(node["content"], f"{path}/content", depth + 1)
    given = node["end"]
    ends = list(given) if isinstance(given, list) else [given]
    if not ends or not all(isinstance(end, str) for end in ends):
        refuse(f"{path}/end", f"a string or a list of strings, not {_shown(given)}")
    for end in ends:
        _sound(end, f"{path}/end")
    if is_open(content):
        if "" in ends:
            refuse(f"{path}/end", "free text needs an end that is not empty")
        _refuse_overlap(ends, f"{path}/end")
    return {"begin": begin, "content": content, "end": list(dict.fromkeys(ends))}


def _triggered_tags(node: Format, path: str, depth: int) -> Format:
    triggers = node["triggers"]
    if not isinstance(triggers, list) or not triggers:
        refuse(f"{path}/triggers", "a list of at least one string")
    for at, trigger in enumerate(triggers):
        _text({at: trigger}, at, f"{path}/triggers")
    _refuse_overlap(triggers, f"{path}/triggers")
    tags = _tags(node, path, depth)
    for at, tag in enumerate(tags):
        if not any(tag["begin"].startswith(trigger) for trigger in triggers):
            refuse(f"{path}/tags/{at}/begin", "does not begin with a trigger")
    for at, trigger in enumerate(triggers):
        if not any(tag["begin"].startswith(trigger) for tag in tags):
            refuse(f"{path}/triggers/{at}", "no tag begins with it")
    return {"triggers": list(triggers), "tags": tags, **_flags(node, path)}


def _tags_with_separator(node: Format, path: str, depth: int) -> Format:
    separator = node["separator"]
    if not isinstance(separator, str):
        refuse(f"{path}/separator", f"a string, not {_shown(separator)}")
    _sound(separator, f"{path}/separator")
    return {"tags": _tags(node, path, depth), "separator": separator, **_flags(node, path)}


_CHECKS: dict[str, tuple[tuple[str, ...], Callable[[Format, str, int], Format]]] = {
    "const_string": (("value",), _const_string),
    "json_schema": (("json_schema",), _json_schema),
    "regex": (("pattern",), _regex),
    "any_text": ((), _any_text),
    "sequence": (("elements",), _sequence),
    "or": (("elements",), _or),
    "tag": (("begin", "content", "end"), _tag),
    "triggered_tags": (("triggers", "tags", *_FLAGS), _triggered_tags),
    "tags_with_separator": (("tags", "separator", *_FLAGS), _tags_with_separator),
}
"""Type → names of its fields besides `type`, and the check that gives them back."""


def _formats(node: Format, name: str, path: str, depth: int) -> list[Format]:
    given = node[name]
    if not isinstance(given, list) or not given:
        refuse(f"{path}/{name}", "a list of at least one format")
    return [_checked(inner, f"{path}/{name}/{at}", depth + 1) for at, inner in enumerate(given)]


def _tags(node: Format, path: str, depth: int) -> list[Format]:
    tags = _formats(node, "tags", path, depth)
    for at, tag in enumerate(tags):
        if tag["type"] != "tag":
            refuse(f"{path}/tags/{at}", f"has to be a tag, not {tag['type']}")
    return tags


def _flags(node: Format, path: str) -> Format:
    for name in _FLAGS:
        if not isinstance(node.get(name, False), bool):
            refuse(f"{path}/{name}", f"true or false, not {_shown(node[name])}")
    return {name: node.get(name, False) for name in _FLAGS}


def _text(node: Mapping[Any, Any], name: str | int, path: str) -> str:
    value = node[name]
    if not isinstance(value, str) or not value:
        refuse(f"{path}/{name}", f"a string that is not empty, not {_shown(value)}")
    _sound(value, f"{path}/{name}")
    return value


def _sound(text: str, path: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        refuse(path, "half of a surrogate pair cannot be written")


def _refuse_overlap(texts: list[str], path: str) -> None:
    """One marker inside another would never be seen whole, or be seen too early."""
    for text in texts:
        for other in texts:
            if other is not text and other != text and other in text:
                refuse(path, f"{_shown(text)} contains {_shown(other)}")


def _shown(value: Any) -> str:
    return _cut(json.dumps(value, default=repr))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
