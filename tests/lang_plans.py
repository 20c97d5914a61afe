"""A program with a fork, and what its calls told the backend of what is ahead."""

from __future__ import annotations

from fakes_lang import FakeBackend

import bosquet.lang as bosquet
from bosquet.lang import State, gen
from bosquet.types import Ahead


def told(backend: FakeBackend) -> dict[tuple[str, str], Ahead]:
    return {(call.origin.branch, call.origin.step): call.ahead for call in backend.calls}


@bosquet.program(temperature=0, max_tokens=4)
def tree(s: State, topic: str, width: int = 2) -> str:
    s.user(f"Tell of {topic}.")
    s.assistant(gen("plan"))
    branches = s.fork(width)
    for branch in branches:
        branch.user("More.")
        branch.assistant(gen("more"))
        branch.user("And more.")
        branch.assistant(gen("most"))
    s.join(branches)
    s.user("".join(f"{text} " for text in s["most"]))
    s.assistant(gen("end"))
    return s["end"]
