"""Names of back ends and how to load them. Knows nothing of what they compute.

A back end's module is imported when it is asked for, so an optional one costs nothing and may need libraries that are
not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from ..errors import ConfigError
from .cpu.library import usable
from .table import Ops

Kernels = Literal["native", "reference", "triton"]

Storage = Literal["stored", "float32", "bfloat16", "int8", "int4", "fp8"]
"""What matrices are kept in; "stored": as a file has them."""


def known_ops() -> tuple[Kernels, ...]:
    """Of a processor: the names that `load_ops` takes on this machine, the best first."""
    return ("native", "reference") if usable() else ("reference",)


def interpreted() -> bool:
    """Triton's kernels run in its interpreter, on a processor: far too slow for anything but their tests."""
    import triton  # takes half a second

    return bool(triton.knobs.runtime.interpret)


def load_ops(
    name: str,
    *,
    threads: int = 0,
    storage: Storage = "stored",
    cpus: Sequence[int] = (),
    device: torch.device | None = None,
    invariant: bool = False,
) -> Ops:
    """A fresh table of operations. Each has workspace of its own, so one serves one caller at a time.

    `threads` (0: one a processor), `storage` (what matrices are kept in) and `cpus` (processors that threads are pinned
    to; none: not pinned) are for native kernels; the torch operations follow torch's own number of threads and the type
    of the tensors. `device` and `invariant` (a row's bits do not depend on other rows) are for Triton's. Raises
    `ConfigError` for a name that is not known, or not here.
    """
    if name == "reference":
        from .reference.ops import ReferenceOps

        return ReferenceOps()
    if name == "native":
        from .cpu.ops import CpuOps

        assert storage != "fp8", "a processor's kernels keep no fp8"
        return CpuOps(threads, storage, cpus=cpus)
    if name == "triton":
        from .triton.ops import TritonOps

        return TritonOps(device or torch.device("cpu"), storage, invariant=invariant)
    raise ConfigError(f"no kernels named {name!r}; known: {', '.join(known_ops())}")
