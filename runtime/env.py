"""The one file that reads environment variables. Knows what they are called, not what is done with them.

Third-party libraries read their own (Hugging Face's hub client reads HF_ENDPOINT, HF_HOME and HF_TOKEN).
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "BOSQUET_CACHE"


def for_compute() -> dict[str, str]:
    """The environment of a process that computes. OpenMP's threads wait between two parallel regions by spinning for
    some 50 µs, which bridges the gaps of a pass, and then sleep: spinning on would take the core of whom they wait for.
    """
    return {"GOMP_SPINCOUNT": "50000", **os.environ}


def for_workers() -> None:
    """Before Python itself starts processes: they must not look for modules in the folder that they are started in,
    where `types.py` may be ours."""
    os.environ.setdefault("PYTHONSAFEPATH", "1")


def cache_dir() -> Path:
    """Where converted weights are kept: BOSQUET_CACHE, or ~/.cache/bosquet."""
    value = os.environ.get(CACHE)
    return Path(value).expanduser() if value else Path.home() / ".cache" / "bosquet"
