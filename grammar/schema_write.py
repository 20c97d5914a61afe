"""Settled sets written as JSON Schema of the small kind that engines read in one way.

What an engine lacks is an exception (`Cannot`) when all is to be enforced; otherwise it is left out and noted. Here
is what all engines share; strings, objects and multiples differ by engine.

Knows nothing of how a schema was read.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from .schema_document import NO_STATE, State
from .schema_sets import Arr, Branch, Num, Obj, Str, is_free
from .schema_settle import Settler, needed
from .schema_values import MAX_SAFE_NUMBER, Schema, largest_number, refusal, refuse
from .schema_write_numbers import write_number

_MAX_SIZE = 50_000  # schemas written


class Cannot(Exception):
    """An engine does not enforce something."""

    def __init__(self, path: str, keyword: str, reason: str) -> None:
        super().__init__(refusal(path, keyword, f"cannot be enforced: {reason}"))


class Writer:
    """Writes one schema for one engine. `complete`: nothing may be left out; else `left_out` holds what was."""

    misses_cut_bounds = False

    def __init__(self, settler: Settler, *, complete: bool, max_depth: int) -> None:
        self.settler = settler
        self.complete = complete
        self.left_out: dict[tuple[str, str], str] = {}
        self._max_depth = max_depth
        self._depth = 0
        self._open = NO_STATE[0]
        self._size = 0
        self._names: dict[State, str] = {}
        self._small: dict[State, Schema] = {}
        self._waiting: list[State] = []

    def document(self, root: State) -> Schema:
        """The whole schema. Raises `Cannot`, or `GrammarInvalid` beyond the bounds."""
        whole = self.state(root)
        definitions: dict[str, Schema] = {}
        while self._waiting:
            state = self._waiting.pop(0)
            definitions[self._names[state]] = self._branches(state)
        return {**whole, "$defs": definitions} if definitions else whole

    def cannot(self, branch: Branch, keyword: str, reason: str) -> None:
        """`keyword` of `branch` is not enforced by this engine; the schema's own word is named where it has another."""
        path = branch.at.get(keyword)
        if path is None:
            named = next((name for name in branch.at if name != "type"), None)
            path, keyword = (branch.at[named], named) if named else (self._open.path, self.settler.keyword(self._open))
        if self.complete:
            raise Cannot(path, keyword, reason)
        self.left_out.setdefault((path, keyword), reason)

    # ---- states ----------------------------------------------------------------------------------------------------

    def lives(self, state: State) -> bool:
        """Whether some value is in the state."""
        return not state or state in self.settler.alive

    def state(self, state: State) -> Schema:
        """A schema for a state that lives; one that is used more than once stands in `$defs`."""
        if not state:
            return {}
        if self.settler.uses[state] < 2:
            return self._branches(state)
        if self._is_small(state):
            if state not in self._small:
                self._small[state] = self._branches(state)
            self._size += 1
            return self._small[state]
        if state not in self._names:
            self._names[state] = f"d{len(self._names)}"
            self._waiting.append(state)
        return {"$ref": f"#/$defs/{self._names[state]}"}

    def _is_small(self, state: State) -> bool:
        settled = self.settler[state]
        return len(settled) < 3 and all(kind not in ("array", "object") or b.values is not None for kind, b in settled)

    def _branches(self, state: State) -> Schema:
        self._depth += 1
        outer, self._open = self._open, state[0]
        if self._depth > self._max_depth:
            refuse(state[0].path, self.settler.keyword(state[0]), f"is nested more than {self._max_depth} deep")
        living = [pair for pair in self.settler[state] if all(map(self.lives, needed(pair[1])))]
        if len(living) == 6 and len({kind for kind, _ in living}) == 6 and all(is_free(branch) for _, branch in living):
            written: list[Schema] = [{}]
        else:
            written = [schema for kind, branch in living for schema in self._branch(kind, branch)]
        self._size += len(written)
        if self._size > _MAX_SIZE:
            refuse(state[0].path, self.settler.keyword(state[0]), f"has more than {_MAX_SIZE} parts when written out")
        if not written:
            refuse(state[0].path, self.settler.keyword(state[0]), "leaves no value that can be written")
        self._depth -= 1
        self._open = outer
        distinct = {json.dumps(schema): schema for schema in written} if len(written) > 1 else {"": written[0]}
        return written[0] if len(distinct) == 1 else {"anyOf": [*distinct.values()]}

    def _branch(self, kind: str, branch: Any) -> list[Schema]:
        if branch.values is not None:
            return [self._listed(kind, branch)]
        if kind in ("null", "boolean"):
            return [{"type": kind}]
        if kind == "number":
            assert isinstance(branch, Num)
            return write_number(self, branch)
        if kind == "string":
            return [self.string(branch)]
        if branch.excluded:
            self.cannot(branch, "enum" if "enum" in branch.at else "const", f"an {kind} other than a listed one")
        return [self.array(branch)] if kind == "array" else self.object(branch)

    def _listed(self, kind: str, branch: Branch) -> Schema:
        assert branch.values is not None
        kept = [value for value in branch.values if self.can_list(value)]
        if not kept:
            keyword = "const" if "const" in branch.at else "enum"
            self.cannot(branch, keyword, "every value holds a number beyond 2^53 or a character that is not written")
            return {"type": kind}
        return {"enum": kept}

    def can_list(self, value: Any) -> bool:
        return largest_number(value) <= MAX_SAFE_NUMBER

    # ---- what differs by engine ------------------------------------------------------------------------------------

    def string(self, string: Str) -> Schema:
        raise NotImplementedError

    def object(self, obj: Obj) -> list[Schema]:
        raise NotImplementedError

    def multiples(self, num: Num, step: Fraction, bounded: bool) -> bool:
        """Whether multiples of `step` are enforced; otherwise `cannot` has been called."""
        raise NotImplementedError

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def array(self, array: Arr) -> Schema:
        if array.unique:
            self.cannot(array, "uniqueItems", "that any items differ")
        if array.contains:
            self.cannot(array, "contains", "what it asks for may stand in too many places")
        prefix = list(array.prefix if array.high is None else array.prefix[: array.high])
        most, items = array.high, array.items
        for at, state in enumerate(prefix):
            if not self.lives(state):
                prefix, items, most = prefix[:at], NO_STATE, at
                break
        if not self.lives(items):
            most = len(prefix) if most is None else min(most, len(prefix))
        result: Schema = {"type": "array"}
        if prefix:
            result["prefixItems"] = [self.state(state) for state in prefix]
        closed = most is not None and most <= len(prefix)
        result["items"] = False if closed else self.state(items)
        if array.low:
            result["minItems"] = array.low
        if most is not None and not closed:
            result["maxItems"] = most
        return result


def limits(low: int, high: int | None, keywords: tuple[str, str]) -> Schema:
    """Bounds as far as they say something."""
    return ({keywords[0]: low} if low else {}) | ({} if high is None else {keywords[1]: high})
