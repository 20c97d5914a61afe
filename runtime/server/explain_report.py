"""Why the cache had no more of a prompt, as it is kept and shown. Structs, and what fills them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..trace import Miss, MissCause, Trace
from .explain_compare import Difference, Kind
from .explain_hints import ELSEWHERE, hint
from .explain_prompt import Part

_SECRET = secrets.token_bytes(16)

Decode = Callable[[Sequence[int]], str]


class Place(Struct, omit_defaults=True):
    """A part of the request: `name` is its field, such as messages[0].content, and `label` says it in words."""

    kind: str
    name: str
    label: str
    character: int | None = None  # of the part, where it begins to differ


class Side(Struct, omit_defaults=True):
    """The tokens from the position on. `text` only where texts are kept; two sides of the same `hash`, from one server
    process, have the same tokens."""

    tokens: int
    hash: str
    text: str | None = None


class CacheReport(Struct, kw_only=True, omit_defaults=True):
    """`cause` is why the token at `position` was not reused, the first of which this is so, and `kind` what is
    different there. `lost_tokens` were computed and need not have been, which takes `lost_ms` at the engine's
    pace: that of long prompts at that time.

    `age_s` ago it was evicted, `idle_s` after its last use. `ours` is this prompt from the position on, `theirs` the
    nearest path that was cached. `elsewhere` tokens of the prompt are cached in another namespace; only operators are
    told.
    """

    id: str
    prompt_tokens: int
    cached_tokens: int
    position: int
    cause: MissCause
    lost_tokens: int
    hint: str
    memory_tokens: int = 0  # of the cached ones: shared in memory,
    copied_tokens: int = 0  # copied from a part of a page,
    disk_tokens: int = 0  # and read from disk
    reason: str = ""
    kind: Kind | None = None
    place: Place | None = None
    detail: str = ""
    lost_ms: float | None = None
    age_s: float | None = None
    idle_s: float | None = None
    ours: Side | None = None
    theirs: Side | None = None
    elsewhere: int = 0


class Comparison(Struct, kw_only=True, omit_defaults=True):
    """What of prompt `b` would be reused if `a` were cached: the first `shared_tokens`. Of the others, `lost_tokens`
    are in `a` too, but elsewhere."""

    a_tokens: int
    b_tokens: int
    shared_tokens: int
    lost_tokens: int
    kind: Kind
    hint: str
    place: Place | None = None
    detail: str = ""
    a: Side | None = None
    b: Side | None = None


def report(trace: Trace, miss: Miss, part: Part | None, found: Difference | None, decode: Decode | None) -> CacheReport:
    """`miss` is the trace's. `part` is where it lies, `found` what differs there; `decode` only if texts are kept."""
    return CacheReport(
        id=trace.request,
        prompt_tokens=trace.prompt_tokens,
        cached_tokens=miss.matched,
        memory_tokens=miss.matched - miss.copied - miss.disk,
        copied_tokens=miss.copied,
        disk_tokens=miss.disk,
        cause=miss.cause,
        reason=miss.reason,
        kind=found.kind if found else None,
        position=miss.at,
        place=place(found.part if found else part, found.character if found else None),
        detail=found.detail if found else "",
        lost_tokens=miss.lost,
        lost_ms=round(1000 * trace.pace * miss.lost, 3) if trace.pace else None,
        age_s=_rounded(miss.age_s),
        idle_s=_rounded(miss.idle_s),
        ours=side(miss.ours, decode),
        theirs=side(miss.theirs, decode),
        elsewhere=miss.elsewhere,
        hint=hint(miss, found),
    )


def shown(found: CacheReport) -> CacheReport:
    """What another namespace has is the cause, for whoever is told of it."""
    if found.elsewhere:
        found.cause, found.reason = "namespace", found.cause
        found.hint = ELSEWHERE.format(tokens=found.elsewhere)
    return found


def without_others(miss: Miss | None) -> Miss | None:
    """The engine's word as a tenant may see it."""
    return None if miss is None else replace(miss, elsewhere=0)


def place(part: Part | None, character: int | None) -> Place | None:
    return None if part is None else Place(part.kind, part.name, part.label, character)


def side(ids: Sequence[int], decode: Decode | None) -> Side | None:
    if not ids:
        return None
    raw = b"".join(token.to_bytes(4, "little") for token in ids)
    digest = hashlib.blake2b(raw, digest_size=8, key=_SECRET).hexdigest()
    return Side(len(ids), digest, decode(ids) if decode is not None else None)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
