"""The one file that reads environment variables. Knows what they are called, not what is done with them.

Third-party libraries read their own (Hugging Face's hub client reads HF_ENDPOINT, HF_HOME and HF_TOKEN).
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "BOSQUET_CACHE"


def for_compute() -> dict[str, str]:
    """The environment of a process that computes. Threads that wait for work sleep rather than spin: on a machine
    where cores are shared with an API process, a spinning thread takes the time of the one it waits for."""
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}


def cache_dir() -> Path:
    """Where converted weights are kept: BOSQUET_CACHE, or ~/.cache/bosquet."""
    value = os.environ.get(CACHE)
    return Path(value).expanduser() if value else Path.home() / ".cache" / "bosquet"
