"""From a program and its arguments to a graph: which values the trace is given, and which only placeholders.

Knows nothing of what a graph is good for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from .backend import Backend
from .expressions import Sampling
from .graph import Graph
from .placeholders import Marks, Ref
from .plan import shape
from .tracing import traced

_KINDS: Final[dict[str, type]] = {kind.__name__: kind for kind in (str, int, float, bool, list, dict, tuple)}


def compiled(
    name: str,
    function: Callable[..., Any],
    sampling: Sampling,
    given: inspect.BoundArguments,
    kinds: Mapping[str, type],
    *,
    stand_in: Mapping[str, type] | None = None,
    backend: Backend | None = None,
    first_call: bool = False,
) -> Graph:
    """The graph for the arguments that are `given`; those that are not, and have no default, are placeholders of the
    `kinds` that the function takes. `stand_in` are arguments to be taken for placeholders, of these types, though they
    are given."""
    marks = Marks({function.__code__.co_filename})
    known = dict(given.arguments)
    for parameter in given.signature.parameters.values():
        wanted = (stand_in or {}).get(parameter.name)
        if wanted is not None or (parameter.name not in known and parameter.default is parameter.empty):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            kind = wanted or kinds[parameter.name]
            known[parameter.name] = marks.new(Ref(parameter.name, (), (parameter.name,)), kind)
    bound = inspect.BoundArguments(given.signature, known)
    return traced(
        name,
        function,
        sampling,
        given.arguments,
        lambda state: function(state, *bound.args, **bound.kwargs),
        marks=marks,
        backend=backend,
        first_call=first_call,
    )


def kinds(function: Callable[..., Any]) -> dict[str, type]:
    """What each parameter takes, as far as its annotation tells."""
    return {name: _kind(parameter.annotation) for name, parameter in inspect.signature(function).parameters.items()}


def shape_of(given: inspect.BoundArguments, kinds: Mapping[str, type]) -> Any:
    """What of the arguments decides which plan holds. Hashable."""
    values = given.arguments
    return tuple(
        shape(values[name])
        if name in values
        else kinds[name]
        if parameter.default is parameter.empty
        else shape(parameter.default)
        for name, parameter in given.signature.parameters.items()
    )


def _kind(annotation: Any) -> type:
    """What a parameter of this annotation takes: a text, unless it says otherwise."""
    if annotation is inspect.Parameter.empty:
        return str
    said = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return _KINDS.get(said.partition("[")[0].strip(), object)
