"""Keys of conversations: a hash for every message, of it and all before it.

Two turns of the assistant have one key if they say the same: white space at the ends of the text, and how the arguments
of calls are written as JSON, do not count. All other messages count as they are. Knows nothing of tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...grammar.tools.base import Parsed

Message = Mapping[str, Any]
Meaning = tuple[str, str, tuple[tuple[str, str], ...]]
"""Text, reasoning, and the names and arguments of calls."""


def root(*parts: Any) -> bytes:
    """The key of no message yet. `parts` are JSON values: all besides the messages that a prompt is made of."""
    return _hash(b"", parts)


def keys(start: bytes, messages: Sequence[Message]) -> list[bytes]:
    """One a message."""
    found: list[bytes] = []
    for message in messages:
        start = key_after(start, message)
        found.append(start)
    return found


def key_after(before: bytes, message: Message) -> bytes:
    """The key of a conversation with one more message."""
    return _hash(before, _said(message) if message["role"] == "assistant" else message)


def text_of(content: str | Sequence[Mapping[str, str]] | None) -> str:
    """The text of a content, given as text or in parts."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(part["text"] for part in content)


def meaning(parsed: Parsed) -> Meaning:
    """What an answer says, as far as it counts."""
    calls = tuple((call.name, same_json(call.arguments)) for call in parsed.calls)
    return parsed.content.strip(), parsed.reasoning.strip(), calls


def same_json(text: str) -> str:
    """One text for all that are the same JSON value; what is no JSON is left."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        return text.strip()


def _said(message: Message) -> dict[str, Any]:
    calls = [
        (call.get("id"), call["function"]["name"], same_json(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    thought = message.get("reasoning_content")
    return {
        "role": "assistant",
        "content": text_of(message.get("content")).strip(),
        "calls": calls,
        "reasoning": thought.strip() if thought else None,
        "name": message.get("name"),
    }


def _hash(before: bytes, value: Any) -> bytes:
    raw = json.dumps(value, sort_keys=True, ensure_ascii=True).encode()
    return hashlib.blake2b(before + raw, digest_size=16).digest()
