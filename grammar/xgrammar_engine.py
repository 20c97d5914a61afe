"""xgrammar: JSON schemas, choices, EBNF and structural formats.

What it takes wrongly or drops is kept from it: keywords of schemas by the linter, ids and end tokens by `matcher`. One
thing is put right here: in strings of bounded length its grammars let raw control characters through.
"""

from __future__ import annotations

import json
import re
from typing import Any

import xgrammar

from ..errors import GrammarInvalid
from .base import MaskRow
from .formats import Format
from .matcher import TextCompiled
from .vocabulary import Alphabet, Vocabulary

MAX_WHITESPACE = 1
"""White space characters that may stand between two parts of a JSON text, see docs/decisions/0006."""

_BOUNDED_STRING = re.compile(r'^(\w+ ::= \(\(\[\^)(\\"\\\\\\r\\n\]\)\))$', re.MULTILINE)
_WITHOUT_CONTROLS = r"\1\\0-\\x1f\2"


class XgrammarEngine:
    """Compiles for one vocabulary. Calls may come from several threads. What it is given has been linted."""

    def __init__(self, vocabulary: Vocabulary, *, threads: int = 1) -> None:
        self.vocabulary = vocabulary
        info = xgrammar.TokenizerInfo(
            list(vocabulary.text_bytes),
            xgrammar.VocabType.RAW,
            stop_token_ids=list(vocabulary.end_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=threads, cache_enabled=False)

    def json_schema(self, schema: str) -> TextCompiled:
        """A linted schema as JSON text."""
        try:
            grammar = xgrammar.Grammar.from_json_schema(schema, strict_mode=True, max_whitespace_cnt=MAX_WHITESPACE)
            return self._compiled(self._put_right(grammar), self.vocabulary.json)
        except RuntimeError as error:
            raise refused("schema", error) from None

    def regex(self, pattern: str) -> TextCompiled:
        """A regular expression as `Regex.write` writes it."""
        try:
            return self._compiled(xgrammar.Grammar.from_regex(pattern), self.vocabulary.text)
        except RuntimeError as error:
            raise refused("regex", error) from None

    def choice(self, choices: list[str]) -> TextCompiled:
        """One of several texts, none of them empty."""
        return self.ebnf("root ::= " + " | ".join('"' + "".join(map(_quoted, choice)) + '"' for choice in choices))

    def ebnf(self, text: str) -> TextCompiled:
        """A grammar in xgrammar's EBNF, whose start is `root`."""
        try:
            return self._compiled(xgrammar.Grammar.from_ebnf(text), self.vocabulary.text)
        except RuntimeError as error:
            raise refused("ebnf", error) from None

    def structural(self, node: Format) -> TextCompiled:
        """A checked format whose schemas are linted and whose patterns are as `Regex.write` writes them."""
        tag = {"type": "structural_tag", "format": _as_structural_tag(node)}
        try:
            grammar = xgrammar.Grammar.from_structural_tag(json.dumps(tag))
            return self._compiled(self._put_right(grammar), self.vocabulary.text)
        except RuntimeError as error:
            raise refused("structural_tag", error) from None

    def _put_right(self, grammar: xgrammar.Grammar) -> xgrammar.Grammar:
        """Without raw control characters in JSON strings of bounded length."""
        text, found = _BOUNDED_STRING.subn(_WITHOUT_CONTROLS, str(grammar))
        return xgrammar.Grammar.from_ebnf(text) if found else grammar

    def _compiled(self, grammar: xgrammar.Grammar, alphabet: Alphabet) -> TextCompiled:
        compiled = self._compiler.compile_grammar(grammar)
        return TextCompiled(XgrammarCore(xgrammar.GrammarMatcher(compiled)), alphabet, compiled.memory_size_bytes)


class XgrammarCore:
    """See `matcher.Core`."""

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    @property
    def completed(self) -> bool:
        return bool(self._matcher.is_completed())

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def fill(self, row: MaskRow) -> None:
        self._matcher.fill_next_token_bitmask(row)

    def forced_text(self) -> bytes:
        text: str = self._matcher.find_jump_forward_string()
        return text.encode()

    def rollback(self, n: int) -> None:
        self._matcher.rollback(n)

    def fork(self) -> XgrammarCore:
        return XgrammarCore(self._matcher.fork())


def refused(what: str, error: RuntimeError) -> GrammarInvalid:
    """xgrammar knows no other error than `RuntimeError` for what it is given; its time and source line are left out."""
    text = str(error).strip()
    text = text.split(": ", 1)[1] if text.startswith("[") and ": " in text else text
    return GrammarInvalid(f"{what}: {text[:300]}")


def _quoted(char: str) -> str:
    return char if char.isascii() and (char.isalnum() or char == " ") else f"\\U{ord(char):08x}"


def _as_structural_tag(node: Format) -> dict[str, Any]:
    """A format in xgrammar's own words."""
    done: dict[str, Any] = dict(node)
    if node["type"] == "json_schema":
        done["max_whitespace_cnt"] = MAX_WHITESPACE
    for name in ("elements", "tags"):
        if name in node:
            done[name] = [_as_structural_tag(inner) for inner in node[name]]
    if "content" in node:
        done["content"] = _as_structural_tag(node["content"])
    return done
