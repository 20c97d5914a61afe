"""The settings of the HTTP server. Knows nothing of the engine's."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import knob


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the HTTP server."""

    host: str = knob("127.0.0.1", "Address to listen on; beyond loopback, set --keys-file too.", basic=True)
    port: int = knob(8000, "Port to listen on; 0 takes a free one.", basic=True)
    served_model_name: str = knob("", "Name of the model in the API; empty: the model's own name.")
    keys_file: str = knob("", "File with API keys, their tenants and roles; empty: no key is asked for.", basic=True)
    cors_origins: tuple[str, ...] = knob((), "Origins that browsers may call from; '*' for any.")
    json_logs: bool = knob(False, "Write logs as one JSON object a line.")
    request_timeout_s: float = knob(600.0, "Seconds after which a request without its own timeout is given up.")
    arrival_timeout_s: float = knob(60.0, "Seconds within which a request must have arrived whole.")
    drain_timeout_s: float = knob(30.0, "Seconds that requests in flight may still take after SIGTERM.")
    max_body_bytes: int = knob(4_000_000, "Largest request body, in bytes.")
    chat_template: str = knob("", "File with a Jinja chat template to use instead of the model's own.")
    tool_format: str = knob("auto", "How the model writes tool calls; 'auto': as its chat template has them.")
    check_share: float = knob(0.01, "Share of structured outputs that are held against their schemas once more.")
