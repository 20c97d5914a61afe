"""Modules that stand outside any package: scripts, benchmarks, examples, and test files whose tools others use."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_at(path: Path, name: str = "") -> ModuleType:
    """The module of this file, made anew as `name` or the name of the file, which is where pydantic looks it up."""
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
