"""Objects and arrays of a JSON Schema, rewritten to what xgrammar enforces."""

from __future__ import annotations

from typing import Any

from .regex import JSON_SAFE, excluding
from .schema_scalars import key_pattern
from .schema_values import NEVER, Never, Rewritten, Schema, Walk, count, mapping, refuse, shown


def pointer(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def array(walk: Walk, node: Schema, path: str) -> Rewritten:
    """`prefixItems` and `items`, or the two forms of `items` of older drafts, with bounds on the length."""
    least, most = count(node, "minItems", path) or 0, count(node, "maxItems", path)
    old = isinstance(node.get("items"), list)
    first, rest = ("items", "additionalItems") if old else ("prefixItems", "items")
    written = node.get(first, [])
    if not isinstance(written, list):
        refuse(path, f"`{first}` is a list of schemas, not {shown(written)}")
    prefix: list[Schema] = []
    items: Rewritten = walk.rewrite(node[rest], f"{path}/{rest}") if rest in node else {}
    if written and rest not in node and least <= len(written):
        items = NEVER  # undeclared items stay out, as undeclared properties do
    for at, schema in enumerate(written[:most]):
        done = walk.rewrite(schema, f"{path}/{first}/{at}")
        if isinstance(done, Never):
            items, most = NEVER, at
            break
        prefix.append(done)
    if isinstance(items, Never):
        most = len(prefix) if most is None else min(most, len(prefix))
    if most is not None and least > most:
        return NEVER
    result: Schema = {"type": "array"}
    if prefix:
        result["prefixItems"] = prefix
    result["items"] = False if isinstance(items, Never) or most == len(prefix) else items
    if least:
        result["minItems"] = least
    if most is not None and result["items"] is not False:
        result["maxItems"] = most
    return result


def obj(walk: Walk, node: Schema, path: str) -> Rewritten:
    """Declared properties in their order, and what may stand besides."""
    least, most = count(node, "minProperties", path) or 0, count(node, "maxProperties", path)
    required = _required(node, path)
    others = _others(walk, node, path)
    if "patternProperties" in node or node.get("propertyNames", True) is not True:
        return _by_pattern(walk, node, path, others, least, most)
    declared = _declared(walk, node, path, required, others)
    if isinstance(declared, Never) or (most is not None and most < len(required)):
        return NEVER
    result: Schema = {"type": "object"}
    closed = isinstance(others, Never) or (bool(declared) and _undeclared(node) is None)
    if declared:
        result["properties"] = declared
    if required:
        result["required"] = required
    result["additionalProperties"] = False if isinstance(others, Never) or closed else others or True
    if not closed and declared:
        # Without this an undeclared name could spell a declared one with escapes.
        result["propertyNames"] = {"pattern": excluding(list(declared))}
    if least > len(required):
        if closed and least > len(declared):
            refuse(path, "`minProperties` asks for more properties than are declared")
        if not closed and least > 1:
            refuse(path, "`minProperties` above 1 where names are open cannot be enforced: a name may come twice")
        result["minProperties"] = least
    if most is not None:
        result["maxProperties"] = most
    return result


def _required(node: Schema, path: str) -> list[str]:
    names = node.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        refuse(path, f"`required` is a list of names, not {shown(names)}")
    return list(dict.fromkeys(names))


def _undeclared(node: Schema) -> Any:
    """What the schema says of properties that it does not declare; None: nothing."""
    if node.get("additionalProperties") is None and node.get("unevaluatedProperties") is False:
        return False
    return node.get("additionalProperties")


def _others(walk: Walk, node: Schema, path: str) -> Rewritten:
    said = _undeclared(node)
    return {} if said is None else walk.rewrite(said, f"{path}/additionalProperties")


def _declared(walk: Walk, node: Schema, path: str, required: list[str], others: Rewritten) -> dict[str, Schema] | Never:
    """Properties that may be there, with required names that are not declared added at the end."""
    declared: dict[str, Schema] = {}
    for name, schema in mapping(node, "properties", path).items():
        done = walk.rewrite(schema, f"{path}/properties/{pointer(name)}")
        if not isinstance(done, Never):
            declared[name] = done
        elif name in required:
            return NEVER
    for name in required:
        if name not in declared:
            if isinstance(others, Never):
                return NEVER
            declared[name] = others
    return declared


def _by_pattern(walk: Walk, node: Schema, path: str, others: Rewritten, least: int, most: int | None) -> Rewritten:
    """An object whose names follow one pattern: a single `patternProperties`, or `propertyNames` with a pattern."""
    patterns = mapping(node, "patternProperties", path)
    keyword = "patternProperties" if patterns else "propertyNames"
    if mapping(node, "properties", path) or node.get("required"):
        refuse(path, f"`{keyword}` beside `properties` or `required` cannot be enforced")
    names = node.get("propertyNames", True)
    if not patterns and names is True:
        return obj(walk, {key: node[key] for key in node if key not in ("patternProperties", "propertyNames")}, path)
    if patterns and (names is not True or len(patterns) > 1 or _undeclared(node) not in (None, False)):
        refuse(path, "more than one rule for names that are not declared cannot be enforced")
    if patterns:
        (pattern, schema), *_ = patterns.items()
        value = walk.rewrite(schema, f"{path}/patternProperties/{pointer(pattern)}")
    else:
        known = {"pattern", "type", "title", "description"}
        if not isinstance(names, dict) or "pattern" not in names or not names.keys() <= known:
            refuse(path, "`propertyNames` other than a `pattern` cannot be enforced")
        pattern, value = names["pattern"], others
    text = key_pattern(pattern, path).write(JSON_SAFE)
    if isinstance(value, Never) or text is None or most == 0:
        return NEVER if least else {"type": "object", "additionalProperties": False}
    if least > 1:
        refuse(path, "`minProperties` above 1 where names are open cannot be enforced: a name may come twice")
    limits: Schema = ({"minProperties": least} if least else {}) | ({} if most is None else {"maxProperties": most})
    return {"type": "object", "patternProperties": {text: value}, "additionalProperties": False, **limits}
