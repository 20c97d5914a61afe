"""What all items of a `map` begin with, computed once before they start.

The beginning of the program's function is traced with placeholders for the arguments in which the items differ, up to
its first call. Only a hint: whatever goes wrong here, the items compute their prompts themselves, and say what it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

from ..prompts.tokens import encode
from ..prompts.transcript import Op, Transcript, Write
from ..types import Ahead, Call, SamplingParams
from .graph import Graph, Said, Written, tool_specs
from .loop import hop
from .passes import constant_prefix
from .run import Run

R = TypeVar("R")

WORTH: Final = 64
"""Tokens below which items had better begin at once."""
_CONTINUATIONS: Final = ("", "the", " 0")


def varying(items: Sequence[dict[str, Any]]) -> dict[str, type]:
    """The arguments in which items differ, or may differ, with the type of the first one's value."""
    found: dict[str, type] = {}
    for item in items:
        for name, value in item.items():
            if not all(name in other and _same(value, other[name]) for other in (items[0], item)):
                found.setdefault(name, type(value))
    return found | {name: type(value) for name, value in items[0].items() if any(name not in item for item in items)}


def _same(one: Any, other: Any) -> bool:
    """Plain values that are equal; others may take long to compare, or say something else than yes or no."""
    return one is other or (type(one) is type(other) and isinstance(one, str | int | float) and one == other)


def known_prefix(compile: Callable[[], Graph]) -> Transcript | None:
    """The constant prefix, not encoded yet; None if there is none."""
    try:
        graph = compile()
    except Exception:  # the function's own: each item will raise it
        return None
    written = constant_prefix(graph)
    if not any(isinstance(part, Said) for part in written):
        return None
    prefix = Transcript().write([_op(part) for part in written])
    return prefix.with_tools(next((tool_specs(step.piece) for step in graph.steps), ()))


def _op(part: Written) -> Op:
    return Write(str(part)) if isinstance(part, Said) else part


async def before(run: Run, prefix: Transcript, work: Callable[[], Awaitable[R]]) -> R:
    """Have the prefix computed, then do the work. `run` is one of its own, which lasts as long as the work does."""
    try:
        await hop(compute(run, prefix))
        return await work()
    finally:
        run.close()


async def compute(run: Run, prefix: Transcript) -> None:
    """Have the backend compute the prefix. Awaited on the language's loop."""
    try:
        ids = await _stable_ids(run, prefix)
        if len(ids) < WORTH:
            return
        run.journal.begin(run.journal.written("", 1, "prefix"))
        asked, _ = run.ask("")
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        call = Call(sampling=sampling, origin=run.origin("", "prefix"), ids=ids, ahead=Ahead(returns=True, tokens=1))
        async with aclosing(run.backend.generate(call)) as chunks:
            async for _ in chunks:
                pass
        run.journal.answered(asked, 1)
    except Exception:  # whatever a backend raises: the items will meet it, and say so
        return


async def _stable_ids(run: Run, prefix: Transcript) -> tuple[int, ...]:
    """The ids of the prefix that stay, whatever text comes after it."""
    assert run.layout is not None
    texts = [prefix.write([Write(text)] if text else []) for text in _CONTINUATIONS]
    ids = [(await encode(text, run.tokens, run.layout)).ids for text in texts]
    shared = next((i for i, same in enumerate(zip(*ids, strict=False)) if len(set(same)) > 1), min(map(len, ids)))
    return ids[0][:shared]
