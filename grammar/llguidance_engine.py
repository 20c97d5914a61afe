"""llguidance: JSON schemas that it alone enforces or that are large, regular expressions, Lark, structural formats.

Its matchers never recover from an error, so they are only asked what cannot be one: single tokens of text, in range,
by the call that tries. A limit that it runs into (`LIMITS`) ends the output: nothing is allowed from there.
"""

from __future__ import annotations

import json
import re
from typing import Any

import llguidance

from ..errors import GrammarInvalid
from .base import MaskRow
from .matcher import TextCompiled
from .regex import literal
from .vocabulary import Alphabet, Vocabulary

WHITESPACE = {"whitespace_pattern": "[ \\n]"}
"""At most one white space character between two parts of a JSON text, see docs/decisions/0006; used where the linter
has put no options of its own into the schema."""

# No forcing: every way to cut a forced text into tokens is right, and the mask has a bit for each first token of one.
_OPTIONS = '%llguidance {"no_forcing": true}\n'

_LINE = re.compile(r"^(?:at )?(\d+)\((\d+)\)")

_BASE_BYTES = 200_000  # of a lexer and a parser at work; llguidance does not say
_BYTES_PER_BYTE = 40  # of the grammar's text


class _Tokens:
    """The vocabulary in the form that `LLTokenizer` reads. It is never asked to tokenize."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.end_ids[0]
        self.special_token_ids = [token for token, text in enumerate(vocabulary.text_bytes) if not text]
        # Names of special tokens, by which a Lark grammar could ask for one: none of them can be written there.
        self.tokens = [text or b"\n" for text in vocabulary.text_bytes]

    def __call__(self, text: str) -> list[int]:
        raise AssertionError("grammars are compiled without forcing")


class LlguidanceEngine:
    """Compiles for one vocabulary. Calls may come from several threads. What it is given has been linted."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokenizer = llguidance.LLTokenizer(
            _Tokens(vocabulary),  # type: ignore[arg-type]  # any object with these attributes will do
            n_vocab=vocabulary.head_width,
            eos_token=list(vocabulary.end_ids),
        )
        # `verbose_errors` would put the whole grammar into each message.
        self._limits = llguidance.LLParserLimits(verbose_errors=False)

    def json_schema(self, schema: str) -> TextCompiled:
        """A linted schema as JSON text."""
        return self._compiled("schema", f"start: {json_rule(json.loads(schema))}", self.vocabulary.json)

    def regex(self, pattern: str) -> TextCompiled:
        """A regular expression as `Regex.write` writes it."""
        return self._compiled("regex", f"start: {regex_terminal(pattern)}", self.vocabulary.text)

    def choice(self, choices: list[str]) -> TextCompiled:
        """One of several texts, none of them empty."""
        return self.regex("|".join(map(literal, choices)))

    def lark(self, text: str, what: str = "lark") -> TextCompiled:
        """A grammar in llguidance's Lark, whose start is `start`."""
        return self._compiled(what, text, self.vocabulary.text)

    def _compiled(self, what: str, grammar: str, alphabet: Alphabet) -> TextCompiled:
        matcher = llguidance.LLMatcher(self._tokenizer, _OPTIONS + grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarInvalid(f"{what}: {_reason(matcher.get_error())}")
        size = _BASE_BYTES + _BYTES_PER_BYTE * len(grammar)
        return TextCompiled(LlguidanceCore(matcher), alphabet, size)


class LlguidanceCore:
    """See `matcher.Core`."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    @property
    def completed(self) -> bool:
        return self._matcher.is_accepting()

    def accept(self, token: int) -> bool:
        return self._matcher.try_consume_tokens([token]) == 1

    def fill(self, row: MaskRow) -> None:
        if self._matcher.is_stopped():
            row.fill(0)
        else:
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def forced_text(self) -> bytes:
        return b"" if self._matcher.is_stopped() else bytes(self._matcher.compute_ff_bytes())

    def rollback(self, n: int) -> None:
        self._matcher.rollback(n)

    def fork(self) -> LlguidanceCore:
        return LlguidanceCore(self._matcher.deep_copy())


def json_rule(schema: Any) -> str:
    """A linted schema as a piece of a Lark rule."""
    node = schema if isinstance(schema, dict) else ({} if schema else {"not": {}})
    return f"%json {json.dumps({'x-guidance': WHITESPACE, **node}, ensure_ascii=False)}"


def regex_terminal(pattern: str) -> str:
    """A regular expression, as `Regex.write` writes it, as a piece of a Lark rule or terminal."""
    return f"/{pattern}/" if pattern not in ("", "(?:)") else '""'


def _reason(error: str) -> str:
    """The first line of the message; the others show the grammar. Its line numbers count ours, which is the first."""
    lines = error.strip().splitlines() or ["refused"]
    return _LINE.sub(lambda found: f"line {int(found[1]) - 1}, column {found[2]}", lines[0], count=1)[:300]
