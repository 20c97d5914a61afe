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

from .errors import (
    BosquetError,
    BudgetExceeded,
    ModelLoadError,
    Overloaded,
    ProgramError,
    RequestRejected,
    StateInvalid,
    Unavailable,
    Unsupported,
)
from .lang import (
    Acted,
    ActStep,
    AsyncStream,
    Backend,
    Budget,
    Graph,
    Image,
    InvalidArguments,
    Meta,
    Program,
    Replayed,
    Result,
    Retry,
    Running,
    SavedState,
    State,
    Stream,
    Tool,
    ToolRun,
    Usage,
    areplay,
    gen,
    image,
    load_state,
    program,
    replay,
    select,
    set_backend,
    set_learning,
    tool,
    use,
)
from .lang.learnt import keep_in as _keep_in
from .runtime.env import cache_dir as _cache_dir

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
    "Budget",
    "BudgetExceeded",
    "Engine",
    "Graph",
    "Image",
    "InvalidArguments",
    "Meta",
    "ModelLoadError",
    "OpenAICompatible",
    "Overloaded",
    "Program",
    "ProgramError",
    "Replayed",
    "RequestRejected",
    "Result",
    "Retry",
    "Running",
    "SavedState",
    "State",
    "StateInvalid",
    "Stream",
    "Tool",
    "ToolRun",
    "Unavailable",
    "Unsupported",
    "Usage",
    "__version__",
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


_keep_in(_cache_dir)  # what runs of programs have shown; the language may not know where


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from .runtime.local import LocalEngine

        return LocalEngine
    if name in ("BosquetServer", "OpenAICompatible"):
        from . import lang  # which loads them when they are first named

        return getattr(lang, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
