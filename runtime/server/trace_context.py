"""W3C trace context: which trace of a client a request belongs to. Knows nothing of what is traced.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LONGEST_STATE = 512


class TraceContext(NamedTuple):
    """`span` is the request's own; `parent` is the client's, empty where it sent none."""

    trace: str
    span: str
    parent: str = ""
    sampled: bool = True
    state: str = ""

    @property
    def traceparent(self) -> str:
        """As a header: what comes after this request has it for its parent."""
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"


def context_of(traceparent: str, tracestate: str = "") -> TraceContext:
    """The context that a request's headers give; a new one where they are absent or not to be read."""
    own = secrets.token_hex(8)
    found = _PARENT.fullmatch(traceparent.strip())
    if found is None:
        return TraceContext(secrets.token_hex(16), own)
    version, trace, parent, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace, 16) or not int(parent, 16):
        return TraceContext(secrets.token_hex(16), own)
    state = tracestate if len(tracestate) <= _LONGEST_STATE and tracestate.isprintable() else ""
    return TraceContext(trace, own, parent, bool(int(flags, 16) & 1), state)


def context_in(parents: Sequence[str], states: Sequence[str]) -> TraceContext:
    """The context in a request's headers, each as often as it was sent: of several `traceparent` none is to be gone on
    with, several `tracestate` are one list (§3.2 and §3.3 of the recommendation)."""
    return context_of(parents[0] if len(parents) == 1 else "", ",".join(states))
