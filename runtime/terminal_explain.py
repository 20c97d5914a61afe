"""`bosquet explain`: why a request found so little in the cache, or what keeps one prompt from reusing another.

Asks a server, or compares two files with a model's tokenizer alone. Nothing that a prompt holds is obeyed by the
terminal: what is not printable is written as an escape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, Unavailable

Json = dict[str, Any]

_FIELDS = ("prompt", "messages", "tools", "segments", "add_generation_prompt", "continue_final_message",
           "chat_template_kwargs", "add_special_tokens", "parse_special")  # fmt: skip


def explain_request(name: str, url: str, key: str) -> Iterator[str]:
    """The lines to print on a request; without a name, on the newest. Raises `ConfigError` and `Unavailable`."""
    if not name:
        newest = _ask(url, key, "GET", "/v1/requests?limit=1")["data"]
        if not newest:
            raise ConfigError("this server has answered no request yet")
        name = newest[0]["id"]
    return report_lines(_ask(url, key, "GET", f"/v1/requests/{_quoted(name)}/cache"))


def explain_files(a: Path, b: Path, url: str, key: str, model: str) -> Iterator[str]:
    """The lines to print on two prompts; without a URL, as the model's tokenizer and template have them."""
    sides = {"a": read_prompt(a), "b": read_prompt(b)}
    found = _ask(url, key, "POST", "/v1/explain", sides) if url else _compared(sides, model)
    return comparison_lines(found, str(a), str(b))


def read_prompt(path: Path) -> Json | str:
    """A text, or JSON: a list of messages, or a request with `messages` or `prompt`, of which what makes the prompt is
    taken. Raises `ConfigError`."""
    try:
        raw = path.read_bytes()
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error.__class__.__name__}") from None
    if path.suffix != ".json":
        return text
    try:
        data: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if isinstance(data, list):
        data = {"messages": data}
    if not isinstance(data, dict) or not ("messages" in data or "prompt" in data):
        raise ConfigError(f"{path} holds neither messages nor a prompt")
    return {name: data[name] for name in _FIELDS if name in data}


def _compared(sides: Json, model: str) -> Json:
    from pydantic import ValidationError

    from .models.source import resolve
    from .server.config import ServerConfig
    from .server.explain import compared
    from .server.schemas import ExplainRequest
    from .serving import read_text, text_for_comparing

    text = text_for_comparing(*read_text(resolve(model, weights=False).path, ServerConfig()))
    try:
        asked = ExplainRequest.model_validate(sides)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    found: Json = msgspec.to_builtins(asyncio.run(compared(text, asked)))
    return found


# ---- what is printed -------------------------------------------------------------------------------------------------


def report_lines(found: Json) -> Iterator[str]:
    """A `CacheReport` for people."""
    sources = {"memory": "memory_tokens", "copied from part of a page": "copied_tokens", "disk": "disk_tokens"}
    parts = [f"{found[field]:,} {name}" for name, field in sources.items() if found.get(field)]
    whence = f" ({', '.join(parts)})" if parts else ""
    yield f"{found['id']}: {found['cached_tokens']:,} of {found['prompt_tokens']:,} prompt tokens reused{whence}"
    kind = found.get("kind") or found.get("reason") or ""
    yield _line("cause", f"{found['cause']}{': ' + kind if kind else ''}".replace("_", " "))
    yield _line("at", _where(found["position"], found.get("place")))
    if found["lost_tokens"]:
        ms = found.get("lost_ms")
        yield _line("cost", f"{found['lost_tokens']:,} tokens computed again" + (f", about {ms:,.1f} ms" if ms else ""))
    if found.get("elsewhere"):
        yield _line("others", f"another namespace has {found['elsewhere']:,} tokens")
    yield from _sides(found.get("ours"), found.get("theirs"))
    yield _line("hint", found["hint"])


def comparison_lines(found: Json, a: str, b: str) -> Iterator[str]:
    """A `Comparison` for people."""
    yield f"{b} reuses {found['shared_tokens']:,} of its {found['b_tokens']:,} tokens after {a} ({found['a_tokens']:,})"
    yield _line("cause", found["kind"].replace("_", " "))
    if found["kind"] != "same":
        yield _line("at", _where(found["shared_tokens"], found.get("place")))
    if found["lost_tokens"]:
        yield _line("cost", f"{found['lost_tokens']:,} tokens after it are in both, and are computed again")
    yield from _sides(found.get("b"), found.get("a"))
    yield _line("hint", found["hint"])


def _where(position: int, place: Json | None) -> str:
    if place is None:
        return f"token {position:,}"
    character = place.get("character")
    inside = "" if character is None else f", character {character:,}"
    return f"token {position:,}: {place['label']}{inside}"


def _sides(ours: Json | None, theirs: Json | None) -> Iterator[str]:
    for name, side in (("here", ours), ("cached", theirs)):
        if side is not None and side.get("text") is not None:
            yield _line(name, repr(side["text"]))  # Python's way leaves letters and escapes whatever moves a cursor
    if theirs is not None and theirs.get("text") is None:
        yield _line("texts", "not kept; bosquet serve --capture-text shows both sides")


def _line(name: str, text: str) -> str:
    return f"  {name:<7} {text}"


def printable(text: str) -> str:
    """The text with what is not printable as escapes, such as control characters and changes of direction."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


# ---- the server ------------------------------------------------------------------------------------------------------


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _ask(url: str, key: str, method: str, path: str, body: Json | None = None) -> Json:
    """Raises `ConfigError` with the server's reason, `Unavailable` where there is none."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.request(method, f"{url.rstrip('/')}{path}", json=body, headers=headers, timeout=60)
        data: Json = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        why = error.__class__.__name__
        raise Unavailable(f"no answer from {url}: {why}; is `bosquet serve` running there?") from None
    if answer.status_code != 200:
        raise ConfigError(str(data.get("error", {}).get("message", f"status {answer.status_code}")))
    return data


def lines_for(what: Sequence[str], *, last: bool, url: str, key: str, model: str) -> Iterator[str]:
    """What `bosquet explain` prints. Raises `ConfigError` and `Unavailable`."""
    if len(what) == 2 and not last:
        found = explain_files(Path(what[0]), Path(what[1]), url, key, model)
    elif len(what) == (0 if last else 1):
        found = explain_request("" if last else what[0], url or "http://127.0.0.1:8000", key)
    else:
        raise ConfigError("explain takes the id of a request, --last, or two files with prompts")
    return map(printable, found)
