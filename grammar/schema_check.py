"""JSON Schema → the part of it that xgrammar enforces, rewritten so that nothing is left for xgrammar to drop.

Walks the schema and refuses, with JSON path and keyword, everything that would not be enforced. What comes out
accepts a subset of what the schema accepts: a keyword without `type` narrows to its type, an object that declares
properties stays closed unless it says otherwise, strings that a pattern or format describes hold no escapes.
Property order is kept.

Knows nothing of vocabularies. The table of keywords is `schema_keywords`.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ..errors import GrammarInvalid
from . import schema_containers, schema_scalars
from .schema_containers import pointer
from .schema_keywords import COMBINATIONS, DEFINITIONS, ENFORCED, HARMLESS, REFUSED, TYPES, JsonType
from .schema_overlap import disjoint
from .schema_values import (
    MAX_SAFE_NUMBER,
    NEVER,
    Never,
    Rewritten,
    Schema,
    mapping,
    never_ends,
    numbers_in,
    refuse,
    same,
    shown,
    types_of_value,
)


def check_schema(text: str, *, max_depth: int) -> str:
    """The rewritten schema as JSON text. Raises `GrammarInvalid`."""
    try:
        root = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise GrammarInvalid("schema: nested too deep") from None
    except ValueError as error:
        raise GrammarInvalid(f"schema: not valid JSON: {error}") from None
    rewritten = SchemaCheck(root, max_depth).run()
    text = json.dumps(rewritten, ensure_ascii=False)
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise GrammarInvalid("schema: half of a surrogate pair in a name or value cannot be written")
    return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class SchemaCheck:
    """One walk over one schema."""

    def __init__(self, root: Any, max_depth: int) -> None:
        self.root = root
        self.max_depth = max_depth
        self._names: dict[str, str] = {}  # pointer → name of the hoisted definition
        self._waiting: list[str] = []
        self._depth = 0

    def run(self) -> Schema:
        whole = self.rewrite(self.root, "#")
        if isinstance(whole, Never):
            refuse("#", "no value satisfies this schema")
        definitions: dict[str, Schema] = {}
        while self._waiting:
            place = self._waiting.pop(0)
            found = self.rewrite(self.resolve(place), place)
            if isinstance(found, Never):
                refuse(place, "no value satisfies this schema")
            definitions[self._names[place]] = found
        endless = never_ends(definitions)
        for place, name in self._names.items():
            if name in endless:
                refuse(place, "every value of this schema holds another one without end")
        return {**whole, "$defs": definitions} if definitions else whole

    def rewrite(self, node: Any, path: str) -> Rewritten:
        """One schema. `NEVER` when no value satisfies it."""
        self._depth += 1
        if self._depth > self.max_depth:
            refuse(f"{path[:200]}…", f"nested more than {self.max_depth} deep")
        try:
            return self._rewrite(node, path)
        finally:
            self._depth -= 1

    def _rewrite(self, node: Any, path: str) -> Rewritten:
        if node is True:
            return {}
        if node is False:
            return NEVER
        if not isinstance(node, dict):
            refuse(path, f"a schema is an object or a boolean, not {shown(node)}")
        self._refuse_keywords(node, path)
        if "$ref" in node:
            self._alone(node, path, "$ref")
            return {"$ref": f"#/$defs/{self._reference(node['$ref'], path)}"}
        if "enum" in node or "const" in node:
            return self._values(node, path)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in node:
                self._alone(node, path, keyword, "type")
                branches = self._narrowed(node, path, keyword)
                return self._branches(branches, f"{path}/{keyword}", keyword)
        return self._typed(node, path)

    def _refuse_keywords(self, node: Schema, path: str) -> None:
        for keyword in node:
            if keyword not in REFUSED or any(same(node[keyword], value) for value in HARMLESS.get(keyword, ())):
                continue
            if keyword == "unevaluatedProperties" and node[keyword] is False and not COMBINATIONS & node.keys():
                continue  # says the same as `additionalProperties`, and is read as that
            refuse(path, f"`{keyword}` ({REFUSED[keyword]}) cannot be enforced")
        for keyword in DEFINITIONS:
            for name, value in mapping(node, keyword, path).items():
                if not isinstance(value, (dict, bool)):
                    refuse(f"{path}/{keyword}/{pointer(name)}", "a schema is an object or a boolean")
        based = isinstance(node.get("$id", node.get("id")), str)
        if path != "#" and based and '"$ref"' in json.dumps(node):
            refuse(path, "`$ref` below a nested `$id` is not supported")

    def _alone(self, node: Schema, path: str, *keywords: str) -> None:
        """The first of `keywords` decides, the others are dealt with; any other constraint would be dropped."""
        for other in node:
            if other in ENFORCED and other not in keywords:
                refuse(path, f"`{other}` beside `{keywords[0]}` cannot be enforced")

    def _narrowed(self, node: Schema, path: str, keyword: str) -> Any:
        """The branches of a combination, each held to the `type` that stands beside it."""
        branches, types = node[keyword], self.types(node, path)
        if not types or not isinstance(branches, list):
            return branches
        narrowed: list[Any] = []
        for branch in branches:
            target = branch
            for _ in range(self.max_depth):
                if not isinstance(target, dict) or not isinstance(target.get("$ref"), str):
                    break
                target = self.resolve(target["$ref"], path) if target["$ref"].startswith("#") else True
            own = self.types(target, path) if isinstance(target, dict) else []
            if own and set(own) <= set(types):
                narrowed.append(branch)
            elif isinstance(branch, dict) and not own and not COMBINATIONS & branch.keys():
                narrowed.append({**branch, "type": types})
            else:
                refuse(path, f"`type` beside `{keyword}` cannot be enforced: a branch has, or may have, another type")
        return narrowed

    # ---- references ------------------------------------------------------------------------------------------------

    def _reference(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            refuse(path, "`$ref` is a string")
        if value != "#" and not value.startswith("#/"):
            refuse(path, f"`$ref` to {value[:80]!r}: only references into this schema (`#/…`) are followed")
        seen = {value}
        target = self.resolve(value, path)
        while isinstance(target, dict) and isinstance(target.get("$ref"), str):
            if target["$ref"] in seen:
                refuse(path, "`$ref` leads back to itself")
            seen.add(target["$ref"])
            target = self.resolve(target["$ref"], path)
        if value not in self._names:
            self._names[value] = f"d{len(self._names)}"
            self._waiting.append(value)
        return self._names[value]

    def resolve(self, place: str, path: str = "#") -> Any:
        """What a JSON pointer (`#/…`, RFC 6901) points at."""
        node = self.root
        for part in place.split("/")[1:]:
            key = _unescape(part)
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                refuse(path, f"`$ref` to {place[:80]!r}, which is not there")
        return node

    # ---- combinations ----------------------------------------------------------------------------------------------

    def _values(self, node: Schema, path: str) -> Rewritten:
        keyword = "const" if "const" in node else "enum"
        values = [node["const"]] if keyword == "const" else node["enum"]
        if not isinstance(values, list):
            refuse(path, "`enum` is a list")
        self._alone(node, path, keyword, "type")
        types = self.types(node, path)
        kept = [value for value in values if not types or types_of_value(value) & set(types)]
        if any(abs(number) > MAX_SAFE_NUMBER for number in numbers_in(kept)):
            refuse(path, f"`{keyword}` holds a number beyond 2^53")
        return {"enum": kept} if kept else NEVER

    def _branches(self, branches: Any, path: str, keyword: str) -> Rewritten:
        if not isinstance(branches, list) or not branches:
            refuse(path, f"`{keyword}` is a list of at least one schema")
        if keyword == "allOf" and len(branches) > 1:
            refuse(path, "`allOf` of more than one schema cannot be enforced")
        if keyword == "oneOf":
            for at, branch in enumerate(branches):
                for other in range(at):
                    if not disjoint(branches[other], branch, self.resolve):
                        refuse(path, f"`oneOf`: branches {other} and {at} may both match, which cannot be excluded")
        done = [self.rewrite(branch, f"{path}/{at}") for at, branch in enumerate(branches)]
        kept = [branch for branch in done if not isinstance(branch, Never)]
        if not kept:
            return NEVER
        return kept[0] if len(kept) == 1 else {"anyOf": kept}

    # ---- types -----------------------------------------------------------------------------------------------------

    def types(self, node: Schema, path: str) -> list[JsonType]:
        """The value of `type` as a list; empty when there is none."""
        value = node.get("type")
        if value is None and "type" not in node:
            return []
        names = value if isinstance(value, list) else [value]
        for name in names:
            if name not in TYPES:
                refuse(path, f"`type` is one of {', '.join(TYPES)}, not {shown(name)}")
        if not names:
            refuse(path, "`type` is an empty list")
        return [name for name in dict.fromkeys(names) if name != "integer" or "number" not in names]

    def _typed(self, node: Schema, path: str) -> Rewritten:
        types = self.types(node, path)
        if not types:
            implied = {found for keyword in node if (found := ENFORCED.get(keyword)) is not None}
            if not implied:
                return {}
            if len(implied) > 1:
                refuse(path, f"keywords of several types ({', '.join(sorted(implied))}) without `type`")
            types = [implied.pop()]
        done = [self._of_type(node, path, name) for name in types]
        kept = [part for part in done if not isinstance(part, Never)]
        if not kept:
            return NEVER
        return kept[0] if len(kept) == 1 else {"anyOf": kept}

    def _of_type(self, node: Schema, path: str, name: JsonType) -> Rewritten:
        if name in ("null", "boolean"):
            return {"type": name}
        if name in ("integer", "number"):
            return schema_scalars.number(node, path, name)
        if name == "string":
            return schema_scalars.string(node, path)
        return schema_containers.array(self, node, path) if name == "array" else schema_containers.obj(self, node, path)


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
