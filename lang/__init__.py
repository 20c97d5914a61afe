"""The language: agent programs in Python that run on any backend.

Importing it loads nothing heavy; a backend brings its own needs when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..types import Call, Chunk, Message
from .acting import Acted, ActStep
from .backend import CAPABILITIES, TOKEN_CAPABILITIES, Backend, TokenBackend
from .defaults import set_backend, use
from .expressions import Expression, Sampling, gen, select
from .program import Program, program
from .result import Result
from .run import Usage
from .state import State
from .stream import AsyncStream, Stream
from .tool import InvalidArguments, Tool, tool
from .tool_runs import ToolRun
from .values import Meta

if TYPE_CHECKING:
    from .backends.http import BosquetServer
    from .backends.openai_compatible import OpenAICompatible

__all__ = [
    "CAPABILITIES",
    "TOKEN_CAPABILITIES",
    "ActStep",
    "Acted",
    "AsyncStream",
    "Backend",
    "BosquetServer",
    "Call",
    "Chunk",
    "Expression",
    "InvalidArguments",
    "Message",
    "Meta",
    "OpenAICompatible",
    "Program",
    "Result",
    "Sampling",
    "State",
    "Stream",
    "TokenBackend",
    "Tool",
    "ToolRun",
    "Usage",
    "gen",
    "program",
    "select",
    "set_backend",
    "tool",
    "use",
]


def __getattr__(name: str) -> Any:
    # The HTTP client is loaded with the first backend that needs it.
    if name == "BosquetServer":
        from .backends.http import BosquetServer

        return BosquetServer
    if name == "OpenAICompatible":
        from .backends.openai_compatible import OpenAICompatible

        return OpenAICompatible
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
