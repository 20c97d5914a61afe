"""Which backend a program runs on when its caller names none.

Knows nothing of what a backend is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import ConfigError
from .backend import Backend, checked_backend

_scoped: ContextVar[Backend | None] = ContextVar("bosquet_backend", default=None)
_default: Backend | None = None


def set_backend(backend: Backend | None) -> None:
    """The backend of this process's programs, unless `use(...)` or `backend=` says otherwise. None takes it back."""
    global _default
    _default = None if backend is None else checked_backend("set_backend", backend)


@contextmanager
def use(backend: Backend) -> Iterator[None]:
    """`with use(backend):` programs started inside run on it, in this thread or task and in those it starts."""
    token = _scoped.set(checked_backend("use", backend))
    try:
        yield
    finally:
        _scoped.reset(token)


def resolve(backend: Backend | None) -> Backend:
    """`backend`, else that of the nearest `use`, else the default. Raises `ConfigError` when there is none."""
    for chosen in (backend, _scoped.get(), _default):
        if chosen is not None:
            return chosen
    raise ConfigError(
        "no backend to run on: pass backend=..., or call bosquet.set_backend(...) once, "
        "or write `with bosquet.use(...):` around the call"
    )
