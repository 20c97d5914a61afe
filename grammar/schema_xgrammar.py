"""What xgrammar 0.2.9 enforces of strings and objects, and how it has to be told.

An object's undeclared names are kept from spelling declared ones with escapes; expressions are those of the encoded
text, so that what needs an escape is left to other engines.
"""

from __future__ import annotations

from fractions import Fraction

from . import schema_text as text
from .regex import JSON_SAFE, Regex, excluding
from .schema_document import State
from .schema_sets import Num, Obj, Str
from .schema_values import Schema
from .schema_write import Writer, limits
from .string_formats import string_format

_MAX_MULTIPLE = 1024  # larger ones are dropped
_MAX_NAME = 40  # characters of an excluded string that are looked at


class XgrammarWriter(Writer):
    """See `Writer`."""

    def multiples(self, num: Num, step: Fraction, bounded: bool) -> bool:
        if not num.whole:
            self.cannot(num, "multipleOf", "of a number that is not an integer")
        elif bounded or step > _MAX_MULTIPLE:
            self.cannot(num, "multipleOf", f"with wide bounds, or above {_MAX_MULTIPLE}")
        else:
            return True
        return False

    def string(self, string: Str) -> Schema:
        bounds = limits(string.low, string.high, ("minLength", "maxLength"))
        if string.not_patterns:
            self.cannot(string, "pattern", "the opposite of an expression")
        rules = [("pattern", text.expression(pattern)) for pattern in string.patterns]
        rules += [("format", found) for name in string.formats if (found := string_format(name)) is not None]
        if string.excluded:
            written = excluding([*string.excluded], depth=_MAX_NAME)
            rules.append(("enum" if "enum" in string.at else "const", Regex.whole(written)))
        if not rules:
            return {"type": "string", **bounds}
        keyword, regex = rules[0]
        if len(rules) > 1:
            self.cannot(string, rules[1][0], f"together with `{keyword}`")
        lengths = regex.lengths
        if lengths.low < string.low:
            self.cannot(string, "minLength", f"beside a `{keyword}` that does not imply it")
        if string.high is not None and (lengths.high is None or lengths.high > string.high):
            self.cannot(string, "maxLength", f"beside a `{keyword}` that does not imply it")
        expression = regex.write(JSON_SAFE)
        if expression is None:
            self.cannot(string, keyword, "it needs a quote, a backslash or a control character")
            return {"type": "string", **bounds}
        return {"type": "string", "pattern": expression}

    def object(self, obj: Obj) -> list[Schema]:
        if obj.some:
            self.cannot(obj, "not", "a property that may be one of too many")
        if obj.names:
            self.cannot(obj, "propertyNames", "together with other rules for names")
        declared = {name: state for name, state in obj.props.items() if self.lives(state)}
        taken = list(obj.props)
        if any(self.lives(state) for state in obj.patterns.values()):
            pattern = self._one_rule(obj, declared)
            if pattern is not None:
                return self._by_pattern(obj, *pattern)
        elif obj.patterns and self.lives(obj.rest):
            self.cannot(obj, "patternProperties", "names that may not be")
        relaxed_patterns = any(self.lives(state) for state in obj.patterns.values())
        rest: State = () if relaxed_patterns else obj.rest
        closed = not self.lives(rest)
        result: Schema = {"type": "object"}
        if declared:
            result["properties"] = {name: self.state(state) for name, state in declared.items()}
        if obj.required:
            result["required"] = list(obj.required)
        result["additionalProperties"] = False if closed else (self.state(rest) or True)
        if not closed and taken:
            # Without this an undeclared name could spell a declared one with escapes.
            result["propertyNames"] = {"pattern": excluding(taken)}
        low, high = obj.low, obj.high
        if closed and low > len(declared):
            return []
        if not closed and low > 1:
            self.cannot(obj, "minProperties", "above 1 where names are open: a name may come twice")
        return [{**result, **limits(low, high, ("minProperties", "maxProperties"))}]

    def _one_rule(self, obj: Obj, declared: dict[str, State]) -> tuple[str, State] | None:
        """The one pattern that names follow, and its state."""
        if obj.props or self.lives(obj.rest):
            self.cannot(obj, "patternProperties", "beside other names")
            return None
        states = dict.fromkeys(state for state in obj.patterns.values() if self.lives(state))
        if len(states) > 1 or len([*obj.patterns]) > 1:
            self.cannot(obj, "patternProperties", "more than one rule for names")
            return None
        ((pattern, state),) = obj.patterns.items()
        return pattern, state

    def _by_pattern(self, obj: Obj, pattern: str, state: State) -> list[Schema]:
        written = text.expression(pattern).write(JSON_SAFE)
        closed: Schema = {"type": "object", "additionalProperties": False}
        if written is None or obj.high == 0:
            return [] if obj.low else [closed]
        if obj.low > 1:
            self.cannot(obj, "minProperties", "above 1 where names are open: a name may come twice")
        bounds = limits(obj.low, obj.high, ("minProperties", "maxProperties"))
        return [{"type": "object", "patternProperties": {written: self.state(state)}, **closed, **bounds}]
