"""The structural formats of tools, compiled: what they let through."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import xgrammar as xgr
from grammar_vocabulary import fits, vocabulary

from bosquet.grammar.base import Compiled
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.types import GrammarSpec

_COMPILER = GrammarCompiler(vocabulary())


@cache
def _oracle(text: str) -> xgr.Grammar:
    return xgr.Grammar.from_structural_tag(json.dumps({"type": "structural_tag", "format": json.loads(text)}))


def compiled(form: dict[str, Any] | None) -> Compiled:
    """Through the linter to an engine, as the server has it done."""
    found = _COMPILER.compile(GrammarSpec("structural_tag", json.dumps(form), strict=True))
    assert found.relaxed == ()
    return found


def from_spec(spec: GrammarSpec) -> Compiled:
    """Any grammar."""
    return _COMPILER.compile(spec)


def accepts(form: dict[str, Any] | None, text: str) -> bool:
    """The verdict of the product; that of an engine which is handed the format as it is has to be the same."""
    verdict = fits(compiled(form).matcher(), text)
    assert bool(xgr.testing._is_grammar_accept_string(_oracle(json.dumps(form)), text)) == verdict
    return verdict
