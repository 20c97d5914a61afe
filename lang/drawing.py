"""Pictures of a graph: Mermaid, Graphviz's DOT, and SVG, which is laid out here where Graphviz is not installed.

A column is a branch, and what stands further down comes later. Knows nothing of what a graph costs.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from ..prompts.transcript import Open
from .graph import Graph, Node
from .passes import merged

_SHORT: Final = 34  # characters of a text that a box shows
_COLOURS: Final = {
    "text": "#f3f1ea", "gen": "#cfe8d5", "select": "#d6e4f5", "tool": "#f7dfc3",
    "fork": "#e7def3", "join": "#e7def3", "program": "#ffffff",
}  # fmt: skip
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 264, 40, 24, 30, 16


class Edge(NamedTuple):
    """`label` is what is read, on an edge along which a value goes."""

    start: int
    end: int
    label: str = ""


def edges(graph: Graph) -> Iterator[Edge]:
    """Along branches, then along values: those that stand in a text, and those that the program had to read first."""
    for node in graph.nodes:
        for before in node.after:
            yield Edge(before, node.id)
        for source in dict.fromkeys((*node.needs, *node.waits)):
            if source not in node.after:
                yield Edge(source, node.id, graph.nodes[source].name)


def label(node: Node) -> str:
    """One line."""
    if node.kind == "text":
        text = " ".join(node.text.split()) or repr(node.text)
        role = next((part.role for part in node.written if isinstance(part, Open)), node.role)
        short = text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
        return f"{role}: {short}" if role else short
    if node.kind == "fork":
        return f"fork {len(node.branches)}"
    if node.kind == "join":
        return f"join {len(node.branches)}"
    return f"{node.kind} {node.name}"


def as_mermaid(graph: Graph) -> str:
    """The text of a flowchart."""
    graph = merged(graph)
    lines = ["flowchart TD"]
    for node in graph.nodes:
        left, right = ("([", "])") if node.is_step else ("[", "]")
        lines.append(f'    n{node.id}{left}"{_mermaid(label(node))}"{right}')
    for start, end, value in edges(graph):
        lines.append(f'    n{start} -. "{_mermaid(value)}" .-> n{end}' if value else f"    n{start} --> n{end}")
    if graph.ending is not None:
        lines.append(f'    ending{{{{"{_mermaid(str(graph.ending))}"}}}}')
        if graph.nodes:
            lines.append(f"    n{graph.nodes[-1].id} -.-> ending")
    for kind, colour in _COLOURS.items():
        if of_kind := [f"n{node.id}" for node in graph.nodes if node.kind == kind]:
            lines.append(f"    classDef {kind} fill:{colour},stroke:#888,color:#222")
            lines.append(f"    class {','.join(of_kind)} {kind}")
    return "\n".join(lines) + "\n"


def _mermaid(text: str) -> str:
    return "".join(c if c.isalnum() or c in " .,:?!'()-_+…/=" else f"#{ord(c)};" for c in text)


def as_dot(graph: Graph) -> str:
    """The text of a Graphviz graph."""
    graph = merged(graph)
    lines = [
        f"digraph {_quoted(graph.program)} {{",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    lines += [
        f"  n{node.id} [label={_quoted(label(node))}, fillcolor={_quoted(_COLOURS[node.kind])}];"
        for node in graph.nodes
    ]
    for start, end, value in edges(graph):
        more = f" [style=dashed, label={_quoted(value)}]" if value else ""
        lines.append(f"  n{start} -> n{end}{more};")
    if graph.ending is not None:
        lines.append(f"  ending [label={_quoted(str(graph.ending))}, shape=octagon, fillcolor=white];")
        if graph.nodes:
            lines.append(f"  n{graph.nodes[-1].id} -> ending [style=dotted];")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def as_svg(graph: Graph) -> str:
    """A picture: Graphviz's, if it is installed, else one of our own."""
    dot = shutil.which("dot")
    if dot is None:
        return own_svg(graph)
    done = subprocess.run([dot, "-Tsvg"], input=as_dot(graph), capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def own_svg(graph: Graph) -> str:
    """A picture without Graphviz."""
    graph = merged(graph)
    columns = _columns(graph)
    rows: dict[int, int] = {}
    for node in graph.nodes:  # in the program's order, so what a node comes after has its row
        rows[node.id] = 1 + max((rows[edge] for edge in (*node.after, *node.needs, *node.waits)), default=-1)
    last = max(rows.values(), default=-1)
    place = {node.id: (columns[node.branch], rows[node.id]) for node in graph.nodes}
    ending = "" if graph.ending is None else f"… {graph.ending}"
    width = 2 * _MARGIN + max((max(columns.values(), default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X, 6 * len(ending))
    height = 2 * _MARGIN + (last + 1 + (graph.ending is not None)) * (_HEIGHT + _GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#666"/></marker></defs>',
    ]
    parts += [_line(place[start], place[end], value) for start, end, value in edges(graph)]
    parts += [_box(place[node.id], label(node), _COLOURS[node.kind], node.is_step) for node in graph.nodes]
    if ending:
        x, y = _corner((0, last + 1))
        parts.append(f'<text x="{x}" y="{y + _HEIGHT // 2}" fill="#a33">{escape(ending)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _columns(graph: Graph) -> dict[str, int]:
    """A column for each branch, those of a fork side by side, right of the branch that they come from."""
    paths = dict.fromkeys(node.branch for node in graph.nodes)
    ordered = sorted(paths, key=lambda path: [int(part) for part in path.split(".") if part])
    return {path: column for column, path in enumerate(ordered)}


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    return _MARGIN + place[0] * (_WIDTH + _GAP_X), _MARGIN + place[1] * (_HEIGHT + _GAP_Y)


def _box(place: tuple[int, int], text: str, colour: str, is_step: bool) -> str:
    x, y = _corner(place)
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{_HEIGHT // 2 if is_step else 5}" '
        f'fill="{colour}" stroke="#888"/><text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2 + 4}" fill="#222" '
        f'text-anchor="middle">{escape(text)}</text>'
    )


def _line(start: tuple[int, int], end: tuple[int, int], value: str) -> str:
    (x1, y1), (x2, y2) = _corner(start), _corner(end)
    x1, x2, y1 = x1 + _WIDTH // 2, x2 + _WIDTH // 2, y1 + _HEIGHT
    bend = (y1 + y2) // 2
    dashes = ' stroke-dasharray="4 3"' if value else ""
    path = f'<path d="M{x1} {y1} C{x1} {bend} {x2} {bend} {x2} {y2}" fill="none" stroke="#666"{dashes} '
    path += 'marker-end="url(#tip)"/>'
    if value:
        path += f'<text x="{(x1 + x2) // 2 + 6}" y="{bend}" fill="#666" font-size="9">{escape(value)}</text>'
    return path
