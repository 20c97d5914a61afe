"""The engines of one vocabulary, and of what becomes of it when a spec declares special tokens.

An engine is made when the first spec needs it: each takes a tenth of a second and tens of megabytes.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from threading import RLock

from ..errors import GrammarInvalid
from .llguidance_engine import LlguidanceEngine
from .outlines_engine import OutlinesEngine
from .vocabulary import Vocabulary
from .xgrammar_engine import XgrammarEngine

_MAX_KEPT = 4
"""Sets of declared special tokens whose engines are kept."""


class Engines:
    """All engines over one vocabulary. Calls may come from several threads."""

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        self.vocabulary = vocabulary
        self._threads = threads
        self._lock = RLock()

    def common(self) -> tuple[XgrammarEngine, LlguidanceEngine]:
        """Those that most specs need; made by this call, so that the first spec need not wait for them."""
        return self.xgrammar, self.llguidance

    @property
    def xgrammar(self) -> XgrammarEngine:
        with self._lock:
            return self._xgrammar

    @property
    def llguidance(self) -> LlguidanceEngine:
        with self._lock:
            return self._llguidance

    @property
    def outlines(self) -> OutlinesEngine:
        with self._lock:
            return self._outlines

    @cached_property
    def _xgrammar(self) -> XgrammarEngine:
        return XgrammarEngine(self.vocabulary, threads=self._threads)

    @cached_property
    def _llguidance(self) -> LlguidanceEngine:
        return LlguidanceEngine(self.vocabulary)

    @cached_property
    def _outlines(self) -> OutlinesEngine:
        return OutlinesEngine(self.vocabulary)


class EnginesBySpecials:
    """Engines for each set of declared special tokens; the least recently used go first."""

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        self._plain = Engines(vocabulary, threads)
        self._threads = threads
        self._lock = RLock()
        self._kept: OrderedDict[frozenset[int], Engines] = OrderedDict()

    def get(self, specials: frozenset[int]) -> Engines:
        """Raises `GrammarInvalid` for ids that are no special tokens with a text."""
        if not specials:
            return self._plain
        with self._lock:
            found = self._kept.get(specials)
            if found is None:
                try:
                    found = Engines(self._plain.vocabulary.with_specials(specials), self._threads)
                except ValueError as error:
                    raise GrammarInvalid(f"specials: {error}") from None
                self._kept[specials] = found
                if len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(specials)
            return found
