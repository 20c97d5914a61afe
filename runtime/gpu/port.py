"""What the runner asks of a device. Knows nothing of passes.

Work is queued on one stream and done in that order; a call returns before it is done. The host learns results only
through a `Download`, and may change an array as soon as `upload` or `fill` has taken it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]


class Download(Protocol):
    """A tensor on its way to the host."""

    def wait(self) -> Array:
        """The values, once everything that was queued before the download is done."""


class Graph(Protocol):
    """Work that was recorded: `replay` queues it again, on what its inputs hold then, and its `output` changes."""

    output: Tensor

    def replay(self) -> None: ...


class Port(Protocol):
    """One device and its stream."""

    device: torch.device

    def upload(self, array: Array) -> Tensor:
        """A tensor on the device with these values."""

    def fill(self, target: Tensor, array: Array) -> None:
        """Put these values into a tensor on the device, of the same size and type."""

    def download(self, tensor: Tensor) -> Download:
        """Start to bring over what the tensor holds when all that is queued by now is done."""

    def capture(self, work: Callable[[], Tensor]) -> Graph:
        """Record what `work` queues. Its inputs are tensors that stay where they are. It runs once or more then."""

    def free_bytes(self) -> int:
        """Memory that can still be given out."""

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """How much more memory `work` had at its peak than before; what it returned is dropped."""

    def reclaim(self) -> None:
        """Give back memory that is kept for later use."""


class CudaPort:
    """A GPU, through torch. Host memory that copies read comes from torch's pinned allocator, which hands a block out
    again only when the copies that read it are done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    def upload(self, array: Array) -> Tensor:
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def fill(self, target: Tensor, array: Array) -> None:
        target.copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)

    def download(self, tensor: Tensor) -> Download:
        return _CudaDownload(tensor)

    def capture(self, work: Callable[[], Tensor]) -> Graph:
        beside: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(beside):  # kernels are compiled and libraries set up outside of the recording
            work()
        torch.cuda.current_stream(self.device).wait_stream(beside)
        graph = _CudaGraph()
        with torch.cuda.graph(graph.recorded, pool=self._pool):
            graph.output = work()
        self._pool = graph.recorded.pool()  # graphs never run at once, so they share their memory
        return graph

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])

    def peak_bytes(self, work: Callable[[], object]) -> int:
        torch.cuda.synchronize(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.max_memory_allocated(self.device) - before)

    def reclaim(self) -> None:
        torch.cuda.empty_cache()


class _CudaDownload:
    def __init__(self, tensor: Tensor) -> None:
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Array:
        self._done.synchronize()
        return self._host.numpy()


class _CudaGraph:
    output: Tensor

    def __init__(self) -> None:
        self.recorded = torch.cuda.CUDAGraph()

    def replay(self) -> None:
        self.recorded.replay()


class HostPort:
    """The processor itself, for kernels in Triton's interpreter: everything is done at once. For tests."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def upload(self, array: Array) -> Tensor:
        return torch.from_numpy(array.copy())

    def fill(self, target: Tensor, array: Array) -> None:
        target.copy_(torch.from_numpy(array))

    def download(self, tensor: Tensor) -> Download:
        return _HostDownload(tensor.numpy().copy())

    def capture(self, work: Callable[[], Tensor]) -> Graph:
        return _HostGraph(work)

    def free_bytes(self) -> int:
        return 1 << 30

    def peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        return 0

    def reclaim(self) -> None:
        """Nothing is kept."""


class _HostDownload:
    def __init__(self, values: Array) -> None:
        self._values = values

    def wait(self) -> Array:
        return self._values


class _HostGraph:
    def __init__(self, work: Callable[[], Tensor]) -> None:
        self._work = work
        self.output = work().clone()

    def replay(self) -> None:
        self.output.copy_(self._work())
