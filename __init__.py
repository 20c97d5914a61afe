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

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .lang.backends.http import BosquetServer
    from .lang.backends.openai_compatible import OpenAICompatible
    from .runtime.local import LocalEngine as Engine

_LAZY = {
    "BosquetServer": ("lang.backends.http", "BosquetServer"),
    "Engine": ("runtime.local", "LocalEngine"),
    "OpenAICompatible": ("lang.backends.openai_compatible", "OpenAICompatible"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(f".{module}", __name__), attribute)
