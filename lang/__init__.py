"""The language: agent programs in Python that run on any backend.

Importing it loads nothing heavy; a backend brings its own needs when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..types import Call, Chunk, Message
from .acting import Acted, ActStep
from .backend import CAPABILITIES, TOKEN_CAPABILITIES, Backend, TokenBackend
from .budget import Budget
from .defaults import set_backend, use
from .expressions import Expression, Image, Sampling, gen, image, select
from .graph import Graph
from .learnt import set_learning
from .program import Program, program
from .replay import Replayed, areplay, replay
from .result import Result
from .retry import Retry
from .run import Usage
from .running import Running
from .saved import SavedState, load_state
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
    "Budget",
    "Call",
    "Chunk",
    "Expression",
    "Graph",
    "Image",
    "InvalidArguments",
    "Message",
    "Meta",
    "OpenAICompatible",
    "Program",
    "Replayed",
    "Result",
    "Retry",
    "Running",
    "Sampling",
    "SavedState",
    "State",
    "Stream",
    "TokenBackend",
    "Tool",
    "ToolRun",
    "Usage",
    "areplay",
    "gen",
    "image",
    "load_state",
    "program",
    "replay",
    "select",
    "set_backend",
    "set_learning",
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
