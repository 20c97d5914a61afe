"""A schema document: its draft, its parts by JSON pointer, and what `$ref` points at.

A *part* is a schema at one place of the document, wanted or (negated) not wanted. A tuple of parts is a *state*: the
values that all of them let through. Parts are interned, so that states can be compared and used as keys.

Knows nothing of what keywords mean, except those that name and refer.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from .schema_keywords import ANNOTATIONS, KEYWORDS, LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS
from .schema_values import Schema, pointer, refuse, refuse_text, shown

_HOLDERS = SCHEMAS | LISTS_OF_SCHEMAS | MAPS_OF_SCHEMAS
_DRAFTS = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}


class Part:
    """The schema `node` at `path`, or with `yes` false its opposite. `of` are the parts that are negated together;
    `why` is the keyword that negates."""

    __slots__ = ("node", "of", "path", "why", "yes")

    def __init__(self, path: str, node: Any, yes: bool = True, of: State = (), why: str = "not") -> None:
        self.path, self.node, self.yes, self.of, self.why = path, node, yes, of, why


State = tuple[Part, ...]

ANY_STATE: State = ()
NO_STATE: State = (Part("#", False),)


class Remote(Exception):
    """A reference that leads out of the document."""


def both(first: State, second: State) -> State:
    """What satisfies both."""
    if not first or first == second:
        return second
    if not second:
        return first
    if NO_STATE[0] in (*first, *second):
        return NO_STATE
    joined = tuple(dict.fromkeys((*first, *second)))
    return NO_STATE if any(not part.yes and set(part.of) <= set(joined) for part in joined) else joined


class Document:
    """One schema text, parsed. Raises `GrammarInvalid` for what is not JSON or nested more than `max_depth` deep."""

    def __init__(self, text: str, max_depth: int) -> None:
        try:
            self.root: Any = json.loads(text, parse_constant=_no_constant)
        except RecursionError:
            refuse_text("nested too deep")
        except ValueError as error:
            refuse_text(f"not valid JSON: {error}")
        if not isinstance(self.root, (dict, bool)):
            refuse_text(f"a schema is an object or a boolean, not {shown(self.root)}")
        _check_depth(self.root, 3 * max_depth)
        self.max_depth = max_depth
        self._plain = not any(name in text for name in ('"$id"', '"id"', "Anchor"))
        self.draft = self._draft()
        self._parts: dict[str, Part] = {}
        self._opposites: dict[State, State] = {}
        self._resources: dict[str, str] | None = None  # URI of a resource, or of an anchor in one → path
        self._bases: dict[str, str] = {}
        self.dynamic_anchors: list[str] = []
        self.nested_resources = False

    def _draft(self) -> int:
        said = self.root.get("$schema") if isinstance(self.root, dict) else None
        found = [draft for name, draft in _DRAFTS.items() if isinstance(said, str) and name in said]
        return found[0] if found else 2020

    def part(self, path: str, node: Any) -> Part:
        part = self._parts.get(path)
        if part is None:
            part = self._parts[path] = Part(path, node)
        return part

    def state(self, path: str, node: Any) -> State:
        """The state of one schema of the document. A reference without company is the state of its target."""
        seen: set[str] = set()
        while isinstance(node, dict) and "$ref" in node:
            if self.draft > 7 and not node.keys() <= _BESIDE_REF:
                break
            try:
                path, node = self.resolve(node["$ref"], path)
            except Remote:
                break
            if path in seen:
                refuse(path, "$ref", "leads back to itself")
            seen.add(path)
        if node is True or (isinstance(node, dict) and not node):
            return ANY_STATE
        if node is False:
            return NO_STATE
        return (self.part(path, node),)

    def opposite(self, state: State, why: str) -> State:
        """The state of all values that `state` does not let through."""
        if not state:
            return NO_STATE
        if state == NO_STATE:
            return ANY_STATE
        if len(state) == 1 and not state[0].yes:
            return state[0].of
        found = self._opposites.get(state)
        if found is None:
            path = state[0].path
            found = self._opposites[state] = (Part(path, None, False, state, why),)
        return found

    def keyword(self, part: Part) -> str:
        """The keyword to name where the whole of a part is at fault."""
        if not part.yes:
            return part.why
        said = [keyword for keyword in part.node if keyword in KEYWORDS] if isinstance(part.node, dict) else []
        return next((keyword for keyword in said if keyword != "type"), said[0] if said else holder(part.path))

    # ---- references ------------------------------------------------------------------------------------------------

    def resolve(self, ref: Any, path: str) -> tuple[str, Any]:
        """(path, schema) that a `$ref` standing at `path` points at. Raises `Remote`, or `GrammarInvalid`."""
        if not isinstance(ref, str):
            refuse(path, "$ref", f"is a string, not {shown(ref)}")
        if (ref == "#" or ref.startswith("#/")) and not self._index_needed():
            return self._walk("#", ref[1:], path, ref)
        resources = self._index()
        base = self._base(path)
        uri, fragment = urldefrag(base + ref if ref.startswith("#") else urljoin(base, ref))
        if fragment and not fragment.startswith("/"):
            start, fragment = resources.get(f"{uri}#{fragment}"), ""
            if start is None and uri in resources:
                refuse(path, "$ref", f"leads to {ref[:80]!r}, which is not there")
        else:
            start = resources.get(uri)
        if start is None:
            raise Remote(ref)
        return self._walk(start, fragment, path, ref)

    def _walk(self, start: str, fragment: str, path: str, ref: str) -> tuple[str, Any]:
        node: Any = self.root
        place = "#"
        parts = [_unescape(part) for part in start.split("/")[1:]]
        parts += [_unescape(unquote(part)) for part in fragment.split("/")[1:]]
        for key in parts:
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                refuse(path, "$ref", f"leads to {ref[:80]!r}, which is not there")
            place += "/" + pointer(key)
        return place, node

    def _index_needed(self) -> bool:
        if not self._plain:
            self._index()
        return self.nested_resources

    def _base(self, path: str) -> str:
        while path not in self._bases:
            path = path.rpartition("/")[0] or "#"
        return self._bases[path]

    def _index(self) -> dict[str, str]:
        """Finds every `$id` and anchor."""
        if self._resources is not None:
            return self._resources
        resources = self._resources = {"": "#"}
        self._bases["#"] = ""
        waiting: list[tuple[str, Any, str]] = [("#", self.root, "")]
        while waiting:
            path, node, base = waiting.pop()
            if not isinstance(node, dict):
                continue
            own = node.get("id" if self.draft == 4 else "$id")
            if isinstance(own, str) and not (self.draft <= 7 and "$ref" in node):
                uri, fragment = urldefrag(urljoin(base, own))
                if fragment and self.draft <= 7 and own.startswith("#"):
                    resources.setdefault(f"{base}#{fragment}", path)
                else:
                    base = self._bases[path] = uri
                    resources.setdefault(uri, path)
                    self.nested_resources |= path != "#"
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(keyword), str):
                    resources.setdefault(f"{base}#{node[keyword]}", path)
            if isinstance(node.get("$dynamicAnchor"), str):
                self.dynamic_anchors.append(node["$dynamicAnchor"])
            waiting += [(below, schema, base) for below, schema in subschemas(node, path)]
        return resources

    def dynamic_is_static(self, ref: str) -> bool:
        """Whether a dynamic reference has only one thing that it could mean."""
        self._index()
        return self.dynamic_anchors.count(ref.rpartition("#")[2]) <= 1 and not self.nested_resources


_BESIDE_REF = ANNOTATIONS | {"$ref", "$defs", "definitions", "$schema"}


def subschemas(node: Schema, path: str) -> list[tuple[str, Any]]:
    """(path, schema) of all that stand directly in a schema."""
    found: list[tuple[str, Any]] = []
    for keyword, value in node.items():
        if keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
            found += [(f"{path}/{keyword}/{pointer(name)}", schema) for name, schema in value.items()]
        elif keyword in LISTS_OF_SCHEMAS and isinstance(value, list):
            found += [(f"{path}/{keyword}/{at}", schema) for at, schema in enumerate(value)]
        elif keyword in SCHEMAS:
            found.append((f"{path}/{keyword}", value))
    return found


def _check_depth(root: Any, limit: int) -> None:
    """`limit` counts objects and lists; a level of a schema has up to three."""
    level: list[tuple[str, Any]] = [("#", root)]
    for _ in range(limit):
        level = [
            (f"{path}/{pointer(str(name))}", inner)
            for path, outer in level
            if isinstance(outer, (dict, list))
            for name, inner in (outer.items() if isinstance(outer, dict) else enumerate(outer))
        ]
        if not level:
            return
    refuse(level[0][0], holder(level[0][0]), "is nested too deep")


def holder(path: str) -> str:
    """The keyword that holds the schema at `path`; at the root, where there is none, `$schema`."""
    return next((name for name in reversed(path.split("/")) if name in _HOLDERS), "$schema")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
