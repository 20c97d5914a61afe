"""What a run leaves behind.

Knows nothing of how it came about; nothing here waits, but for saving.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from ..errors import ProgramError
from ..prompts.transcript import Transcript
from ..types import Message
from .branch import Branch
from .calls import Span
from .loop import hop, inside_a_loop, submit
from .run import Usage
from .saved import SavedState, vocabulary_of_run
from .values import Variable

R = TypeVar("R")


class Result(Generic[R]):
    """Variables, text and costs of one run.

    `result["name"]` is a variable of the main branch; `result.value` is what the program's function returned. `error`
    is what the function raised, or the first failure of a call that the program did not ask about; reading what failed
    raises it.
    """

    def __init__(
        self, branch: Branch, said: Transcript | ProgramError, value: R | None, raised: Exception | None
    ) -> None:
        self._branch = branch
        self._said = said
        self._value = value
        self._raised = raised
        self.error: BaseException | None = raised or branch.run.unseen_error()

    @property
    def program(self) -> str:
        return self._branch.run.program

    @property
    def run_id(self) -> str:
        return self._branch.run.id

    @property
    def usage(self) -> Usage:
        """Calls and tokens of the run, all branches together."""
        return self._branch.run.usage

    @property
    def value(self) -> R:
        """What the function returned. Raises what it raised."""
        if self._raised is not None:
            raise self._raised
        return self._value  # type: ignore[return-value]  # R may be None itself

    def __getitem__(self, name: str) -> Any:
        """A variable. Raises the `ProgramError` of its call; KeyError if there is none."""
        if name not in self and self._raised is not None:
            raise self._raised
        return self._branch.variable(name).read()

    def __contains__(self, name: object) -> bool:
        return name in self._branch.own

    def __iter__(self) -> Iterator[str]:
        """Names of the variables, in the order in which they were first set."""
        return iter(self._branch.own)

    def meta(self, name: str) -> Any:
        """The `Meta` of the variable's call, a list of them after `join`, None for a variable that was set."""
        return self._branch.variable(name).meta()

    @property
    def text(self) -> str:
        """The main branch as the model saw it. Raises the `ProgramError` of its first call that failed."""
        return self._transcript.text

    @property
    def messages(self) -> list[Message]:
        """The main branch's turns, likewise."""
        return self._transcript.messages

    @property
    def ids(self) -> tuple[int, ...]:
        """The main branch's token ids up to its last call, likewise; none on a message backend."""
        return self._transcript.ids

    def left(self) -> tuple[Transcript, dict[str, Variable], tuple[Span, ...]]:
        """What another run can go on from. Raises as `text`."""
        return self._transcript, dict(self._branch.own), tuple(self._branch.spans)

    async def vocabulary(self) -> str:
        """What the ids mean: see `SavedState`. Awaited on the language's loop."""
        return await vocabulary_of_run(self._branch.run)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep the main branch (text, ids and variables) in a file, for `load_state`. Raises as `text`, and TypeError
        or ValueError for a variable that JSON cannot say. Inside an event loop: await `asave`."""
        if inside_a_loop():
            raise RuntimeError(f"saving the result of {self.program} would block the loop that runs here: await asave")
        submit(self._saved()).result().write(path)

    async def asave(self, path: str | os.PathLike[str]) -> None:
        """The same, awaited."""
        (await hop(self._saved())).write(path)

    async def _saved(self) -> SavedState:
        transcript, variables, spans = self.left()
        return SavedState(
            program=self.program,
            run=self.run_id,
            vocabulary=await self.vocabulary(),
            transcript=transcript,
            variables=variables,
            spans=spans,
        )

    @property
    def _transcript(self) -> Transcript:
        if isinstance(self._said, ProgramError):
            raise self._said
        return self._said

    def __repr__(self) -> str:
        outcome = f"error={self.error!r}" if self.error else f"variables={list(self)}"
        return f"<Result of {self.program}: {outcome}>"
