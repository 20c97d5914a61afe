"""Block sizes of each kernel, by architecture. Data: another GPU needs another column here, and nothing else.

"any" is a safe default, small enough for the shared memory of every GPU since compute capability 8.0, and for the
interpreter. An architecture that lists a kernel replaces its default.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """What a program computes at once: `m` rows, `n` columns or keys, `k` of the reduced axis; and how it runs."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 2


TILES: dict[str, dict[str, Tile]] = {
    # kernel: {architecture: tile}
    "write_kv": {"any": Tile(1, 1, 1, warps=1)},
    "rotary": {"any": Tile(1, 1, 1, warps=1)},
    # m queries (of heads that share a key head: tokens times heads), n keys; by the bytes of a head, up to so many.
    # A page's number is loaded before its keys are, so five stages make two buffers of keys and values.
    "attend_short_256": {"any": Tile(16, 32, 1, stages=5), "sm90": Tile(16, 64, 1, stages=5)},
    "attend_short_512": {"any": Tile(16, 32, 1, stages=3), "sm90": Tile(16, 32, 1, stages=5)},
    "attend_short_1024": {"any": Tile(16, 16, 1)},
    "attend_long_256": {"any": Tile(64, 64, 1, stages=3), "sm90": Tile(128, 64, 1, warps=8, stages=5)},
    "attend_long_512": {"any": Tile(64, 32, 1), "sm90": Tile(128, 64, 1, warps=8, stages=3)},
    "attend_long_1024": {"any": Tile(32, 16, 1, warps=8)},
    "attend_merge": {"any": Tile(1, 1, 1)},
    # n: numbers of a program, one row or several.
    "norm": {"any": Tile(1, 2048, 1), "sm90": Tile(1, 4096, 1, warps=8)},
    "gate": {"any": Tile(1, 1024, 1), "sm90": Tile(1, 2048, 1, warps=8)},
    "mask": {"any": Tile(1, 4096, 1)},
    # m draws of a program, n tokens at once, in chunks of k. More than one draw is for the interpreter.
    "survey": {"any": Tile(1, 4096, 128, warps=8)},
    "choose": {"any": Tile(1, 4096, 128, warps=8), "sm90": Tile(1, 4096, 128, warps=16)},
    "settle": {"any": Tile(1, 4096, 128, warps=8)},
    "accept": {"any": Tile(16, 1, 1)},  # m windows
    "uniforms": {"any": Tile(128, 1, 1)},
    # Linear layers: m tokens by n outs; k is of plain weights, quantized ones have a step of their own.
    "linear_few": {"any": Tile(16, 64, 128, stages=3), "sm90": Tile(16, 64, 128, stages=5)},
    "linear_some": {"any": Tile(64, 64, 64, stages=2), "sm90": Tile(64, 64, 128, stages=4)},
    "linear_many": {"any": Tile(64, 128, 64, stages=2), "sm90": Tile(128, 128, 64, warps=8, stages=4)},
    # Experts: rows of one expert, and outs.
    "experts_few": {"any": Tile(16, 64, 128, stages=3), "sm90": Tile(16, 64, 128, stages=4)},
    "experts_many": {"any": Tile(64, 64, 64, stages=2), "sm90": Tile(128, 128, 64, warps=8, stages=3)},
}


@cache
def architecture(device: torch.device) -> str:
    """ "sm90" of an H100 or H200; "any" in the interpreter."""
    if device.type != "cuda":
        return "any"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


def tile(kernel: str, device: torch.device) -> Tile:
    """The tile of a kernel on a device."""
    by_architecture = TILES[kernel]
    return by_architecture.get(architecture(device), by_architecture["any"])
