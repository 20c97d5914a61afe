"""The settings of the HTTP server. Knows nothing of the engine's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...grammar.tools import KNOWN
from ..config import Allowed, between, check_knobs, knob, one_of, plain_text, seconds

_DAY = 86_400
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@]+")


def _are_origins(value: Any) -> bool:
    return isinstance(value, tuple) and all(_is_like(_ORIGIN, one) for one in value)


def _is_like(form: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and form.fullmatch(value) is not None


_ORIGINS = Allowed(_are_origins, "'*', or origins such as https://example.org, without a path")
_COLLECTOR = Allowed(
    lambda value: value == "" or _is_like(re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?"), value),
    "a URL such as http://localhost:4318",
)
_HOST = Allowed(lambda value: _is_like(re.compile(r"[^\s/]+"), value), "a name or an address")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the HTTP server. Raises `ConfigError` for what cannot be."""

    host: str = knob(
        "127.0.0.1", "Address to listen on; beyond loopback, set --keys-file too.", allowed=_HOST, basic=True
    )
    port: int = knob(8000, "Port to listen on; 0 takes a free one.", allowed=between(0, 65_535), basic=True)
    served_model_name: str = knob(
        "", "Name of the model in the API; empty: the model's own name.", allowed=plain_text(empty=True)
    )
    keys_file: str = knob(
        "",
        "File with API keys, their tenants and roles; empty: no key is asked for.",
        allowed=plain_text(empty=True),
        basic=True,
    )
    cors_origins: tuple[str, ...] = knob((), "Origins that browsers may call from; '*' for any.", allowed=_ORIGINS)
    json_logs: bool = knob(False, "Write logs as one JSON object a line.")
    request_timeout_s: float = knob(
        600.0, "Seconds after which a request without its own timeout is given up.", allowed=seconds(_DAY)
    )
    arrival_timeout_s: float = knob(
        60.0, "Seconds within which a request must have arrived whole.", allowed=seconds(_DAY)
    )
    drain_timeout_s: float = knob(
        30.0, "Seconds that requests in flight may still take after SIGTERM.", allowed=seconds(_DAY, none=True)
    )
    max_body_bytes: int = knob(4_000_000, "Largest request body, in bytes.", allowed=between(1_000, 2**30))
    chat_template: str = knob(
        "", "File with a Jinja chat template to use instead of the model's own.", allowed=plain_text(empty=True)
    )
    tool_format: str = knob(
        "auto",
        "How the model writes tool calls; 'auto': as its chat template has them.",
        allowed=one_of(("auto", *KNOWN)),
    )
    transcripts_mb: int = knob(
        64, "Memory for what was generated, so that echoed turns keep their tokens; 0: none.", allowed=between(0, 2**20)
    )
    trace_mb: int = knob(
        64, "Megabytes for records of requests, the oldest of which are dropped; 0: none.", allowed=between(0, 2**20)
    )
    trace_file: str = knob(
        "",
        "File that keeps the records of requests; empty: they are gone when the server ends.",
        allowed=plain_text(empty=True),
    )
    capture_text: bool = knob(False, "Keep prompts and answers in the records of requests.")
    otlp: str = knob(
        "", "Collector to send OpenTelemetry spans to, such as http://localhost:4318; empty: none.", allowed=_COLLECTOR
    )
    check_share: float = knob(
        0.01, "Share of structured outputs that are held against their schemas once more.", allowed=between(0, 1.0)
    )

    def __post_init__(self) -> None:
        check_knobs(self)
