"""What `bosquet compile` says of a program, for people and for programs.

Knows nothing of the command line.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from ..errors import ConfigError
from .backend import TokenBackend
from .drawing import as_dot, as_mermaid, as_svg
from .estimate import Estimate, estimate
from .graph import Graph, Node, Said
from .learnt import Habits, learnt
from .loop import submit
from .passes import constant_prefix, going_on, last_uses, parallel_groups, steps_left
from .program import Program
from .targets import failing, taking

_DRAWINGS: Final[dict[str, Callable[[Graph], str]]] = {"mermaid": as_mermaid, "dot": as_dot, "svg": as_svg}


def report(
    program: Program[Any],
    arguments: dict[str, Any],
    form: str,
    out: Path | None,
    backend: TokenBackend | None = None,
    model: str = "",
) -> None:
    """Compile the program for the arguments and write what is known of it, as `form` says, to the file or to standard
    output. A `backend` counts tokens as `model` has them. Raises `ConfigError` for arguments that the program does not
    take, or fails with, and what the backend raises."""
    with taking():
        program.given(**arguments)
    graph = _compiled(program, arguments, backend)
    if form in _DRAWINGS:
        _write(_DRAWINGS[form](graph), out)
        return
    if (book := learnt()) is not None:
        book.load()
    opened, habits = _opened(program, backend), program.habits()
    cost = submit(estimate(graph, backend, habits, opened=opened, name=model)).result()
    if form == "json":
        _write(as_json(graph, opened, cost) + "\n", out)
        return
    from rich.console import Console  # heavy, and only for those who look

    if out is None:
        show(graph, opened, cost, habits, Console().print)
        return
    text = io.StringIO()
    show(graph, opened, cost, habits, Console(file=text, width=160).print)
    _write(text.getvalue(), out)


def _compiled(program: Program[Any], arguments: dict[str, Any], backend: TokenBackend | None) -> Graph:
    with failing(program, ConfigError):
        graph = program.compile(**arguments, backend=backend)
    if graph.ending is not None and graph.ending.fault:
        raise ConfigError(f"{program.name}: {graph.ending}")
    return graph


def _opened(program: Program[Any], backend: TokenBackend | None) -> Graph:
    """The program with its arguments left open; nothing of it where it fails so."""
    try:
        return program.compile(backend=backend)
    except Exception:  # the arguments that it is compiled for are others than those which it has by itself
        return Graph(program=program.name, nodes=())


def listing(programs: Mapping[str, Program[Any]], out: Path | None) -> None:
    """Write the programs' names, their parameters and what they say of themselves, one a line."""
    lines = []
    for name, program in programs.items():
        about = (program.__doc__ or "").strip().partition("\n")[0]
        lines.append(f"{name}{program.signature}{'  ' if about else ''}{about}\n")
    _write("".join(lines), out)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from None


def as_json(graph: Graph, opened: Graph, cost: Estimate) -> str:
    """The graph, what follows from it, and the estimate."""
    last, left = last_uses(graph), steps_left(graph)
    ending = graph.ending
    return json.dumps(
        {
            "program": graph.program,
            "static": graph.is_static,
            "ending": None
            if ending is None
            else {
                "file": ending.file,
                "line": ending.line,
                "function": ending.function,
                "variable": ending.variable,
                "why": ending.why,
            },
            "nodes": [_described(node, cost, last, left) for node in graph.nodes],
            "groups": [[node.id for node in group] for group in parallel_groups(graph)],
            "constant_prefix": _beginning(opened),
            "tokens": {
                "counted_by": cost.counted_by,
                "exact": cost.exact,
                "prompt": cost.prompt,
                "computed": cost.computed,
                "saved_by_turns": cost.by_turns,
                "saved_by_forks": cost.by_forks,
                "constant_prefix": cost.prefix,
                "generated_at_most": cost.generated,
            },
        },
        indent=2,
        ensure_ascii=False,
    )


def _described(node: Node, cost: Estimate, last: dict[int, int | None], left: dict[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {"id": node.id, "kind": node.kind, "branch": node.branch, "line": node.line}
    found |= {"name": node.name} if node.name else {}
    found |= {"role": node.role} if node.role else {}
    found |= {"text": node.text} if node.text else {}
    found |= {"branches": node.branches} if node.branches else {}
    for name in ("after", "needs", "waits", "within"):
        found |= {name: getattr(node, name)} if getattr(node, name) else {}
    if node.sampling is not None:
        found["sampling"] = {
            name: value if not isinstance(value, bytes) else value.decode()
            for name, value in to_builtins(node.sampling, builtin_types=(bytes,)).items()
        }
        found["sampling"] |= {"stop": [stop.decode() for stop in node.sampling.stop]} if node.sampling.stop else {}
    if node.is_step:
        found |= {"steps_left": left[node.id], "last_use": last[node.id], "tokens": cost.steps[node.id]._asdict()}
    return found


def show(graph: Graph, opened: Graph, cost: Estimate, habits: Habits | None, echo: Callable[..., None]) -> None:
    """The plan as tables and sentences; `echo` prints what rich can render."""
    from rich.box import SIMPLE  # heavy, and only for those who look
    from rich.markup import escape
    from rich.table import Table

    groups = parallel_groups(graph)
    echo(
        f"[bold]{escape(graph.program)}[/bold]: {_count(len(graph.steps), 'step')} in {_count(len(groups), 'group')}, "
        f"{_count(len(graph.of_kind('fork')), 'fork')}"
    )
    ending = "static: known to its end" if graph.ending is None else f"static up to {escape(str(graph.ending))}"
    echo(f"[bold]{ending}[/bold]")
    table = Table("at", "", "step", "line", "prompt", "cached", "output", "goes on from", "last used by", box=SIMPLE)
    before, last = going_on(graph), last_uses(graph)
    for number, group in enumerate(groups, 1):
        for node in group:
            one = cost.steps[node.id]
            table.add_row(
                str(number), node.kind, _name(graph, node.id), str(node.line),
                str(one.prompt), str(one.cached), str(one.generated),
                _name(graph, before[node.id]), _name(graph, last[node.id]),
            )  # fmt: skip
    echo(table)
    echo(
        f"tokens ({escape(cost.counted_by)}{'' if cost.exact else '; texts that only a run knows are guessed'}): "
        f"{cost.prompt} in prompts, {cost.computed} to compute, {cost.by_turns} saved by turns, "
        f"{cost.by_forks} by forks; at most {cost.generated} generated"
    )
    prefix = " ".join(_beginning(opened).split())
    if prefix:
        begins = prefix if len(prefix) < 80 else prefix[:79] + "…"
        echo(f"every run begins with {_count(cost.prefix, 'token')}: {escape(begins)}")
    if habits is not None and graph.is_static:  # runs with other arguments may have had other steps
        habits = habits.only({step.name for step in graph.steps})
    if habits is not None and habits.steps:
        _show_habits(habits, echo)


def _show_habits(habits: Habits, echo: Callable[..., None]) -> None:
    from rich.box import SIMPLE  # as above
    from rich.markup import escape
    from rich.table import Table

    table = Table("learnt from runs", "seen", "tokens", "goes on", "after", "requests left", box=SIMPLE)
    for name, habit in habits.steps.items():
        table.add_row(
            escape(name), str(habit.seen), f"{habit.tokens:.0f}", f"{habit.returned:.0%}", f"{habit.pause_s:.2f} s",
            f"{habit.left:.1f}",
        )  # fmt: skip
    echo(table)
    for step, width in habits.forks.items():
        echo(f"forks into {width:.0f} after {escape(step or 'the beginning')}")


def _name(graph: Graph, id: int | None) -> str:
    from rich.markup import escape  # as above

    if id is None:
        return "-"
    node = graph.nodes[id]
    return escape(f"{node.name} in {node.branch}" if node.branch else node.name)


def _beginning(opened: Graph) -> str:
    """The text that all runs begin with."""
    return "".join(str(part) for part in constant_prefix(opened) if isinstance(part, Said))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
