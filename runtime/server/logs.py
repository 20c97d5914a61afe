"""How log lines look: for people, or one JSON object a line. Knows nothing of what is logged."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec


class JsonFormatter(logging.Formatter):
    """`extra={"facts": {...}}` of a log call becomes fields; then the message, which says the same, is left out."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        facts = getattr(record, "facts", None)
        entry.update(facts if facts is not None else {"message": record.getMessage()})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


def configure_logs(json_logs: bool) -> None:
    """Send the logs of `bosquet` and `uvicorn` to standard error, in one manner. Called again, it replaces the last."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if json_logs else plain)
    for name, level in (("bosquet", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
