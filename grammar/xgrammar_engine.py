"""xgrammar behind the contract of `base`.

What is kept away from xgrammar, because it would take it wrongly or warn on stderr: ids outside the vocabulary (those
from 2^32 wrap), special tokens and padding, bytes that are not UTF-8, raw control
characters in strings of bounded length, anything after the end token, and keywords that
it drops (`schema_check`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import xgrammar

from ..errors import GrammarInvalid
from ..types import GrammarSpec
from .base import MaskRow
from .char_sets import EVERYTHING
from .regex import Regex
from .schema_check import check_schema
from .utf8 import INVALID
from .vocabulary import Alphabet, Vocabulary

MAX_WHITESPACE = 1
"""White space characters that may stand between two parts of a JSON text, see docs/decisions/0006."""

_MAX_FORCED = 64


class XgrammarEngine:
    """Compiles specs for one vocabulary. Calls may come from several threads."""

    def __init__(self, vocabulary: Vocabulary, *, threads: int, max_depth: int) -> None:
        self.vocabulary = vocabulary
        self._max_depth = max_depth
        info = xgrammar.TokenizerInfo(
            list(vocabulary.text_bytes),
            xgrammar.VocabType.RAW,
            stop_token_ids=list(vocabulary.end_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=threads, cache_enabled=False)

    def compile(self, spec: GrammarSpec) -> XgrammarCompiled:
        """Raises `GrammarInvalid` for whatever cannot be compiled, or not be enforced."""
        if any("\ud800" <= char <= "\udfff" for char in spec.value):
            raise GrammarInvalid(f"{spec.kind}: half of a surrogate pair cannot be written")
        try:
            compiled = self._compile(spec)
        except RuntimeError as error:  # xgrammar knows no other error for what it is given
            raise GrammarInvalid(f"{spec.kind}: {_reason(error)}") from None
        is_json = spec.kind in ("json_schema", "json_object")
        result = XgrammarCompiled(compiled, self.vocabulary.json if is_json else self.vocabulary.text)
        first = np.zeros(self.vocabulary.mask_words, dtype=np.int32)
        result.matcher().fill_mask(first)
        if not first.any():
            raise GrammarInvalid(f"{spec.kind}: no text of this vocabulary fits it")
        return result

    def _compile(self, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
        if spec.kind == "json_schema":
            return self._compile_schema(check_schema(spec.value, max_depth=self._max_depth))
        if spec.kind == "json_object":
            return self._compile_schema('{"type": "object"}')
        if spec.kind == "regex":
            text = _written(Regex.whole(spec.value))
            return self._compiler.compile_regex(text)
        if spec.kind == "choice":
            return self._compiler.compile_grammar(_choice_grammar(spec.value))
        return self._compiler.compile_grammar(spec.value)

    def _compile_schema(self, text: str) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_json_schema(text, strict_mode=True, max_whitespace_cnt=MAX_WHITESPACE)


class XgrammarCompiled:
    """A compiled grammar; immutable."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, alphabet: Alphabet) -> None:
        self._compiled = compiled
        self._alphabet = alphabet
        self.size_bytes: int = compiled.memory_size_bytes

    def matcher(self) -> XgrammarMatcher:
        return XgrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self._alphabet, [0])


class XgrammarMatcher:
    """One output on its way. See `base.Matcher`."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, alphabet: Alphabet, states: list[int]) -> None:
        self._matcher = matcher
        self._alphabet = alphabet
        self._states = states  # UTF-8 state at the start and after each accepted token

    @property
    def completed(self) -> bool:
        return bool(self._matcher.is_completed())

    @property
    def terminated(self) -> bool:
        return bool(self._matcher.is_terminated())

    def try_accept(self, ids: Sequence[int]) -> int:
        table = self._alphabet.next_state
        width = table.shape[1]
        for at, token in enumerate(ids):
            if not 0 <= token < width or self._matcher.is_terminated():
                return at
            state = int(table[self._states[-1], token])
            if state == INVALID or not self._matcher.accept_token(int(token)):
                return at
            self._states.append(state)
        return len(ids)

    def fill_mask(self, row: MaskRow) -> None:
        possible = self._alphabet.masks[self._states[-1]]
        if row.shape != possible.shape or row.dtype != np.int32:
            raise ValueError(f"a mask row is {list(possible.shape)} int32, not {list(row.shape)} {row.dtype}")
        if self._matcher.is_terminated():
            raise ValueError("nothing may follow an end token: there is no mask")
        self._matcher.fill_next_token_bitmask(row)
        # Clears bytes that would not be UTF-8, bits beyond the head's width (they come back set), special tokens, and
        # control characters in JSON.
        np.bitwise_and(row, possible, out=row)

    def rollback(self, n: int) -> None:
        accepted = len(self._states) - 1
        if not 0 <= n <= accepted:
            raise ValueError(f"{n} of {accepted} accepted tokens cannot be undone")
        if n:
            self._matcher.rollback(n)
            del self._states[-n:]

    def fork(self) -> XgrammarMatcher:
        return XgrammarMatcher(self._matcher.fork(), self._alphabet, list(self._states))

    def forced_tokens(self) -> list[int]:
        """At most 64 of them; an end token may be the last."""
        forced: list[int] = []
        ahead = self
        row = np.zeros_like(self._alphabet.masks[0])
        while len(forced) < _MAX_FORCED and not ahead.terminated:
            ahead.fill_mask(row)
            token = _only_bit(row)
            if token is None:
                break
            if ahead is self:
                ahead = self.fork()
            ahead.try_accept([token])
            forced.append(token)
        return forced


def _only_bit(row: MaskRow) -> int | None:
    words = np.flatnonzero(row)
    if len(words) != 1:
        return None
    word = int(row[words[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(words[0]) * 32 + word.bit_length() - 1


def _written(regex: Regex) -> str:
    text = regex.write(EVERYTHING)
    if text is None:
        raise GrammarInvalid("regex: no text matches it")
    return text


def _choice_grammar(value: str) -> str:
    """A JSON list of strings as EBNF."""
    try:
        choices = json.loads(value)
    except (ValueError, RecursionError):
        raise GrammarInvalid("choice: not valid JSON") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarInvalid("choice: a list of at least one string is needed")
    for choice in choices:
        if choice == "" or any(0xD800 <= ord(char) <= 0xDFFF for char in choice):
            raise GrammarInvalid("choice: empty strings and halves of surrogate pairs cannot be chosen")
    return "root ::= " + " | ".join('"' + "".join(map(_quoted, choice)) + '"' for choice in dict.fromkeys(choices))


def _quoted(char: str) -> str:
    return char if char.isascii() and (char.isalnum() or char == " ") else f"\\U{ord(char):08x}"


def _reason(error: RuntimeError) -> str:
    """The message without the time and source line that xgrammar puts before it."""
    text = str(error).strip()
    return text.split(": ", 1)[1] if text.startswith("[") and ": " in text else text
