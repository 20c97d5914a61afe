"""Compiles specs, once each: a cache bounded by size, and one compile for all who ask for the same thing at once.

Knows nothing of requests. What goes to which engine is said in `routes`.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from ..errors import GrammarInvalid
from ..types import GrammarSpec, Relaxed
from .after_marker import AfterMarker, Marker
from .base import Compiled
from .engines import Engines, EnginesBySpecials
from .format_lark import as_lark
from .formats import check_format, parts
from .lark import checked_lark
from .lint import lint
from .llguidance_engine import json_rule
from .matcher import TextCompiled
from .regex import Regex
from .routes import route_format, route_regex, written
from .schema_compile import compile_schema, has_text
from .vocabulary import Vocabulary

_MAX_FAILURES, _FAILURE_S = 256, 60.0
"""Refusals that are remembered, and for how long: the same bad schema is often sent again at once."""

MAX_MARKER = 64
"""Tokens of a marker after which a grammar holds."""


class Key(NamedTuple):
    """All of a spec that what is compiled depends on."""

    kind: str
    value: str
    strict: bool
    specials: frozenset[int]


class GrammarCompiler:
    """Grammars for one vocabulary. All methods may be called from several threads.

    Making one takes about half a second for a vocabulary of 50,000: the engines that most specs need are made at once.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vocabulary = vocabulary
        self._engines = EnginesBySpecials(vocabulary, threads)
        self._engines.get(frozenset()).common()
        self._cache_bytes = cache_bytes
        self._max_spec_bytes = max_spec_bytes
        self._max_depth = max_depth
        self._clock = clock
        self._lock = Lock()
        self._kept: OrderedDict[Key, Compiled] = OrderedDict()
        self._kept_bytes = 0
        self._failures: OrderedDict[Key, tuple[float, str]] = OrderedDict()
        self._running: dict[Key, Future[Compiled]] = {}

    @property
    def cached_bytes(self) -> int:
        """Size of what is kept, as the engines report it."""
        return self._kept_bytes

    def compile(self, spec: GrammarSpec) -> Compiled:
        """Blocks until it is done. Raises `GrammarInvalid`, whose `field` is that of the OpenAI request."""
        marker = self._marker(spec)
        compiled = self._shared(spec)
        return compiled if marker is None else AfterMarker(marker, compiled)

    def find(self, spec: GrammarSpec) -> Compiled | None:
        """What `compile` would give, if it is there already. Raises `GrammarInvalid`."""
        key = _key(spec)
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
        marker = self._marker(spec)
        return found if marker is None else AfterMarker(marker, found)

    def _marker(self, spec: GrammarSpec) -> Marker | None:
        if not spec.after:
            return None
        if len(spec.after) > MAX_MARKER:
            raise GrammarInvalid(f"after: {len(spec.after)} tokens, the limit is {MAX_MARKER}")
        try:
            return Marker(spec.after, self._vocabulary)
        except ValueError as error:
            raise GrammarInvalid(f"after: {error}") from None

    # ---- one compile for all, and what is kept of it -----------------------------------------------------------------

    def _shared(self, spec: GrammarSpec) -> Compiled:
        key = _key(spec)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
            self._raise_known_failure(key)
            running = self._running.get(key)
            if running is None:
                mine: Future[Compiled] = Future()
                self._running[key] = mine
        if running is not None:
            return running.result()
        return self._run(key, mine)

    def _run(self, key: Key, mine: Future[Compiled]) -> Compiled:
        try:
            compiled = self._compile(key)
        except BaseException as error:
            with self._lock:
                del self._running[key]
                if isinstance(error, GrammarInvalid):
                    self._remember_failure(key, str(error))
            mine.set_exception(error)
            raise
        with self._lock:
            del self._running[key]
            self._keep(key, compiled)
        mine.set_result(compiled)
        return compiled

    def _keep(self, key: Key, compiled: Compiled) -> None:
        size = compiled.size_bytes + len(key.value)
        if size > self._cache_bytes:
            return
        self._kept[key] = compiled
        self._kept_bytes += size
        while self._kept_bytes > self._cache_bytes:
            old, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size_bytes + len(old.value)

    def _raise_known_failure(self, key: Key) -> None:
        failure = self._failures.get(key)
        if failure is not None and self._clock() - failure[0] < _FAILURE_S:
            raise GrammarInvalid(failure[1])

    def _remember_failure(self, key: Key, message: str) -> None:
        if len(key.value) <= self._cache_bytes // _MAX_FAILURES:
            self._failures[key] = (self._clock(), message)
            self._failures.move_to_end(key)
            if len(self._failures) > _MAX_FAILURES:
                self._failures.popitem(last=False)

    # ---- by kind -----------------------------------------------------------------------------------------------------

    def _compile(self, key: Key) -> Compiled:
        size = len(key.value.encode("utf-8", "surrogatepass"))
        if size > self._max_spec_bytes:
            raise GrammarInvalid(f"{key.kind}: {size} bytes, the limit is {self._max_spec_bytes}")
        if any("\ud800" <= char <= "\udfff" for char in key.value):
            raise GrammarInvalid(f"{key.kind}: half of a surrogate pair cannot be written")
        engines = self._engines.get(key.specials)
        if key.kind == "json_schema":
            return self._schema(key.value, key.strict, engines)
        compiled = self._by_kind(key, engines)
        if not has_text(compiled, engines):
            raise GrammarInvalid(f"{key.kind}: no text of this vocabulary fits it")
        return compiled

    def _schema(self, text: str, strict: bool, engines: Engines) -> TextCompiled:
        return compile_schema(text, engines, strict=strict, max_depth=self._max_depth)

    def _by_kind(self, key: Key, engines: Engines) -> TextCompiled:
        if key.kind == "json_object":
            return engines.xgrammar.json_schema('{"type": "object"}')
        if key.kind == "regex":
            text = written(key.value, "regex")
            route = route_regex(Regex.whole(key.value), engines.vocabulary)
            return (engines.outlines if route == "outlines" else engines.llguidance).regex(text)
        if key.kind == "choice":
            return engines.xgrammar.choice(_choices(key.value))
        if key.kind == "ebnf":
            return engines.xgrammar.ebnf(key.value)
        if key.kind == "lark":
            return self._lark(key, engines)
        return self._structural(key, engines)

    def _lark(self, key: Key, engines: Engines) -> TextCompiled:
        relaxed: list[Relaxed] = []
        schemas: list[tuple[str, str]] = []

        def rule(schema: str, place: str) -> str:
            try:
                linted = lint(schema, strict=key.strict, max_depth=self._max_depth, engines=("llguidance",))
            except GrammarInvalid as error:
                raise GrammarInvalid(f"lark: {place}: {error}") from None
            relaxed.extend(Relaxed(f"{place}{item.path}", item.keyword, item.reason) for item in linted.relaxed)
            schemas.append((f"lark: {place}", schema))
            return json_rule(json.loads(linted.schema))

        text = checked_lark(key.value, rule)
        with self._explained(schemas, key.strict, engines):
            return engines.llguidance.lark(text).with_relaxed(tuple(relaxed))

    def _structural(self, key: Key, engines: Engines) -> TextCompiled:
        routed = route_format(key.value, strict=key.strict, max_depth=self._max_depth)
        schemas = [
            (f"format: {path}/json_schema", json.dumps(node["json_schema"]))
            for path, node in parts(check_format(key.value))
            if node["type"] == "json_schema"
        ]
        with self._explained(schemas, key.strict, engines):
            if routed.engine == "xgrammar":
                compiled = engines.xgrammar.structural(routed.format)
            else:
                compiled = engines.llguidance.lark(as_lark(routed.format), "structural_tag")
        return compiled.with_relaxed(routed.relaxed)

    @contextmanager
    def _explained(self, schemas: list[tuple[str, str]], strict: bool, engines: Engines) -> Iterator[None]:
        """A refusal of an engine in the words of the schema that it comes from, if it comes from one of `schemas`:
        (its place, its text)."""
        try:
            yield
        except GrammarInvalid:
            for place, schema in schemas:
                try:
                    self._schema(schema, strict, engines)
                except GrammarInvalid as error:
                    raise GrammarInvalid(f"{place}: {error}") from None
            raise


def _key(spec: GrammarSpec) -> Key:
    return Key(spec.kind, spec.value, spec.strict, frozenset(spec.specials))


def _choices(value: str) -> list[str]:
    """A JSON list of strings, each once."""
    try:
        choices = json.loads(value)
    except (ValueError, RecursionError):
        raise GrammarInvalid("choice: not valid JSON") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarInvalid("choice: a list of at least one string is needed")
    for choice in choices:
        if choice == "" or any(0xD800 <= ord(char) <= 0xDFFF for char in choice):
            raise GrammarInvalid("choice: empty strings and halves of surrogate pairs cannot be chosen")
    return list(dict.fromkeys(choices))
