"""What a draft model has read of one sequence. Knows its page table, and no tensors."""

from __future__ import annotations

from .page_table import PageTable


class Reading:
    """Of one sequence: the first `read` positions of `table` are read, and after them the tokens `ahead`, which may
    turn out wrong."""

    __slots__ = ("ahead", "read", "table")

    def __init__(self, table: PageTable, read: int) -> None:
        self.table = table
        self.read = read
        self.ahead: list[int] = []
