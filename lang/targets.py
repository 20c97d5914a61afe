"""Programs and arguments as the command line names them: `FILE:PROGRAM` and `name=value`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ConfigError
from .program import Program


def program_in(target: str) -> Program[Any]:
    """The program that `FILE:PROGRAM` names; the file is run. Raises `ConfigError`, and what the file raises."""
    path, _, name = (target, "", "") if Path(target).is_file() else target.rpartition(":")
    if not path or not Path(path).is_file():
        raise ConfigError(f"{target}: expected FILE:PROGRAM, with an existing file")
    programs = {name: found for name, found in vars(_load(Path(path))).items() if isinstance(found, Program)}
    if name in programs:
        return programs[name]
    known = f"it has {', '.join(programs)}" if programs else "decorate one with @bosquet.program"
    raise ConfigError(f"{path} has no program named {name}; {known}" if name else f"{path}: of which program? {known}")


def argument(text: str) -> tuple[str, Any]:
    """The name and the value, which is what its JSON says if it is JSON, and else the text. Raises `ConfigError`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--arg {text}: expected name=value")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
