"""The state of a program, as its code sees it.

Knows nothing of how calls run (`branch` does). Writing to a state returns at once; reading a variable waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from ..errors import Unsupported
from ..prompts.transcript import Transcript
from ..types import Message
from .acting import acting
from .arguments import text, whole, wrong_type
from .branch import Branch
from .expressions import Expression, Gen, Piece, Sampling, Select, pieces_of
from .loop import inside_a_loop, submit
from .retry import Retry
from .run import Usage
from .tool import Tool
from .typed import shape


class State:
    """One conversation, or one text, that grows.

        s.system("Answer in one word.")
        s.user("The capital of France?")
        s.assistant(bosquet.gen("capital", max_tokens=8))
        print(s["capital"])

    A program without roles writes plain text: `s += "Q: ..."; s += bosquet.gen("answer")`.
    """

    def __init__(self, branch: Branch, defaults: Sampling | None = None) -> None:
        """`defaults` go before those of the run: a program inside another one has its own."""
        self._branch = branch
        self._defaults = Sampling() if defaults is None else defaults

    def with_defaults(self, defaults: Sampling) -> Self:
        """The same state, for the code of another program."""
        if not defaults:
            return self
        other = copy(self)
        other._defaults = Sampling(**{**self._defaults, **defaults})
        return other

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, content: str | Expression) -> None:
        """Add text, `gen(...)`, `select(...)`, or these joined by `+`, to the open turn or to the plain text."""
        for piece in self._pieces(content):
            self._add(piece)

    def _pieces(self, content: object) -> tuple[Piece, ...]:
        try:
            return pieces_of(content)
        except TypeError as error:
            raise TypeError(f"{self._program}: {error}") from None
        except Unsupported as error:
            raise Unsupported(f"{self._program}: {error}", error.capability) from None

    def _add(self, piece: Piece) -> None:
        if isinstance(piece, str):
            self._branch.write(piece)
        elif isinstance(piece, Gen):
            self._branch.call(piece.with_defaults(self._defaults))
        elif isinstance(piece, Select):
            self._branch.call(piece)
        else:
            self._branch.check(piece)

    def __iadd__(self, content: str | Expression) -> Self:
        self.append(content)
        return self

    def turn(self, role: str, *content: str | Expression) -> AbstractContextManager[State]:
        """A whole turn with this content; or, without content, a block: `with s.turn("user"): s += "..."`."""
        return self._turn(text("s.turn: role", role), content)

    def _turn(self, role: str, content: Sequence[str | Expression]) -> AbstractContextManager[State]:
        if not content:
            return _Block(self, self._branch, role)
        pieces = [piece for part in content for piece in self._pieces(part)]
        for piece in pieces:
            self._branch.check(piece)  # what is refused is refused before the turn is opened
        self._branch.open(role)
        try:
            for piece in pieces:
                self._add(piece)
        finally:
            self._branch.close()
        return _Block(self, self._branch, role, over=True)

    def system(self, *content: str | Expression) -> AbstractContextManager[State]:
        """A turn of the system's."""
        return self._turn("system", content)

    def user(self, *content: str | Expression) -> AbstractContextManager[State]:
        """A turn of the user's."""
        return self._turn("user", content)

    def assistant(self, *content: str | Expression) -> AbstractContextManager[State]:
        """A turn of the assistant's, where `gen` and `select` usually stand."""
        return self._turn("assistant", content)

    def act(
        self,
        tools: Sequence[Tool[..., Any] | Callable[..., Any]],
        *,
        name: str = "act",
        max_steps: int = 8,
        tool_choice: str = "auto",
        parallel: bool = True,
        schema: Any = None,
        strict: bool = False,
        retry: int | Retry | None = None,
        timeout: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> None:
        """Let the model answer with the help of tools, in turns of its own, and keep an `Acted` under `name`.

        A step is one answer of the model and the calls that it makes; after `max_steps` of them, or once an answer
        calls nothing, it is over. Returns at once. The calls of a step run side by side, async tools on the program's
        event loop (that of the language in a sync program, which they must not block), sync ones in threads; the
        results are added in the order of the calls. What a tool raises, and arguments that do not fit, is told to the
        model and kept in the `Acted`. `tool_choice` is "auto", "required" or the name of a tool and holds for the first
        step. Without `parallel` the model makes one call at a time. With `schema` (and `strict`), which are as for
        `gen`, an answer is either calls or what the schema says, and the `value` of the `Acted` is of its type.
        `retry` (as for `gen`) and `timeout`, in seconds, are for each answer of the model. The rest is `Sampling`, for
        each answer too.
        """
        answer = shape("s.act", schema=schema, strict=strict)
        self._branch.act(
            acting(
                tools, name, max_steps, tool_choice, parallel, timeout, retry, answer, {**self._defaults, **sampling}
            )
        )

    def entered(self, program: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of another program, to be called with this state: what it writes is known to be its own."""
        inside = partial(self._branch.run.entered, program)

        def run(*args: Any, **kwargs: Any) -> Any:
            with inside():
                return function(*args, **kwargs)

        async def arun(*args: Any, **kwargs: Any) -> Any:
            with inside():
                return await function(*args, **kwargs)

        return arun if inspect.iscoroutinefunction(function) else run

    # -- forks --------------------------------------------------------------------------------------------------------

    def fork(self, count: int) -> list[State]:
        """`count` states that go on from here, side by side. They share the tokens up to here, which are computed once.

        Text before a fork and text after it are encoded apart. A turn that is open is open in each branch, and ends
        with the branch's next turn.
        """
        return [State(branch, self._defaults) for branch in self._branch.fork(whole("s.fork: count", count))]

    def join(self, branches: Sequence[State]) -> None:
        """End the branches and take over their variables: one that they set becomes a list, in their order.

        Does not wait: reading such a list does. The branches' text is not added; say what of it is to be known.
        """
        if not isinstance(branches, Sequence) or not all(isinstance(branch, State) for branch in branches):
            raise wrong_type("s.join: branches", "a list of states from s.fork", branches)
        self._branch.join([branch._branch for branch in branches])

    # -- variables ----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The variable's value; waits for it. Raises `ProgramError` if its call failed, KeyError if there is none.

        In an async program, where waiting would block the event loop, a value that is not there yet is an error: use
        `await s.get(name)`.
        """
        variable = self._branch.variable(name)
        if not variable.ready() and inside_a_loop():
            raise RuntimeError(
                f"{self._program}: {name!r} is not there yet, and an async program must not block: "
                f"await s.get({name!r})"
            )
        return variable.read()

    async def get(self, name: str) -> Any:
        """The variable's value, awaited. Raises as `s[name]` does."""
        return await self._branch.variable(name).wait()

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable, for later steps, for `join` and for the result."""
        self._branch.set(text("s[...]: name", name), value)

    def __contains__(self, name: object) -> bool:
        return name in tuple(self._branch.names())

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._branch.names()))

    def ready(self, name: str) -> bool:
        """Whether `s[name]` would return, or raise, at once."""
        return self._branch.variable(name).ready()

    def meta(self, name: str) -> Any:
        """The `Meta` of the variable's call: token counts, cached tokens, finish reason, log-probabilities, scores. A
        list of them after `join`; None for a variable that was set. Waits as `s[name]` does."""
        variable = self._branch.variable(name)
        if not variable.ready() and inside_a_loop():
            raise RuntimeError(f"{self._program}: {name!r} is not there yet: await s.get({name!r}) first")
        return variable.meta()

    # -- what was said ------------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """Everything so far, as the model sees it; waits for the calls that are under way. Sync programs only."""
        return self._transcript("text").text

    @property
    def messages(self) -> list[Message]:
        """The turns so far, likewise."""
        return self._transcript("messages").messages

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids so far, without text that no call has needed yet; none on a message backend."""
        return self._transcript("ids").ids

    @property
    def usage(self) -> Usage:
        """Calls and tokens of the whole run up to now."""
        return self._branch.run.usage

    @property
    def _program(self) -> str:
        return self._branch.run.place("")

    def _transcript(self, what: str) -> Transcript:
        if inside_a_loop():
            raise RuntimeError(
                f"{self._program}: s.{what} may have to wait, and an async program must not block: read the result's"
            )
        return submit(self._branch.transcript()).result()


class _Block(AbstractContextManager[State]):
    """A turn that is open while the block runs; or one that is over, which cannot be a block."""

    def __init__(self, state: State, branch: Branch, role: str, *, over: bool = False) -> None:
        self._state, self._branch, self._role, self._over = state, branch, role, over

    def __enter__(self) -> State:
        if self._over:
            raise TypeError(
                f"{self._branch.run.program}: a turn with content is complete: "
                f"write s.{self._role}(...), or `with s.{self._role}():` and s += ..."
            )
        self._branch.open(self._role)
        return self._state

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._branch.close()
