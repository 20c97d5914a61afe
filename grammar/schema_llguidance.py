"""What llguidance 1.9.1 enforces of strings and objects, and how it has to be told.

It meets expressions and lengths with each other, and takes several patterns for names as long as no name can match
two. Its options travel in the schema (`x-guidance`): white space as for every engine, and no escapes by number, with
which an undeclared name could spell a declared one.

Expressions are written over `WRITABLE` only: in a class that holds every control character llguidance takes a quote or
a backslash for one of its characters, even if the class leaves them out.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from . import char_sets as cs
from . import schema_text as text
from .char_sets import CharSet
from .regex import Regex, excluding
from .schema_document import State
from .schema_numbers import decimals_of
from .schema_sets import Num, Obj, Str
from .schema_values import Schema, has_control
from .schema_write import Writer, limits
from .string_formats import string_format

OPTIONS: dict[str, Any] = {"whitespace_pattern": "[ \\n]", "json_allowed_escapes": 'nrbtf\\"'}

WRITABLE: CharSet = cs.complement(((0x00, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F)))
"""Characters that a JSON string can hold without escapes by number."""

_MAX_NAME = 40  # characters of an excluded string that are looked at
_MAX_DECIMALS = 9
_MAX_DIGITS = 4096  # of a multiple, without zeros at the ends: so many states its automaton has, all of them built


class LlguidanceWriter(Writer):
    """See `Writer`."""

    misses_cut_bounds = True

    def document(self, root: State) -> Schema:
        return {"x-guidance": OPTIONS, **super().document(root)}

    def can_list(self, value: Any) -> bool:
        return super().can_list(value) and not has_control(value)

    def multiples(self, num: Num, step: Fraction, bounded: bool) -> bool:
        decimals = decimals_of(step)
        digits = int(step * 10**decimals)
        while digits % 10 == 0:
            digits //= 10
        if decimals <= _MAX_DECIMALS and digits <= _MAX_DIGITS:
            return True
        self.cannot(num, "multipleOf", f"with more than {_MAX_DECIMALS} decimals, or digits above {_MAX_DIGITS}")
        return False

    def string(self, string: Str) -> Schema:
        result: Schema = {"type": "string", **limits(string.low, string.high, ("minLength", "maxLength"))}
        if string.not_patterns:
            self.cannot(string, "pattern", "the opposite of an expression")
        rules = [("pattern", text.expression(pattern)) for pattern in string.patterns]
        rules += [("format", found) for name in string.formats if (found := string_format(name)) is not None]
        if string.excluded:
            written = excluding([*string.excluded], WRITABLE, _MAX_NAME)
            rules.append(("enum" if "enum" in string.at else "const", Regex.whole(written)))
        patterns: list[Schema] = []
        for keyword, regex in rules:
            expression = regex.write(WRITABLE)
            if expression is None:
                self.cannot(string, keyword, "no text matches it")
            else:
                patterns.append({"type": "string", "pattern": f"^(?:{expression})$"})
        return {**result, **(patterns[0] if len(patterns) == 1 else {"allOf": patterns} if patterns else {})}

    def object(self, obj: Obj) -> list[Schema]:
        if obj.some:
            self.cannot(obj, "not", "a property that may be one of too many")
        if obj.names:
            self.cannot(obj, "propertyNames", "together with other rules for names")
        declared = {name: state for name, state in obj.props.items() if self.lives(state)}
        patterns = self._patterns(obj)
        closed = not self.lives(obj.rest)
        open_names = not closed or any(state is not False for state in patterns.values())
        result: Schema = {"type": "object"}
        if declared or (open_names and obj.props):
            every: dict[str, Any] = {
                # llguidance itself meets a declared name with the pattern that it matches, and would not end if both
                # came to be the same recursive schema.
                name: {} if _by_pattern(obj, name, state) else self.state(state)
                for name, state in declared.items()
            }
            if open_names:
                every |= {name: False for name in obj.props if name not in declared}
            result["properties"] = every
        if patterns and open_names:
            result["patternProperties"] = patterns
        if obj.required:
            result["required"] = list(obj.required)
        result["additionalProperties"] = False if closed else (self.state(obj.rest) or True)
        low, high = obj.low, obj.high
        if not open_names:
            if low > len(declared):
                return []
            high = None if high is None or high >= len(declared) else high
        elif low > 1 and low > len(obj.required):
            self.cannot(obj, "minProperties", "above 1 where names are open: a name may come twice")
            low = 1
        bounds = limits(low, high, ("minProperties", "maxProperties"))
        may_stay_out = declared.keys() - set(obj.required)
        if bounds and may_stay_out and (open_names or low > 1 or (high or 0) > 1):
            self.cannot(obj, "minProperties" if low else "maxProperties", "where declared properties may be left out")
            bounds = {}
        return [{**result, **bounds}]

    def _patterns(self, obj: Obj) -> dict[str, Any]:
        """Expressions for names, no two of which match the same name, and their schemas."""
        groups: dict[State, list[str]] = {}
        for pattern, state in obj.patterns.items():
            if self.lives(state):
                groups.setdefault(state, []).append(pattern)
        dead = [pattern for pattern, state in obj.patterns.items() if not self.lives(state)]
        rules: list[tuple[list[str], State | None]] = []
        rules += [(found, state) for state, found in groups.items()]
        if dead:
            rules.append((dead, None))
        for at, (found, _) in enumerate(rules):
            for others, _ in rules[:at]:
                if not all(text.apart(one, other) for one in found for other in others):
                    pair = f"{found[0][:40]!r} and {others[0][:40]!r}"
                    self.cannot(obj, "patternProperties", f"{pair} may match one name")
                    return {}
        written: dict[str, Any] = {}
        for found, held in rules:
            if held is None and not self.lives(obj.rest):
                continue
            each = [text.expression(pattern).write(WRITABLE) for pattern in found]
            expression = "|".join(one for one in each if one is not None)
            if expression:
                written[f"^(?:{expression})$"] = False if held is None else self.state(held)
        return written


def _by_pattern(obj: Obj, name: str, state: State) -> bool:
    """Whether a pattern for names already says what a declared property has to be."""
    return any(held == state and text.searches(pattern, name) for pattern, held in obj.patterns.items())
