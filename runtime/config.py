"""How a setting is declared: a dataclass field that carries its own help text.

Each room keeps its settings in a frozen dataclass beside their owner; the command line is generated from them. This
file knows none of the settings.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any


def knob(default: Any, help: str, basic: bool = False) -> Any:
    """A field with a default (immutable), one sentence of help, and whether the short help lists it."""
    return field(default=default, metadata={"help": help, "basic": basic})
