"""A JSON schema compiled by the engine that it is routed to, or by the other one if that engine does not take it.

The linter lets through only what engines enforce; what an engine refuses all the same (a limit of its own, no text in
this vocabulary) is told in the schema's words: which keywords it is that the engine does not take.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..errors import GrammarInvalid
from .engines import Engines
from .lint import EngineName, Linted
from .matcher import TextCompiled
from .routes import route_schema
from .schema_conflict import refuse_for

_MAX_REASON = 160  # characters of an engine's own words
_OTHER: dict[EngineName, EngineName] = {"xgrammar": "llguidance", "llguidance": "xgrammar"}


def compile_schema(text: str, engines: Engines, *, strict: bool, max_depth: int) -> TextCompiled:
    """Raises `GrammarInvalid`, whose message holds JSON path and keyword."""
    linted = route_schema(text, strict=strict, max_depth=max_depth)
    try:
        return _compiled(linted, engines)
    except GrammarInvalid as error:
        refused = str(error).removeprefix("schema: ")
    try:
        other = route_schema(text, strict=strict, max_depth=max_depth, engines=(_OTHER[linted.engine],))
        return _compiled(other, engines)
    except GrammarInvalid:
        pass

    def at_fault(root: Any) -> bool:
        try:
            part = route_schema(json.dumps(root), strict=strict, max_depth=max_depth, engines=(linted.engine,))
        except GrammarInvalid:
            return False
        try:
            _compiled(part, engines)
        except GrammarInvalid:
            return True
        return False

    refuse_for(json.loads(text), at_fault, f"is more than an engine takes [{refused[:_MAX_REASON]}]")


def _compiled(linted: Linted, engines: Engines) -> TextCompiled:
    engine = engines.xgrammar if linted.engine == "xgrammar" else engines.llguidance
    compiled = engine.json_schema(linted.schema)
    if not has_text(compiled, engines):
        raise GrammarInvalid("no token may come first")
    return compiled.with_relaxed(linted.relaxed)


def has_text(compiled: TextCompiled, engines: Engines) -> bool:
    """Whether any token may come first; the mask is the first of every output."""
    row = np.zeros(engines.vocabulary.mask_words, dtype=np.int32)
    compiled.first_mask(row)
    return bool(row.any())
