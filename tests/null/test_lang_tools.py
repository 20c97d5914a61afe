"""Functions as tools: what a model is told of them is what their types and docstrings say, and what they accept is what
the schema says that they accept."""

from __future__ import annotations

import datetime
import enum
import json
import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bosquet.lang as bosquet
from bosquet.types import ToolSpec


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Place(pydantic.BaseModel):
    city: str
    country: Annotated[str, pydantic.Field(min_length=2, max_length=2)] = "FR"


@dataclass
class Span:
    days: int
    hourly: bool = False


@bosquet.tool
def weather(place: Place, unit: Unit = Unit.C, spans: list[Span] | None = None, day: Literal["today", 1] = 1) -> str:
    """Tell the weather.

    It may rain.

    Args:
        place: Where,
            exactly.
        unit (Unit): Celsius: or Fahrenheit.
        nowhere: Not a parameter.
        day: Which day.

    Returns:
        A sentence.
    """
    return f"{place.city} {unit.value} {spans} {day}"


def test_a_model_is_told_of_types_defaults_and_docstring() -> None:
    assert weather.name == "weather"
    assert weather.description == "Tell the weather.\n\nIt may rain."
    schema = weather.parameters
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["place"], False)
    assert list(schema["properties"]) == ["place", "unit", "spans", "day"]
    assert {name: part.get("description") for name, part in schema["properties"].items()} == {
        "place": "Where, exactly.",
        "unit": "Celsius: or Fahrenheit.",
        "spans": None,
        "day": "Which day.",
    }
    assert {name: part.get("default", "none") for name, part in schema["properties"].items()} == {
        "place": "none",
        "unit": "celsius",
        "spans": None,
        "day": 1,
    }
    assert "title" not in json.dumps(schema["properties"]) + json.dumps(schema["$defs"]["Place"]["properties"])
    assert weather.spec == ToolSpec("weather", weather.description, json.dumps(schema))


def test_arguments_get_their_types_and_the_function_keeps_its_defaults() -> None:
    found = weather.arguments('{"place": {"city": "Oslo"}, "unit": "fahrenheit", "spans": [{"days": 2}]}')
    assert found == {"place": Place(city="Oslo"), "unit": Unit.F, "spans": [Span(2)]}
    assert weather(**found) == "Oslo fahrenheit [Span(days=2, hourly=False)] 1"
    assert weather(Place(city="Rome"), day="today") == "Rome celsius None today"


def test_it_stays_the_function_that_it_was() -> None:
    assert weather.__name__ == "weather"
    assert weather.__doc__ is not None
    assert weather.__doc__.startswith("Tell the weather.")
    assert weather.__wrapped__ is weather.function  # type: ignore[attr-defined]
    assert repr(weather) == "<tool weather(place, unit, spans, day)>"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("[]", "Input should be an object"),
        ("{}", "place: Field required"),
        ("", "place: Field required"),
        ('{"place": {}}', "place.city: Field required"),
        ('{"place": {"city": "a"}, "day": "1"}', "day: Input should be 'today' or 1"),
        ('{"place": {"city": "a"}, "spans": [{"days": "1"}]}', "spans.0.days: Input should be a valid integer"),
        ('{"place": {"city": 1}, "x": 1}', "place.city: Input should be a valid string; x: Extra inputs are not"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused_in_one_line(raw: str, said: str) -> None:
    with pytest.raises(bosquet.InvalidArguments, match=f"^{re.escape(said)}") as caught:
        weather.arguments(raw)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_what_annotated_says_outranks_the_docstring() -> None:
    @bosquet.tool(name="other", description="Another.", strict=True)
    def one(x: Annotated[int, pydantic.Field(description="own", ge=0)], y: Annotated[int, "note"] = 2) -> None:
        """Not this.

        :param x: not this
        :param int y: this
        """

    assert (one.name, one.description, one.spec.strict) == ("other", "Another.", True)
    assert one.parameters["properties"] == {
        "x": {"description": "own", "minimum": 0, "type": "integer"},
        "y": {"type": "integer", "default": 2, "description": "this"},
    }


def test_types_and_defaults_of_all_kinds() -> None:
    class Local(pydantic.BaseModel):
        z: int

    nothing = object()

    @bosquet.tool
    def odd(
        schema: Local,  # a name that a pydantic model could not have
        _under: int,
        *,
        when: datetime.date = datetime.date(2020, 1, 2),
        what: Any = nothing,
        size: float = math.inf,
        who: Optional[uuid.UUID] = None,  # noqa: UP045  # both ways of writing it
    ) -> list[Any]:
        "Odd."
        return [schema, _under, when, what, size, who]

    properties = odd.parameters["properties"]
    assert properties["when"] == {"format": "date", "type": "string", "default": "2020-01-02"}
    assert properties["what"] == {}  # its default is no JSON, so it is not told
    assert properties["size"]["default"] == "Infinity"
    found = odd.arguments('{"schema": {"z": 1}, "_under": 2, "when": "2021-03-04"}')
    assert odd(**found) == [Local(z=1), 2, datetime.date(2021, 3, 4), nothing, math.inf, None]


def test_a_tool_without_parameters() -> None:
    @bosquet.tool
    async def now() -> int:
        "The time."
        return 12

    assert now.parameters == {"additionalProperties": False, "properties": {}, "type": "object"}
    assert now.arguments("") == now.arguments("{}") == {}
    assert now.is_async
    with pytest.raises(bosquet.InvalidArguments, match="x: Extra inputs"):
        now.arguments('{"x": 1}')


class Counter:
    start = 10

    def __init__(self) -> None:
        self.start = 5

    @bosquet.tool
    def add(self, x: int) -> int:
        """Add.

        Args:
            x: How much.
        """
        return self.start + x

    @classmethod
    @bosquet.tool
    def add_here(cls, x: int) -> int:
        "Add."
        return cls.start + x

    @staticmethod
    @bosquet.tool
    def double(x: int) -> int:
        "Double."
        return 2 * x


def test_methods_are_tools_through_their_instance() -> None:
    counter = Counter()
    assert (counter.add(1), Counter.add_here(1), Counter.double(1)) == (6, 11, 2)
    assert Counter.add(counter, 1) == 6  # type: ignore[call-arg, arg-type]
    assert list(counter.add.parameters["properties"]) == ["x"]
    assert counter.add.parameters["properties"]["x"]["description"] == "How much."
    assert [tool.is_unbound for tool in (counter.add, Counter.add, Counter.add_here, Counter.double)] == [
        False, True, False, False,
    ]  # fmt: skip


def unnamed(*values: int) -> None:
    "Doc."


def named(**values: int) -> None:
    "Doc."


def untyped(x, y: int) -> None:  # type: ignore[no-untyped-def]
    "Doc."


def by_place(x: int, /) -> None:
    "Doc."


def silent(x: int) -> None: ...


def field(x: int = pydantic.Field(3)) -> None:
    "Doc."


def missing(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    "Doc."


def calls(x: Callable[[], int]) -> None:
    "Doc."


def yields(x: int) -> Any:
    "Doc."
    yield x


def größe(x: int) -> None:
    "Doc."


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda: bosquet.tool(unnamed), TypeError, "tool unnamed: *values cannot be described to a model"),
        (lambda: bosquet.tool(named), TypeError, "tool named: **values cannot be described to a model"),
        (lambda: bosquet.tool(untyped), TypeError, "tool untyped: the parameter 'x' has no type"),
        (lambda: bosquet.tool(by_place), TypeError, "tool by_place: x is positional-only, but a model gives"),
        (lambda: bosquet.tool(silent), TypeError, "tool silent: it has no docstring"),
        (lambda: bosquet.tool(field), TypeError, "tool field: write x as Annotated[..., Field(...)] = default"),
        (lambda: bosquet.tool(missing), TypeError, "tool missing: a type cannot be resolved: name 'Nowhere'"),
        (lambda: bosquet.tool(calls), TypeError, "tool calls: the type of 'x', Callable[[], int], cannot be described"),
        (lambda: bosquet.tool(yields), TypeError, "tool yields: a tool is a plain or an async function, not a gen"),
        (lambda: bosquet.tool(größe), ValueError, "tool: a name has 1 to 64 letters, digits, _ and -, unlike 'größe'"),
        (lambda: bosquet.tool(name="a b")(by_place), ValueError, "tool: a name has 1 to 64 letters"),
        (lambda: bosquet.tool(name=5)(by_place), TypeError, "tool: name must be a string, not 5"),  # type: ignore[call-overload]
        (lambda: bosquet.tool(name="auto")(silent), ValueError, "tool: the name 'auto' has a meaning of its own"),
        (lambda: bosquet.tool(strict=1), TypeError, "tool: strict must be True or False, not 1"),  # type: ignore[call-overload]
        (lambda: bosquet.tool(5), TypeError, "tool: what it decorates must be a function, not 5"),  # type: ignore[call-overload]
        (lambda: bosquet.tool(Place), TypeError, "tool: what it decorates must be a function"),
    ],
)  # fmt: skip
def test_what_cannot_be_described_is_refused(make: Callable[[], Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(sentence)


# -- the schema and the check agree -----------------------------------------------------------------------------------

SMALL = Annotated[int, pydantic.Field(ge=-3, lt=9)]
SHORT = Annotated[str, pydantic.Field(min_length=1, max_length=3)]
FEW = Annotated[list[SMALL], pydantic.Field(max_length=2)]
TYPES = st.recursive(
    st.sampled_from([int, float, str, bool, SMALL, SHORT, Unit, Literal["a", 2, None], Place, FEW, type(None)]),
    lambda inner: st.one_of(
        inner.map(lambda one: list[one]),  # type: ignore[valid-type]
        inner.map(lambda one: dict[str, one]),  # type: ignore[valid-type]
        inner.map(lambda one: one | None),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
    ),
    max_leaves=4,
)
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 12), st.floats(-3, 3).filter(lambda x: x != int(x)),
        st.sampled_from(["", "a", "ab", "abcd", "celsius", "FR", "2", "true"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["city", "country", "x", "a"]), inner, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TYPES, st.booleans()), min_size=1, max_size=3), st.data())
def test_the_schema_and_the_check_accept_the_same(types: list[tuple[Any, bool]], data: st.DataObject) -> None:
    def function(**given: Any) -> None:
        "Doc."

    import inspect

    kinds = inspect.Parameter.KEYWORD_ONLY
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(f"p{i}", kinds, annotation=kind, **({"default": None} if optional else {}))
            for i, (kind, optional) in enumerate(types)
        ]
    )
    function.__annotations__ = {f"p{i}": kind for i, (kind, _) in enumerate(types)}
    tool = bosquet.tool(function)
    validator = jsonschema.Draft202012Validator(tool.parameters)
    fitting = st.fixed_dictionaries({}, optional={f"p{i}": suited(kind) for i, (kind, _) in enumerate(types)})
    for arguments in (data.draw(fitting), data.draw(st.dictionaries(st.sampled_from(["p0", "p1", "p9"]), JSON))):
        expected = validator.is_valid(arguments)
        try:
            tool.arguments(json.dumps(arguments))
            accepted = True
        except bosquet.InvalidArguments:
            accepted = False
        assert accepted == expected, (tool.parameters, arguments)


def suited(kind: Any) -> st.SearchStrategy[Any]:
    """JSON values, most of which are of this type."""
    samples: dict[Any, list[Any]] = {
        int: [0, 7], float: [0.5, 2], str: ["", "a"], bool: [True], SMALL: [-3, 8, 9, -4], SHORT: ["a", "abc", "abcd"],
        Unit: ["celsius", "kelvin"], Place: [{"city": "a"}, {"city": "a", "country": "FRA"}, {"city": "a", "more": 1}],
        FEW: [[], [1, 2], [1, 2, 3]], type(None): [None],
    }  # fmt: skip
    known = samples.get(kind) if not isinstance(kind, list) else None
    return st.one_of(st.sampled_from(known), JSON) if known else st.one_of(JSON, st.just([1]), st.just({"a": 1}))
