"""Compiles specs, once each: a cache bounded by size, and one compile for all who ask for the same thing at once.

Knows nothing of requests. The engine behind it is `xgrammar_engine`.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock

from ..errors import GrammarInvalid
from ..types import GrammarSpec
from .base import Compiled
from .vocabulary import Vocabulary
from .xgrammar_engine import XgrammarEngine


class GrammarCompiler:
    """Grammars for one vocabulary. All methods may be called from several threads.

    `cache_bytes` bounds what is kept (a grammar larger than that is not kept at all); `max_spec_bytes` and `max_depth`
    bound what a spec may be; `threads` is how many xgrammar uses for one compile.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        cache_bytes: int = 64 << 20,
        max_spec_bytes: int = 256 << 10,
        max_depth: int = 64,
        threads: int = 1,
    ) -> None:
        self._engine = XgrammarEngine(vocabulary, threads=threads, max_depth=max_depth)
        self._cache_bytes = cache_bytes
        self._max_spec_bytes = max_spec_bytes
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, str], Compiled] = OrderedDict()
        self._kept_bytes = 0
        self._running: dict[tuple[str, str], Future[Compiled]] = {}

    @property
    def cached_bytes(self) -> int:
        """Size of what is kept, as the engine reports it."""
        return self._kept_bytes

    def compile(self, spec: GrammarSpec) -> Compiled:
        """Blocks until it is done. Raises `GrammarInvalid`, whose `field` is that of the OpenAI request."""
        size = len(spec.value.encode("utf-8", "surrogatepass"))
        if size > self._max_spec_bytes:
            message = f"{spec.kind}: {size} bytes, the limit is {self._max_spec_bytes}"
            raise GrammarInvalid(message)
        key = (spec.kind, spec.value)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
            running = self._running.get(key)
            if running is None:
                mine: Future[Compiled] = Future()
                self._running[key] = mine
        if running is not None:
            return running.result()
        return self._run(key, spec, mine)

    def _run(self, key: tuple[str, str], spec: GrammarSpec, mine: Future[Compiled]) -> Compiled:
        try:
            compiled = self._engine.compile(spec)
        except BaseException as error:
            with self._lock:
                del self._running[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._running[key]
            self._keep(key, compiled)
        mine.set_result(compiled)
        return compiled

    def _keep(self, key: tuple[str, str], compiled: Compiled) -> None:
        if compiled.size_bytes > self._cache_bytes:
            return
        self._kept[key] = compiled
        self._kept_bytes += compiled.size_bytes
        while self._kept_bytes > self._cache_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size_bytes
