"""The free pages.

Knows which pages are free and nothing else: not who holds the others, nor what a page contains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..errors import CacheCorrupt, OutOfPages


class PagePool:
    """Pages 0 … `pages` - 1, all free at first. Taking and giving cost O(1) a page.

    The page given last is taken first: its memory is the likeliest to be warm. `taken` is told of pages handed out.
    """

    __slots__ = ("_is_free", "_stack", "taken", "total")

    def __init__(self, pages: int) -> None:
        if pages < 0:
            raise ValueError(f"a pool cannot have {pages} pages")
        self.total = pages
        self.taken: Callable[[list[int]], None] | None = None
        self._stack = list(range(pages - 1, -1, -1))
        self._is_free = bytearray(b"\1") * pages

    @property
    def free(self) -> int:
        """Number of pages that `take` could hand out now."""
        return len(self._stack)

    def take(self, n: int) -> list[int]:
        """`n` pages, now the caller's. Raises `OutOfPages`, and takes nothing, if fewer are free."""
        if n < 0:
            raise ValueError(f"cannot take {n} pages")
        stack = self._stack
        if n > len(stack):
            raise OutOfPages(f"{n} pages wanted, {len(stack)} of {self.total} free")
        keep = len(stack) - n
        taken = stack[keep:]
        del stack[keep:]
        taken.reverse()
        for page in taken:
            self._is_free[page] = 0
        if self.taken is not None:
            self.taken(taken)
        return taken

    def give(self, pages: Collection[int]) -> None:
        """Make `pages` free. Raises `CacheCorrupt`, and frees nothing, if one is free already or unknown."""
        is_free = self._is_free
        for done, page in enumerate(pages):
            if not 0 <= page < self.total or is_free[page]:
                for given in list(pages)[:done]:
                    is_free[given] = 0
                state = "is free already" if 0 <= page < self.total else "does not exist"
                raise CacheCorrupt(f"page {page} of {self.total} was given back but {state}")
            is_free[page] = 1
        self._stack.extend(reversed(list(pages)))

    def free_pages(self) -> list[int]:
        """All free pages in rising order. For integrity checks: walks over all pages.

        Raises `CacheCorrupt` if the list and the flags disagree.
        """
        listed = sorted(self._stack)
        flagged = [page for page in range(self.total) if self._is_free[page]]
        if listed != flagged:
            raise CacheCorrupt(f"pool: {len(listed)} pages listed as free, {len(flagged)} flagged")
        return listed
