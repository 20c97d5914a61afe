"""API keys: who a caller is. Keys are held as digests, compared in constant time, and never written anywhere."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.requests import Request

from ...errors import ConfigError, NotAuthenticated, NotPermitted

Role = Literal["user", "operator"]
ROLES = ("user", "operator")


class Caller(NamedTuple):
    """The tenant is the namespace that the caller's prefixes live in. An operator sees all tenants."""

    tenant: str
    role: Role


ANYONE = Caller("", "operator")
"""Every caller of a server without keys."""


class Keyring:
    """The keys of one server; an empty one lets everybody in as `ANYONE`."""

    def __init__(self, entries: Sequence[tuple[str, Caller]] = ()) -> None:
        self._entries = [(_digest(key), caller) for key, caller in entries]

    def __len__(self) -> int:
        return len(self._entries)

    def identify(self, request: Request) -> Caller:
        """The caller behind `Authorization: Bearer` or `x-api-key`. Raises NotAuthenticated."""
        if not self._entries:
            return ANYONE
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not key:
            raise NotAuthenticated("an API key is needed: send it as 'Authorization: Bearer KEY'")
        digest = _digest(key)
        found: Caller | None = None
        for known, caller in self._entries:  # all of them, so that the time taken tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise NotAuthenticated("this API key is not known here")
        return found


def require_operator(caller: Caller) -> None:
    """Raises NotPermitted for everybody else."""
    if caller.role != "operator":
        raise NotPermitted("this needs a key with the role 'operator'")


def load_keyring(path: str) -> Keyring:
    """Read a keys file; an empty path gives an empty keyring. Raises ConfigError, which never quotes a key.

    JSON: a list of objects with `key`, `tenant` and `role` ("user" if absent). Otherwise lines of `key tenant [role]`,
    where `#` starts a comment line.
    """
    if not path:
        return Keyring()
    try:
        raw = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the keys file {path}: {error.__class__.__name__}") from None
    rows = _json_rows(raw, path) if raw.lstrip().startswith(("[", "{")) else _line_rows(raw, path)
    if not rows:
        raise ConfigError(f"the keys file {path} holds no key")
    if len({key for key, _ in rows}) != len(rows):
        raise ConfigError(f"the keys file {path} holds one key twice")
    return Keyring(rows)


def _json_rows(raw: str, path: str) -> list[tuple[str, Caller]]:
    try:
        data: Any = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        raise ConfigError(f"the keys file {path} is not valid JSON") from None
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        raise ConfigError(f"the keys file {path} must hold a JSON list of objects")
    rows = []
    for number, entry in enumerate(data, 1):
        unknown = sorted(set(entry) - {"key", "tenant", "role"})
        if unknown:
            raise ConfigError(f"entry {number} of {path} has unknown fields: {', '.join(unknown)}")
        rows.append(_row(entry.get("key"), entry.get("tenant"), entry.get("role", "user"), f"entry {number} of {path}"))
    return rows


def _line_rows(raw: str, path: str) -> list[tuple[str, Caller]]:
    rows = []
    for number, line in enumerate(raw.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"line {number} of {path}"
        if len(words) not in (2, 3):
            raise ConfigError(f"{where} must hold 'key tenant [role]'")
        rows.append(_row(words[0], words[1], words[2] if len(words) == 3 else "user", where))
    return rows


def _row(key: Any, tenant: Any, role: Any, where: str) -> tuple[str, Caller]:
    if not isinstance(key, str) or len(key) < 8 or any(c.isspace() for c in key):
        raise ConfigError(f"{where}: a key has at least 8 characters and no space")
    if not isinstance(tenant, str) or not tenant:
        raise ConfigError(f"{where}: a tenant is a name")
    if role not in ROLES:
        raise ConfigError(f"{where}: the role is 'user' or 'operator'")
    return key, Caller(tenant, role)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
