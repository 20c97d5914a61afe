"""Names of back ends and how to load them. Knows nothing of what they compute.

A back end's module is imported when it is asked for, so an optional one costs nothing and may need libraries that are
not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..errors import ConfigError
from .cpu.library import usable
from .cpu.linear import Storage
from .table import Ops

Kernels = Literal["native", "reference"]


def known_ops() -> tuple[Kernels, ...]:
    """The names that `load_ops` takes on this machine, the best first."""
    return ("native", "reference") if usable() else ("reference",)


def load_ops(name: str, *, threads: int = 0, storage: Storage = "stored", cpus: Sequence[int] = ()) -> Ops:
    """A fresh table of operations. Each has workspace of its own, so one serves one caller at a time.

    `threads` (0: one a processor), `storage` (what matrices are kept in) and `cpus` (processors that threads are pinned
    to; none: not pinned) are for native kernels; the torch operations follow torch's own number of threads and the type
    of the tensors. Raises `ConfigError` for a name that is
    not known, or not here.
    """
    if name == "reference":
        from .reference.ops import ReferenceOps

        return ReferenceOps()
    if name == "native":
        from .cpu.ops import CpuOps

        return CpuOps(threads, storage, cpus=cpus)
    raise ConfigError(f"no kernels named {name!r}; known: {', '.join(known_ops())}")
