"""One server on the embedded model for all tests of this folder that talk to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_engine import Served, serving


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with serving("--cache-tokens", "16384") as server:
        yield server
