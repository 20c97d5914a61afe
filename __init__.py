"""Bosquet: a runtime for agent programs on language models.

    import bosquet

    @bosquet.program
    def greet(s, name):
        s.user(f"Greet {name} in one sentence.")
        s.assistant(bosquet.gen("greeting", max_tokens=40))

    with bosquet.Engine() as engine:
        print(greet.run(name="Ada", backend=engine)["greeting"])

What is heavy (torch, the server, HTTP clients) is imported by what needs it, when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"  # before the imports: rooms read it

from .errors import BosquetError, ModelLoadError, Overloaded, ProgramError, RequestRejected, Unavailable, Unsupported
from .lang import (
    Acted,
    ActStep,
    AsyncStream,
    Backend,
    InvalidArguments,
    Meta,
    Program,
    Result,
    State,
    Stream,
    Tool,
    ToolRun,
    Usage,
    gen,
    program,
    select,
    set_backend,
    tool,
    use,
)

if TYPE_CHECKING:
    from .lang.backends.http import BosquetServer
    from .lang.backends.openai_compatible import OpenAICompatible
    from .runtime.local import LocalEngine as Engine

__all__ = [
    "ActStep",
    "Acted",
    "AsyncStream",
    "Backend",
    "BosquetError",
    "BosquetServer",
    "Engine",
    "InvalidArguments",
    "Meta",
    "ModelLoadError",
    "OpenAICompatible",
    "Overloaded",
    "Program",
    "ProgramError",
    "RequestRejected",
    "Result",
    "State",
    "Stream",
    "Tool",
    "ToolRun",
    "Unavailable",
    "Unsupported",
    "Usage",
    "__version__",
    "gen",
    "program",
    "select",
    "set_backend",
    "tool",
    "use",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from .runtime.local import LocalEngine

        return LocalEngine
    if name in ("BosquetServer", "OpenAICompatible"):
        from . import lang  # which loads them when they are first named

        return getattr(lang, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
