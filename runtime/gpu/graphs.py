"""Recorded passes, by shape. Knows nothing of what a pass computes.

A shape is recorded when it is first needed, as long as the memory that recordings took is within bounds; after that a
pass runs in the next larger shape there is, or unrecorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .buckets import Bucket, nearest
from .port import Graph, Port


class Recording(NamedTuple):
    """`inputs` is the array that a pass is filled into before `graph` is replayed."""

    bucket: Bucket
    inputs: Tensor
    graph: Graph


class Graphs:
    """`make_inputs` gives an array for a shape, filled for a pass without rows; `compute` queues a pass on one."""

    def __init__(
        self,
        port: Port,
        most_bytes: int,
        make_inputs: Callable[[Bucket], Tensor],
        compute: Callable[[Bucket, Tensor], Tensor],
    ) -> None:
        self._port = port
        self._most = most_bytes
        self._make_inputs = make_inputs
        self._compute = compute
        self._held: dict[Bucket, Recording] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def find(self, wanted: Bucket) -> Recording | None:
        """What can run a pass of this shape; None: it has to run unrecorded."""
        found = self._held.get(wanted)
        if found is None and self.bytes < self._most:
            found = self._held[wanted] = self._record(wanted)
        if found is None:
            larger = nearest(wanted, self._held)
            found = self._held[larger] if larger is not None else None
        return found

    def _record(self, bucket: Bucket) -> Recording:
        before = self._port.free_bytes()
        inputs = self._make_inputs(bucket)
        graph = self._port.capture(lambda: self._compute(bucket, inputs))
        self.bytes += max(0, before - self._port.free_bytes())
        return Recording(bucket, inputs, graph)
