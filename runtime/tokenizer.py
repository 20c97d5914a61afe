"""Text to token ids and back.

Encodes prompts whose parts come from different hands: in text of the template, control strings such as `<|im_end|>`
become their token; in text of a user they stay text. Both are encoded in one go, so that the ids do not depend on who
wrote which part.

How: the library is told to treat every special token as text, always. For each it gets a second name that nobody can
guess, and the control strings in the template's text are replaced by it before encoding.

Knows nothing of messages, templates or streams.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers

from ..errors import InvalidParameter, ModelLoadError
from ..types import Segment
from .text_patterns import any_of
from .tokenizer_files import TokenizerFiles, read_tokenizer_files

_LONG = 4_000
"""Characters from which on a text is encoded by the library's batch call, even alone: it lets other Python threads run
meanwhile, and the single call does not. It wakes a thread pool, so short texts go the short way."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """The tokenizer of one model folder. Immutable; may be used from several threads.

    size: number of ids; the model's output head may be wider
    special_ids: tokens that are left out when ids are decoded
    control_ids: tokens that text becomes only in control segments
    bos_id, add_bos: the start token, and whether the model expects it before a raw prompt
    token_bytes: for each id the exact bytes that it adds to the text; for special tokens their literal text; empty for
        ids that stand for nothing
    """

    def __init__(self, files: TokenizerFiles, folder: Path) -> None:
        self._backend = _load(files, folder)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values(), default=-1) + 1
        self._special_of = {entry["content"]: int(entry["id"]) for entry in files.entries}
        specials = files.specials()
        self.special_ids = frozenset(i for text, i in self._special_of.items() if text in specials)
        decoding = _Decoding(self._backend, folder)
        self.token_bytes = decoding.table(vocabulary, self.size, self._special_of, self.special_ids)
        self._starts_with_space = decoding.strips_first_space
        bos = files.named.get("bos_token")
        self.bos_id = None if bos is None else self._backend.token_to_id(bos)
        self.add_bos = self._adds_bos(files.config.get("add_bos_token"))
        self._name_controls(files)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Reads tokenizer.json, tokenizer_config.json and special_tokens_map.json. Raises `ModelLoadError`."""
        return cls(read_tokenizer_files(folder), folder)

    def id_of_special(self, text: str) -> int | None:
        """The id of a special or added token by its text."""
        return self._special_of.get(text)

    def encode(self, text: str, *, specials: bool) -> list[int]:
        """Ids of a text, without a start token. `specials`: control strings become their tokens.

        Raises `InvalidParameter` for text that is not valid Unicode.
        """
        return self._encode(self._controls.sub(self._alias, text) if specials else text)

    def encode_segments(self, segments: Sequence[Segment], *, bos: bool = False) -> list[int]:
        """Ids of the joined text. Control strings become tokens if they lie in control segments altogether.

        `bos` puts the start token first, unless the text begins with it or the model has none.
        """
        parts = []
        for control, group in groupby(segments, key=lambda segment: segment.control):
            text = "".join(segment.text for segment in group)
            parts.append(self._controls.sub(self._alias, text) if control else text)
        ids = self._encode("".join(parts))
        if bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def split_controls(self, segments: Sequence[Segment]) -> list[Segment]:
        """The same text in pieces: those that are control are one control token each, and the others have none."""
        pieces: list[Segment] = []
        for control, group in groupby(segments, key=lambda segment: segment.control):
            text = "".join(segment.text for segment in group)
            start = 0
            for match in self._controls.finditer(text) if control else ():
                pieces += [Segment(text[start : match.start()], False), Segment(match[0], True)]
                start = match.end()
            pieces.append(Segment(text[start:], False))
        return [piece for piece in pieces if piece.text]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, at_start: bool = False) -> str:
        """The text that ids add, bytes that are not UTF-8 replaced by U+FFFD.

        `at_start`: the ids begin a text, so the space that some tokenizers put before its first word is dropped.
        """
        table, skipped = self.token_bytes, self.special_ids if skip_special else frozenset()
        data = b"".join(table[i] for i in ids if i not in skipped and i < self.size)
        if at_start and self._starts_with_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_text(self, token: int) -> str:
        """A token as text of its own, for log-probabilities. A part of a character shows as U+FFFD."""
        return self.bytes_of(token).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        """`token_bytes[token]`; empty for the padding ids of a wider output head."""
        return self.token_bytes[token] if token < self.size else b""

    def _adds_bos(self, configured: object) -> bool:
        if self.bos_id is None:
            return False
        if isinstance(configured, bool):
            return configured
        return bool(self._backend.encode("a").ids[:1] == [self.bos_id])

    def _name_controls(self, files: TokenizerFiles) -> None:
        """Gives each control token its secret name; from here on the library sees special tokens as text."""
        controls = files.controls()
        entries = [entry for entry in files.entries if entry["content"] in controls]
        # As hard to guess as a key. Only letters that no normalizer touches.
        secret = secrets.token_hex(16)
        names = {entry["content"]: f"<{secret}-{entry['id']}>" for entry in entries}
        flags = ("single_word", "lstrip", "rstrip", "normalized")
        self._backend.add_tokens(
            [
                tokenizers.AddedToken(
                    names[entry["content"]], special=False, **{flag: bool(entry.get(flag)) for flag in flags}
                )
                for entry in entries
            ]
        )
        self._backend.encode_special_tokens = True
        self._names = names
        self._controls = re.compile(any_of(names))
        self.control_ids = frozenset(int(entry["id"]) for entry in entries)
        self._id_of_name = {self._backend.token_to_id(names[entry["content"]]): int(entry["id"]) for entry in entries}
        unknown = self._special_of.get(files.named.get("unk_token", ""))
        self._never = frozenset(self._id_of_name.values()) - {unknown}

    def _alias(self, match: re.Match[str]) -> str:
        return self._names[match[0]]

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidParameter(
                f"the text is not valid Unicode: it has half of a surrogate pair at character {error.start}"
            ) from error
        if len(text) < _LONG:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        else:
            ids = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not self._never.isdisjoint(ids):
            token = next(i for i in ids if i in self._never)
            raise InvalidParameter(f"this tokenizer cannot write {self.token_text(token)!r} as plain text")
        real = self._id_of_name
        return [real.get(i, i) for i in ids]


class _Decoding:
    """Which bytes a vocabulary entry stands for: byte-level characters, or SentencePiece with byte fallback."""

    def __init__(self, backend: tokenizers.Tokenizer, folder: Path) -> None:
        parts = list(_parts(backend.decoder, "decoders"))
        kinds = {part["type"] for part in parts} | {
            part["type"] for part in _parts(backend.pre_tokenizer, "pretokenizers")
        }
        self._byte_level = "ByteLevel" in kinds
        self._byte_tokens = "ByteFallback" in kinds
        replaced = any(p["type"] == "Replace" and p["pattern"].get("String") == "▁" for p in parts)
        if not self._byte_level and not replaced and "Metaspace" not in kinds:
            raise ModelLoadError(
                f"{folder}: tokens are decoded by {sorted(kinds)}; known are byte-level and SentencePiece"
            )
        self.strips_first_space = any(
            (p["type"] == "Strip" and p["content"] == " " and p["start"] > 0)
            or (p["type"] == "Metaspace" and p.get("prepend_scheme", "always") != "never")
            for p in parts
        )

    def table(
        self, vocabulary: Mapping[str, int], size: int, added: Mapping[str, int], special_ids: frozenset[int]
    ) -> list[bytes]:
        table = [b""] * size
        of_byte = _byte_alphabet()
        literal = special_ids if not self._byte_level else frozenset(added.values())
        for token, i in vocabulary.items():
            if i in literal:
                table[i] = token.encode()
            elif self._byte_level:
                # As the library does: a token that is not written in the alphabet of bytes is taken as it is.
                try:
                    table[i] = bytes(map(of_byte.__getitem__, token))
                except KeyError:
                    table[i] = token.encode()
            elif self._byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
                table[i] = bytes([int(match[1], 16)])
            else:
                table[i] = token.replace("▁", " ").encode()
        return table


def _load(files: TokenizerFiles, folder: Path) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_str(files.patched_json())
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    for entry in files.entries:
        if backend.token_to_id(entry["content"]) != entry["id"]:
            raise ModelLoadError(f"{folder}: the added token {entry['content']!r} does not have the id {entry['id']}")
    return backend


def _parts(step: Any, key: str) -> Iterable[dict[str, Any]]:
    """The steps of a decoder or pre-tokenizer, sequences resolved."""
    if step is None:
        return
    waiting = [json.loads(step.__getstate__())]
    while waiting:
        part = waiting.pop(0)
        if part["type"] == "Sequence":
            waiting[:0] = part[key]
        else:
            yield part


def _byte_alphabet() -> dict[str, int]:
    """The printable characters that byte-level vocabularies write for the 256 bytes: itself where a byte is a visible
    Latin-1 character, else the next one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
