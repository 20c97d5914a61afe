"""Names of back ends and how to load them. Knows nothing of what they compute.

A back end's module is imported when it is asked for, so an optional one costs nothing and may need libraries that are
not there.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ConfigError
from .table import Ops


def _reference() -> Ops:
    from .reference.ops import ReferenceOps

    return ReferenceOps()


_FACTORIES: dict[str, Callable[[], Ops]] = {"reference": _reference}


def known_ops() -> tuple[str, ...]:
    """The names that `load_ops` takes."""
    return tuple(_FACTORIES)


def load_ops(name: str) -> Ops:
    """A fresh table of operations. Each has workspace of its own, so one serves one thread.

    Raises `ConfigError` for an unknown name.
    """
    factory = _FACTORIES.get(name)
    if factory is None:
        raise ConfigError(f"no kernels named {name!r}; known: {', '.join(_FACTORIES)}")
    return factory()
