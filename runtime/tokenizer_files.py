"""Reads what a model folder says of its tokenizer besides the vocabulary: added tokens, named tokens, chat templates.

Here it is decided which strings are *control strings*. Everything that the model's maker marked as special is. So is an
added token that is written like a marker (`<|…|>`), or that the chat template mentions, such as `<tool_call>`: a
message that could write it could forge what the template writes. Added tokens for ordinary text (runs of blanks, HTML
tags) are not.

Knows nothing of how text is encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelLoadError

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_ADDED_KEY = re.compile(r'"added_tokens"\s*:\s*(?=\[)')
_MARKER = re.compile(r"<\|.*\|>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files say.

    `entries` are the added tokens as in tokenizer.json, those that only tokenizer_config.json names included.
    `named` maps `bos_token` and the like to their texts. `templates` maps names to Jinja sources; the model's usual
    one is "default".
    """

    json_text: str
    entries: list[dict[str, Any]]
    config: dict[str, Any]
    named: dict[str, str]
    templates: dict[str, str]

    def specials(self) -> frozenset[str]:
        """Texts of the tokens that decoding leaves out."""
        listed = {text for key in _LISTS for text in _texts(self.config.get(key))}
        listed.update(self.named.values())
        return frozenset(entry["content"] for entry in self.entries if entry["special"] or entry["content"] in listed)

    def markers(self) -> frozenset[str]:
        """Special tokens, and added tokens that are written like them."""
        shaped = (entry["content"] for entry in self.entries if _MARKER.fullmatch(entry["content"]))
        return self.specials().union(shaped)

    def controls(self) -> frozenset[str]:
        """Texts that become one token where the template writes them, and stay plain text in plain segments."""
        source = "\0".join(self.templates.values())
        texts = (entry["content"] for entry in self.entries)
        return self.markers().union(text for text in texts if text.strip() and text in source)

    def patched_json(self) -> str:
        """tokenizer.json with every entry in place, and the control tokens marked as special."""
        controls = self.controls()
        entries = [{**entry, "special": entry["content"] in controls} for entry in self.entries]
        start, end, _ = _added_array(self.json_text)
        return self.json_text[:start] + json.dumps(entries) + self.json_text[end:]


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Raises `ModelLoadError` for a folder that has no tokenizer.json, and for files that cannot be read."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(
            f"{folder} has no tokenizer.json; load the tokenizer once with transformers and save it there"
        )
    text = _read(path)
    config = _read_object(folder / "tokenizer_config.json")
    special_map = _read_object(folder / "special_tokens_map.json")
    try:
        entries = _added_array(text)[2]
        entries += _entries_of_config(config, {entry["content"] for entry in entries})
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    named = {}
    for key in _NAMED:
        value = config.get(key) if config.get(key) is not None else special_map.get(key)
        for name in _texts(value):
            named[key] = name
    return TokenizerFiles(text, entries, config, named, _templates(folder, config))


def _added_array(text: str) -> tuple[int, int, list[dict[str, Any]]]:
    """Where the array of added tokens stands in tokenizer.json, and what it holds.

    The vocabulary, by far the most of the file, is skipped: as Python objects it would be many times its size. The
    format puts the array before it; in a file with another order, a vocabulary entry could be taken for the key.
    """
    found = _ADDED_KEY.search(text)
    model = text.find('"model"')
    if found is None or model < 0:
        raise ValueError("it does not hold added_tokens and a model")
    if found.start() > model:
        raise ValueError("added_tokens stands after the model; save the file again with the tokenizers library")
    entries, end = json.JSONDecoder().raw_decode(text, found.end())
    for entry in entries:
        if not isinstance(entry["content"], str) or not isinstance(entry["id"], int):
            raise TypeError("an added token has no text or no id")
        if not entry["content"]:
            raise ValueError(f"the added token {entry['id']} is empty")
        entry.setdefault("special", False)
    return found.end(), end, entries


def _entries_of_config(config: Mapping[str, Any], known: set[str]) -> list[dict[str, Any]]:
    """Added tokens that only tokenizer_config.json has, in the order of their ids."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    listed = config.get("added_tokens_decoder") or {}
    return [
        {**flags, **listed[number], "id": int(number)}
        for number in sorted(listed, key=int)
        if listed[number]["content"] not in known
    ]


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """A file wins over tokenizer_config.json."""
    templates: dict[str, str] = {}
    given = config.get("chat_template")
    if isinstance(given, str):
        templates["default"] = given
    elif isinstance(given, list):
        for entry in given:
            if not isinstance(entry, dict) or not {"name", "template"} <= entry.keys():
                raise ModelLoadError(f"{folder}: chat_template is neither a text nor a list of named templates")
            templates[str(entry["name"])] = str(entry["template"])
    main = folder / "chat_template.jinja"
    if main.is_file():
        templates["default"] = _read(main)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read(path)
    return templates


def _texts(value: object) -> list[str]:
    """The texts in a named token: a text, an object with `content`, or a list or mapping of either."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        if isinstance(value.get("content"), str):
            return [value["content"]]
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold an object")
    return value
