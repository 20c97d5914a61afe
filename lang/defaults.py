"""Which backend a program runs on when its caller names none.

Knows nothing of what a backend is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import ConfigError
from .backend import Backend

_scoped: ContextVar[Backend | None] = ContextVar("bosquet_backend", default=None)
_default: Backend | None = None


def set_backend(backend: Backend | None) -> None:
    """The backend of this process's programs, unless `use(...)` or `backend=` says otherwise. None takes it back."""
    global _default
    _default = backend


@contextmanager
def use(backend: Backend) -> Iterator[None]:
    """`with use(backend):` programs started inside run on it, in this thread or task and in those it starts."""
    token = _scoped.set(backend)
    try:
        yield
    finally:
        _scoped.reset(token)


def resolve(backend: Backend | None) -> Backend:
    """`backend`, else that of the nearest `use`, else the default. Raises `ConfigError` when there is none."""
    chosen = backend or _scoped.get() or _default
    if chosen is None:
        raise ConfigError(
            "no backend to run on: pass backend=..., or call bosquet.set_backend(...) once, "
            "or write `with bosquet.use(...):` around the call"
        )
    return chosen
