"""Programs and arguments as the command line names them: `FILE:PROGRAM` and `name=value`; and what it says where they
fail."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import BosquetError, ConfigError
from .program import Program
from .raised import raised_in, said


def program_in(target: str) -> Program[Any]:
    """The program that `FILE:PROGRAM` names; the file is run. Raises `ConfigError`."""
    path, _, name = (target, "", "") if Path(target).is_file() else target.rpartition(":")
    if not path or not Path(path).is_file():
        raise ConfigError(f"{target}: expected FILE:PROGRAM, with an existing file")
    programs = programs_of(path)
    if name in programs:
        return programs[name]
    known = f"it has {', '.join(programs)}"
    raise ConfigError(f"{path} has no program named {name}; {known}" if name else f"{path}: of which program? {known}")


def programs_of(path: str) -> dict[str, Program[Any]]:
    """The file's programs by name, at least one; the file is run. Raises `ConfigError`."""
    programs = {name: found for name, found in vars(_load(Path(path))).items() if isinstance(found, Program)}
    if not programs:
        raise ConfigError(f"{path} has no program; decorate one with @bosquet.program")
    return programs


def argument(text: str) -> tuple[str, Any]:
    """The name and the value, which is what its JSON says if it is JSON, and else the text. Raises `ConfigError`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--arg {text}: expected name=value")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


@contextmanager
def taking() -> Iterator[None]:
    """Arguments that the program does not take are a `ConfigError`."""
    try:
        yield
    except TypeError as error:
        raise ConfigError(f"{error}; give arguments with -a name=value") from None


@contextmanager
def failing(program: Program[Any], kind: type[BosquetError]) -> Iterator[None]:
    """What the program's own code raises is an error of this kind, of one line that says where. What Bosquet raises has
    its line already."""
    try:
        yield
    except BosquetError:
        raise
    except (Exception, SystemExit) as error:
        at = raised_in(error, {program.function.__code__.co_filename})
        where = f"line {at.line}, in {at.function}: " if at.line else ""
        raise kind(f"{program.name}: {where}{_in_a_line(said(error))}") from error


def _load(path: Path) -> ModuleType:
    """The file as a module. Raises `ConfigError` for what the file raises."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        line, what = raised_in(error, {str(path)}).line, said(error)
        if isinstance(error, SyntaxError) and error.filename == str(path):
            line, what = error.lineno or 0, f"{type(error).__name__}: {error.msg}"
        raise ConfigError(f"{path}{f', line {line}' if line else ''}: {_in_a_line(what)}") from error
    return module


def _in_a_line(text: str) -> str:
    return " ".join(text.split())
