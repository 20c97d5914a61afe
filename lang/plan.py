"""What a graph tells a backend, step by step, and the outlook of a run that is made of it and of what was learnt.

Knows nothing of how graphs are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..types import Ahead
from .graph import Graph
from .journal import Journal, Step
from .learnt import Habits
from .outlook import Outlook
from .passes import ended_branches, going_on, steps_left


class Foreseen(NamedTuple):
    """Of one step: whether the run goes on from its tokens (None: the graph does not tell), and how many steps are left
    with it; `exact` if there are no more, `act` if it may ask several times."""

    name: str
    returns: bool | None
    left: int
    exact: bool
    act: bool


Plan = Mapping[tuple[str, int], Foreseen]
"""By branch, and by the step's number in it."""


def plan_of(graph: Graph) -> Plan:
    """What is known of each step before the run."""
    left, gone_on_from, ended = steps_left(graph), set(going_on(graph).values()), ended_branches(graph)
    exact = graph.is_static and not graph.of_kind("tool")
    return {
        (step.branch, step.place): Foreseen(
            step.name,
            True if step.id in gone_on_from else False if step.branch in ended else None,
            left[step.id],
            exact,
            step.kind == "tool",
        )
        for step in graph.steps
    }


class Known(Outlook):
    """The outlook of a run that has a plan, or whose program has been seen before. What the plan leaves open is taken
    from the habits; a run that does not go by its plan does without it."""

    def __init__(
        self, plan: Plan | None, habits: Habits | None = None, learn: Callable[[Journal], None] | None = None
    ) -> None:
        self._plan, self._habits, self._learn = plan, habits, learn

    def ahead(self, step: Step) -> Ahead:
        seen = None if self._habits is None else self._habits.of(step.name, len(step.asked) - 1)
        known = None if self._plan is None else self._plan.get((step.branch, step.place))
        if known is not None and known.name != step.name:
            self._plan = known = None
        returns, left, tokens, pause = None, 0, 0, 0.0
        if seen is not None:
            returns, left, tokens, pause = seen.returns, round(seen.left), round(seen.tokens), seen.pause_s
        if known is not None:
            left = known.left if known.exact else max(left, known.left)
            if known.returns is not None and (known.returns or not known.act):
                returns = known.returns
        return Ahead(returns, 0.0 if returns is False else pause, left, tokens)

    def ended(self, journal: Journal) -> None:
        if self._learn is not None:
            self._learn(journal)


def shape(value: Any) -> Any:
    """What of an argument decides which plan holds: numbers as they are, of texts only that they are some. Hashable."""
    if isinstance(value, list | tuple):
        return (type(value), *map(shape, value))
    if isinstance(value, dict):
        return (dict, *((key, shape(item)) for key, item in value.items()))
    if value is None or isinstance(value, bool | int | float):
        return type(value), value
    return type(value)
