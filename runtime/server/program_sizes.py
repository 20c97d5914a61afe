"""About how many bytes the branches of a run hold. What several of them share, such as what was said before a fork, is
in memory once and is counted once, for as long as any of them holds it.

Knows nothing of runs or of limits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...prompts.transcript import Transcript, Turn, Write
from .program_branch import Branch

BRANCH_BYTES = 2000
"""Of a branch that has said nothing of its own yet."""
_TURN_BYTES = 1000  # with its place in the template, and in what the template has answered lately


@dataclass(slots=True)
class _Held:
    thing: Any  # kept, so that no other object gets its address
    size: int  # when it came: a text's may change
    holders: int = 0


class Holdings:
    """`size` is that of all branches noted. Transcripts and values never change, branches do: they are noted again."""

    def __init__(self) -> None:
        self.size = 0
        self._held: dict[int, _Held] = {}  # by address
        self._noted: dict[str, list[Any]] = {}  # what each branch held

    def note(self, branch: Branch) -> None:
        """It is new, or has changed."""
        before, now = self._noted.get(branch.path), [branch.transcript, *branch.values, *branch.values.values()]
        self.size += BRANCH_BYTES if before is None else 0
        self._take(now)
        self._release(before or ())
        self._noted[branch.path] = now

    def forget(self, branch: Branch) -> None:
        """It is over."""
        self._release(self._noted.pop(branch.path))
        self.size -= BRANCH_BYTES

    def _take(self, things: Iterable[Any]) -> None:
        for thing in things:
            held = self._held.get(id(thing))
            if held is None:
                held = self._held[id(thing)] = _Held(thing, _own_size(thing))
                self.size += held.size
                self._take(_parts(thing))
            held.holders += 1

    def _release(self, things: Iterable[Any]) -> None:
        for thing in things:
            held = self._held[id(thing)]
            held.holders -= 1
            if not held.holders:
                del self._held[id(thing)]
                self.size -= held.size
                self._release(_parts(thing))


def _own_size(thing: Any) -> int:
    return sys.getsizeof(thing) + (_TURN_BYTES if isinstance(thing, Turn) else 0)


def _parts(thing: Any) -> Iterable[Any]:
    """What it holds that is counted by itself: a transcript's turns and texts, and the values that a join has made."""
    match thing:
        case Transcript():
            pending = [op.text for op in thing.pending if isinstance(op, Write)]
            return [thing.ids, thing.rendered, thing.plain, *thing.turns, *pending]
        case Turn():
            return [thing.text, thing.content, *(call.arguments for call in thing.calls)]
        case list():
            return thing
    return ()
