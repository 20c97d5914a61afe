"""What a step that asks the model goes on from, and where it puts what the model writes.

Knows nothing of what is asked. Until something is put, the branch stays as it was.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ...errors import InvalidParameter
from ...prompts.tokens import encode
from ...prompts.transcript import Close, Transcript
from ...types import Origin, ToolSpec
from .generation import Delta, Generation
from .keys import Caller
from .program_branch import Branch, Draft
from .program_runs import Hold, OpenRun, closed


class StepGeneration(Generation):
    """A generation of a run: known to it, so that closing the run ends it. When it is closed its branch is let go."""

    _run: OpenRun
    _hold: Hold | None

    def belongs_to(self, run: OpenRun, hold: Hold | None = None) -> None:
        """Said once, before it is started."""
        self._run, self._hold = run, hold

    async def start(self) -> None:
        await super().start()
        if self._run.closed:
            await self.close()
            raise closed(self._run.id)
        self._run.generations.add(self)

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        async with aclosing(super().deltas()) as flow:
            async for deltas in flow:
                yield deltas
        if self._run.closed:
            raise closed(self._run.id)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self._run.generations.discard(self)
            if self._hold is not None:
                self._hold.let_go()


class Written:
    """What the model goes on from in a branch, and where what it writes goes."""

    def __init__(self, run: OpenRun, branch: Branch, name: str | None) -> None:
        self.run = run
        self.branch = branch
        self.name = name
        self.draft = Draft(branch)
        self._own_turn = self.draft.begin_answer()
        self.prompt = self.draft.flush()

    async def encode(self, tools: tuple[ToolSpec, ...] = ()) -> list[int]:
        """The prompt's ids, told of `tools` if there are any. Raises TemplateFailed, and InvalidParameter for none."""
        prompt = self.prompt.with_tools(tools) if tools else self.prompt
        self.prompt = await encode(prompt, self.run.side, self.run.layout)
        if not self.prompt.ids:
            raise InvalidParameter("branch: there is no text to go on from", "branch")
        return list(self.prompt.ids)

    def origin(self, caller: Caller) -> Origin:
        step = self.name or f"#{self.branch.steps + 1}"
        return Origin(caller.tenant, self.run.name, self.run.id, step, self.branch.path)

    def put(self, said: Transcript, value: str) -> None:
        """It goes on in the branch itself."""
        self.draft.transcript = said
        if self._own_turn:
            self.draft.close("branch")
        self.draft.put()
        self._note(self.branch, value)

    def put_apart(self, said: Transcript, value: str) -> None:
        """It goes on in a branch of its own."""
        child = self.branch.fork(said.write([Close()]) if self._own_turn else said)
        self._note(child, value)
        self.run.add(child)

    def _note(self, branch: Branch, value: str) -> None:
        branch.steps += 1
        if self.name is not None:
            branch.values[self.name] = value
