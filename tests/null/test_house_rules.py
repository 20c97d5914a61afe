"""The house's own rules hold, and each can fail."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from by_path import module_at

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    return module_at(ROOT / "scripts" / "house_rules.py")


def test_this_tree_keeps_them(rules: ModuleType) -> None:
    assert rules.violations(ROOT) == []


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("lang/long.py", "x = 1\n" * 401, "401 lines"),
        ("lang/f.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
        ("lang/m.py", "class ThingMixin: ...\n", "no mixins"),
        ("lang/a.py", "from bosquet.types import Row\n", "imports bosquet absolutely"),
        ("lang/b.py", "from ..runtime import engine\n", "imports runtime"),
        ("kernels/c.py", "from ..radix_cache.tree import X\n", "imports radix_cache"),
        ("grammar/d.py", "def f():\n    from ..kernels import table\n", "imports kernels"),
        ("types.py", "from .errors import X\n", "it may import nothing of ours"),
        ("runtime/e.py", "import os\nx = os.environ['A']\n", "reads the environment"),
        ("kernels/__init__.py", "import torch\n", "has imports"),
        ("lang/many.py", "\n".join(f"a{i} = knob(1, 'x')" for i in range(41)) + "\n", "41 knobs"),
        ("lang/many.py", "\n".join(f"a{i} = knob(1, 'x', basic=True)" for i in range(13)) + "\n", "13 knobs"),
    ],
)
def test_each_rule_can_fail(rules: ModuleType, tmp_path: Path, path: str, text: str, expected: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert any(expected in line for line in rules.violations(tmp_path))


def test_cycles_are_found(rules: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "lang").mkdir()
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / "lang" / f"{name}.py").write_text(f"from .{other} import x\n")
    assert any("import cycle" in line for line in rules.violations(tmp_path))


@pytest.mark.parametrize("room", ["lang", "prompts", "runtime", "radix_cache", "grammar", "speculative", "kernels"])
def test_no_room_is_importable_by_its_bare_name(room: str) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({room!r}) is not None)"
    assert subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, check=False).returncode == 0
    assert importlib.util.find_spec(room) is None


def test_the_links_lead_to_every_room() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "src" / "bosquet").iterdir() if path.name != "__pycache__"}
    assert all(target.parent == ROOT for target in links.values())
    rooms = {"lang", "prompts", "runtime", "radix_cache", "grammar", "speculative", "kernels"}
    assert set(links) == rooms | {"__init__.py", "types.py", "errors.py", "cli.py", "py.typed"}


@pytest.mark.parametrize(
    ("process", "without"),
    [
        ("serving", ["torch", "transformers", "xgrammar", "triton", "lark"]),
        ("assembly", ["transformers", "xgrammar", "triton", "fastapi"]),
    ],
)
def test_a_start_imports_only_what_it_runs(process: str, without: list[str]) -> None:
    code = f"import sys, bosquet.runtime.{process}; print(*set({without}) & set(sys.modules))"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stderr


@pytest.mark.alone
def test_importing_bosquet_is_light() -> None:
    """In processor time, of what the same machine needs for a web framework: a third as a rule."""
    code = (
        "import sys, time; t = time.process_time(); import {0}; s = time.process_time() - t;"
        "print(s, *({{'torch', 'transformers', 'numpy', 'fastapi', 'xgrammar', 'httpx', 'zmq'}} & set(sys.modules)))"
    )
    spent: dict[str, list[float]] = {"bosquet": [], "fastapi": []}
    for module in [*spent] * 3:
        command = [sys.executable, "-P", "-c", code.format(module)]
        seconds, *heavy = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert module == "fastapi" or not heavy
        spent[module].append(float(seconds))
    assert min(spent["bosquet"]) < 0.6 * min(spent["fastapi"]), spent
