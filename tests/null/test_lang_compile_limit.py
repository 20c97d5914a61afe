"""Programs that write for ever are followed up to a limit."""

from __future__ import annotations

import bosquet.lang as bosquet
from bosquet.lang import State, gen
from bosquet.lang.tracing import MOST


def test_an_endless_program_is_followed_up_to_a_limit() -> None:
    @bosquet.program
    def loop(s: State) -> None:
        while True:
            s.user("x")
            s.assistant(gen("y"))

    @bosquet.program
    async def aloop(s: State) -> None:
        while True:
            s.user("x")

    @bosquet.program
    def wide(s: State, count: int) -> None:
        s.user("x")
        for branch in s.fork(count):
            branch.assistant(gen("y"))

    for graph in (loop.compile(), aloop.compile(), wide.compile(MOST - 2), wide.compile(100_000)):
        assert graph.ending is not None
        assert f"more than {MOST:,} texts, steps and branches" in graph.ending.why
        assert graph.ending.line > 0
        assert not graph.ending.fault
        assert len(graph.nodes) <= MOST
    assert wide.compile(MOST // 2 - 2).is_static
