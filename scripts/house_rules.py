"""The rules of the house that no linter knows: sizes, layers, cycles, names, environment variables.

Run by `scripts/check`; `tests/null/test_house_rules.py` shows that each rule can fail. Reads sources, imports none.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES, FUNCTION_LINES, KNOBS, BASIC_KNOBS, ENVIRONMENT = 400, 60, 40, 12, 5
ROOMS = ("lang", "prompts", "runtime", "radix_cache", "grammar", "speculative", "kernels")
ROOT_FILES = ("__init__", "types", "errors", "cli")
MAY_IMPORT = {
    "prompts": set[str](),
    "kernels": set[str](),
    "radix_cache": set[str](),
    "grammar": set[str](),
    "speculative": {"kernels", "grammar"},
    "runtime": {"prompts", "kernels", "radix_cache", "grammar", "speculative"},
    "lang": {"prompts"},
}
SCRIPTS = ("tests", "examples", "benchmarks", "scripts")


class Source:
    """One Python file of the tree. `name` is its dotted name inside the package, or None outside it."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path.relative_to(root)
        self.text = path.read_text()
        self.tree = ast.parse(self.text, str(path))
        parts = self.path.with_suffix("").parts
        inside = parts[0] in ROOMS or (len(parts) == 1 and parts[0] in ROOT_FILES)
        self.room = parts[0] if inside else None
        self.is_package = parts[-1] == "__init__"
        self.parts = (parts[:-1] if self.is_package else parts) if inside else ()

    def imports(self) -> Iterator[tuple[str, ...]]:
        """Modules of ours that this one imports, as parts of their dotted names; also those inside functions."""
        package = self.parts if self.is_package else self.parts[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1]
                module = base + tuple(node.module.split(".")) if node.module else base
                if node.module:  # `from . import x` needs the sibling x, not what the package has in its own file
                    yield module
                for alias in node.names:
                    yield (*module, alias.name)


def sources(root: Path) -> list[Source]:
    folders = [root / name for name in (*ROOMS, *SCRIPTS)]
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*.py"))]
    files += [root / f"{name}.py" for name in ROOT_FILES if (root / f"{name}.py").is_file()]
    return [Source(root, path) for path in files]


def sizes(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > FILE_LINES:
        yield f"{source.path}: {lines} lines, at most {FILE_LINES}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{source.path}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}"
        if isinstance(node, ast.ClassDef) and "Mixin" in node.name:
            yield f"{source.path}:{node.lineno}: class {node.name}: no mixins"


def layers(source: Source) -> Iterator[str]:
    """Relative imports inside the package only, and only in the allowed direction."""
    if source.room is None:
        return
    for node in ast.walk(source.tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        if any(name.split(".")[0] == "bosquet" for name in names):
            yield f"{source.path}:{getattr(node, 'lineno', 0)}: imports bosquet absolutely; relative inside the package"
    if source.room in ("types", "errors"):
        yield from (f"{source.path}: imports {'.'.join(m)}; it may import nothing of ours" for m in source.imports())
    elif source.room in MAY_IMPORT:
        allowed = {source.room, "types", "errors", "__version__", *MAY_IMPORT[source.room]}
        for module in source.imports():
            if module and module[0] not in allowed:
                yield f"{source.path}: imports {'.'.join(module)}; {source.room} may import {sorted(allowed)}"


def cycles(files: list[Source]) -> Iterator[str]:
    """Modules that import each other, found as strongly connected components (Tarjan)."""
    names = {source.parts: source for source in files if source.room is not None}
    graph = {name: {m for m in source.imports() if m in names and m != name} for name, source in names.items()}
    index: dict[tuple[str, ...], int] = {}
    low: dict[tuple[str, ...], int] = {}
    stack: list[tuple[str, ...]] = []

    def visit(name: tuple[str, ...]) -> Iterator[str]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                yield "import cycle: " + " -> ".join(".".join(part) or "bosquet" for part in component)

    for name in sorted(graph):
        if name not in index:
            yield from visit(name)


def knobs(files: list[Source]) -> Iterator[str]:
    calls = [
        node
        for source in files
        if source.room is not None
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "knob"
    ]
    basic = [c for c in calls if any(k.arg == "basic" for k in c.keywords) or len(c.args) > 2]
    if len(calls) > KNOBS:
        yield f"{len(calls)} knobs, at most {KNOBS}"
    if len(basic) > BASIC_KNOBS:
        yield f"{len(basic)} knobs in the default help, at most {BASIC_KNOBS}"


def environment(files: list[Source]) -> Iterator[str]:
    """os.environ and os.getenv are read in runtime/env.py alone, and for few names."""
    for source in files:
        if source.room is None:
            continue
        uses = [
            node
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
        ]
        if uses and source.path != Path("runtime/env.py"):
            yield f"{source.path}:{uses[0].lineno}: reads the environment; only runtime/env.py may"
        if len(uses) > ENVIRONMENT:
            yield f"{source.path}: {len(uses)} environment variables, at most {ENVIRONMENT}"


def kernels_package(root: Path) -> Iterator[str]:
    """kernels/__init__.py has no imports: other libraries may find it under that name."""
    path = root / "kernels" / "__init__.py"
    if path.is_file() and any(
        isinstance(n, ast.Import | ast.ImportFrom) for n in ast.walk(ast.parse(path.read_text()))
    ):
        yield "kernels/__init__.py: has imports"


def violations(root: Path) -> list[str]:
    files = sources(root)
    found = [line for source in files for rule in (sizes, layers) for line in rule(source)]
    for rule_of_all in (cycles, knobs, environment):
        found += rule_of_all(files)
    return found + list(kernels_package(root))


if __name__ == "__main__":
    problems = violations(Path(__file__).resolve().parents[1])
    print("\n".join(problems))
    sys.exit(bool(problems))
