"""Arrays of the host as tensors on a device, without waiting for what the device is doing. Knows nothing of either's
contents."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def upload(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The values on `device`; on the processor, the array itself. The copy is queued behind what is under way there,
    and reads pinned memory, which torch hands out again only when the copy is done."""
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)
