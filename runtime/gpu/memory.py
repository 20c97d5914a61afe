"""How many pages fit on a device. Pure numbers."""

from __future__ import annotations

from ...errors import ConfigError

SHARE = 0.92
"""Of the memory that is free before the cache is made, what may be used: libraries and fragments take the rest."""


def tokens_that_fit(free: int, peak: int, graphs: int, bytes_per_token: int) -> int:
    """Tokens of cache beside a pass that needs `peak` bytes and recordings that may take `graphs`. Raises `ConfigError`
    where there is room for none."""
    room = int(free * SHARE) - peak - graphs
    if room < bytes_per_token:
        raise ConfigError(
            f"the device has too little memory: {_mb(free)} are free beside the weights; a pass takes {_mb(peak)}, "
            f"recordings {_mb(graphs)}. A smaller step_tokens or max_running, or weights in int8 or int4, need less"
        )
    return room // bytes_per_token


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
