"""A program as a graph of typed nodes: what it writes, what it asks, where it forks.

Plain data, made by `tracing`, read by `passes`, `plan`, `estimate` and `drawing`. Knows nothing of how programs run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from ..prompts.transcript import Close, Open
from ..types import SamplingParams, ToolSpec
from .acting import Act
from .expressions import Gen, Select
from .placeholders import Ending, Ref

Kind = Literal["text", "gen", "select", "tool", "fork", "join", "program"]

STEPS: Final = ("gen", "select", "tool")
"""The kinds that ask a model."""


class Said(NamedTuple):
    """Text, in the turn that is open or in none."""

    parts: tuple[str | Ref, ...]

    def __str__(self) -> str:
        return "".join(part if isinstance(part, str) else f"{{{part.label}}}" for part in self.parts)


Written = Open | Said | Close


def tool_specs(piece: Gen | Select | Act | None) -> tuple[ToolSpec, ...]:
    """What the prompt of such a step says of tools, at its very beginning."""
    return tuple(tool.spec for tool in piece.tools.values()) if isinstance(piece, Act) else ()


class Node(Struct, frozen=True, kw_only=True):
    """One thing that the program does. `id` counts in the program's order.

    `after` are nodes that come before it in its branch (a join has those of the joined branches too), `needs` those
    whose values stand in its text, `waits` those whose values the program had read when it wrote the node. `written`
    is what the node puts into the prompt; that of a step stands before what is generated. `name` is the variable, or
    the name of a program; `within` the nodes of the sub-programs that it belongs to, outermost first. `flow` counts the
    tasks of an async program: one that reads a value waits, the others go on.
    """

    id: int
    kind: Kind
    branch: str = ""
    name: str = ""
    place: int = 0  # a step's number in its branch
    role: str | None = None  # of the turn that is open
    written: tuple[Written, ...] = ()
    piece: Gen | Select | Act | None = None
    sampling: SamplingParams | None = None
    branches: tuple[str, ...] = ()  # that a fork makes, or a join ends
    after: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    within: tuple[int, ...] = ()
    flow: int = 0
    line: int = 0

    @property
    def is_step(self) -> bool:
        return self.kind in STEPS

    @property
    def text(self) -> str:
        """What it writes, with `{name}` where a value will stand."""
        return "".join(str(part) for part in self.written if isinstance(part, Said))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What is known of a program before it runs. `ending` is None if that is all of it; otherwise `nodes` are those up
    to there. `flows` has for each flow the one that began it (for the first: itself)."""

    program: str
    nodes: tuple[Node, ...]
    ending: Ending | None = None
    flows: tuple[int, ...] = (0,)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        """Nothing in it depends on a value that only a run has."""
        return self.ending is None

    @property
    def steps(self) -> tuple[Node, ...]:
        """The nodes that ask a model, in the program's order."""
        return tuple(node for node in self.nodes if node.is_step)

    def of_kind(self, kind: Kind) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == kind)

    def lineage(self, node: Node) -> Iterator[Node]:
        """The nodes whose tokens the node goes on from, nearest first: those before it in its branch, and in the
        branches that it was forked from."""
        before = node.after[:1]
        while before:
            found = self.nodes[before[0]]
            yield found
            before = found.after[:1]

    def __str__(self) -> str:
        lines = [f"{self.program}: {len(self.steps)} steps"]
        for node in self.nodes:
            place = f" in {node.branch}" if node.branch else ""
            lines.append(f"  {node.id:>3} {node.kind}{place} {node.name or repr(node.text)}")
        return "\n".join([*lines, *([] if self.ending is None else [f"  static up to {self.ending}"])])
