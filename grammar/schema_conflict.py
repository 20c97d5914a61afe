"""Which keywords of a schema leave no value: those that cannot go without there being one.

Found by trial: keywords are taken out one by one, from the outside in, as long as the schema is still at fault. Knows
nothing of how that is seen.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple, NoReturn

from .schema_document import subschemas
from .schema_keywords import KEYWORDS, LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS
from .schema_values import pointer, refuse, refuse_text

_MAX_TRIES = 100
_MAX_BYTES = 400_000  # of schemas that are tried, in all
_MAX_NAMED = 4

AtFault = Callable[[Any], bool]


class Culprit(NamedTuple):
    """A keyword, and the path of the schema that has it."""

    path: str
    keyword: str


def refuse_empty(root: Any, at_fault: AtFault) -> NoReturn:
    """Refuses a schema that has no value, or none that can be enforced."""
    refuse_for(root, at_fault, "leaves no value, or none that can be enforced")


def refuse_for(root: Any, at_fault: AtFault, what: str) -> NoReturn:
    """Refuses a schema that is at fault, in the words "`a` together with `b` " and `what`."""
    found = culprits(root, at_fault)
    if not found:
        refuse_text(f"`{json.dumps(root)[:40]}` {what}")
    deepest = max(found, key=lambda culprit: culprit.path.count("/")).path
    here = [culprit.keyword for culprit in found if culprit.path == deepest]
    others = [f"`{keyword}` at {path}" for path, keyword in found if path != deepest]
    named = [f"`{keyword}`" for keyword in here[1:]] + others
    together = f"together with {' and '.join(named[:_MAX_NAMED])} " if named else ""
    refuse(deepest, here[0], f"{together}{what}")


def culprits(root: Any, at_fault: AtFault) -> list[Culprit]:
    """The keywords without which a schema would not be at fault, those left out that only hold others of them. Of a
    large schema not all are tried: then they are those that hold the others, from the outside in."""
    root = copy.deepcopy(root)
    tries = min(_MAX_TRIES, max(1, _MAX_BYTES // (len(json.dumps(root)) + 1)))
    needed: list[Culprit] = []
    waiting: list[tuple[str, Any]] = [("#", root)]
    while waiting:
        path, node = waiting.pop(0)
        for holder, name, culprit in _removable(path, node):
            if tries == 0:
                return _leaves(list(dict.fromkeys(needed or [culprit])))
            tries -= 1
            value = holder.pop(name)
            if not at_fault(root):
                holder[name] = value  # now the last: order says nothing of what is at fault
                needed.append(culprit)
        if isinstance(node, dict):
            waiting += subschemas(node, path)
    return _leaves(list(dict.fromkeys(needed)))


def _removable(path: str, node: Any) -> Iterator[tuple[MutableMapping[str, Any], str, Culprit]]:
    """(mapping, name, what that stands for) of all that can be taken out of a schema; names inside `properties` and
    the like stand for that keyword."""
    if not isinstance(node, dict):
        return
    for keyword in [keyword for keyword in node if keyword in KEYWORDS]:
        yield node, keyword, Culprit(path, keyword)
        inner = node.get(keyword)
        if keyword in MAPS_OF_SCHEMAS and isinstance(inner, dict):
            for name in [*inner]:
                yield inner, name, Culprit(path, keyword)


def _leaves(needed: list[Culprit]) -> list[Culprit]:
    """Without those that only hold others, references where there are others, and types beside other keywords."""
    holders = SCHEMAS | LISTS_OF_SCHEMAS | MAPS_OF_SCHEMAS

    def holds_another(culprit: Culprit) -> bool:
        inside = f"{culprit.path}/{pointer(culprit.keyword)}"
        return any(other.path == inside or other.path.startswith(f"{inside}/") for other in needed)

    leaves = [culprit for culprit in needed if not (culprit.keyword in holders and holds_another(culprit))]
    telling = [culprit for culprit in leaves if culprit.keyword not in ("type", "$ref")]
    paths = {culprit.path for culprit in telling}
    needless = {"$ref"} if any(culprit.keyword != "required" for culprit in telling) else set()
    return [one for one in leaves if one.keyword not in needless and (one.keyword != "type" or one.path not in paths)]
