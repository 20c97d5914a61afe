"""The contract of grammar-constrained decoding: pure state machines over token ids.

Knows nothing of requests, the cache or the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..types import Relaxed

MaskRow = npt.NDArray[np.int32]
"""ceil(V / 32) words; bit v % 32 of word v // 32 says whether token v may come next. V is the head's full width."""


class Matcher(Protocol):
    """The state of one constrained output. Ids may be anything: out-of-range ids are refused, never an error."""

    @property
    def completed(self) -> bool:
        """The text so far is a whole sentence of the grammar (it may go on, if the grammar allows)."""

    @property
    def terminated(self) -> bool:
        """An end token was accepted; nothing may follow, and `fill_mask` must not be called."""

    def try_accept(self, ids: Sequence[int]) -> int:
        """Accept ids in order up to the first that does not fit; returns how many were accepted."""

    def fill_mask(self, row: MaskRow) -> None:
        """Overwrite all of `row`. A bit is set if and only if `try_accept([v])` would return 1."""

    def rollback(self, n: int) -> None:
        """Undo the last n accepted ids (n at most the number accepted)."""

    def fork(self) -> Matcher:
        """An independent copy."""

    def forced_tokens(self) -> list[int]:
        """Ids that the grammar leaves no choice about, from here on; empty when it does."""

    def forced_text(self) -> str:
        """Text that the grammar leaves no choice about, from here on, as far as its engine can tell. Which tokens it is
        written with may be open, and it may end inside one."""


class Compiled(Protocol):
    """A grammar ready for a vocabulary; shared by requests, immutable."""

    size_bytes: int

    @property
    def relaxed(self) -> tuple[Relaxed, ...]:
        """What of the schema the output is not held to."""

    def matcher(self) -> Matcher:
        """A fresh state at the start of the grammar."""
