"""Stand-ins for values that only a run has, for functions that are traced.

A placeholder may be written into text: the text then holds a mark, which `Marks.parts` finds again. What needs the
value itself raises `DataDependent`, a BaseException, so that no `except Exception` of a program takes it for an answer.
Knows nothing of states or branches.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

from .expressions import Expression, Joined, Piece, pieces_of
from .raised import Place, innermost, raised_in, said

_TEXT_METHODS: Final = (
    "strip lstrip rstrip lower upper title capitalize casefold swapcase replace removeprefix removesuffix expandtabs "
    "ljust rjust center zfill"
)
"""Methods of a text whose result is a text."""

_ENDS: Final = "\ue001"


class Ref(NamedTuple):
    """A value that is not known before the run, where it stands in a text. `label` says it as the program does;
    `nodes` are the steps that make it and `arguments` the arguments that it comes from."""

    label: str
    nodes: tuple[int, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Where the static part of a program ends: the line that needs a value which only a run has. `fault`: the line
    has raised something that says nothing of such a value, so that a run with these arguments would fail there too."""

    file: str
    line: int
    function: str
    variable: str
    why: str
    fault: bool = False

    def __str__(self) -> str:
        return f"line {self.line}, in {self.function}: {self.why}"


class DataDependent(BaseException):
    """The traced function needs a value that only a run has."""


class Marks:
    """The placeholders of one trace, and the texts that stand for them. `files` are those of the traced functions."""

    def __init__(self, files: set[str]) -> None:
        self.files = files
        self.ending: Ending | None = None
        self.last_read = ""
        self._refs: list[Ref] = []
        self._begins = f"\ue000{secrets.token_hex(4)}."  # a mark, which no text of the program's has in it

    def new(self, ref: Ref, kind: type = str) -> Placeholder:
        """A placeholder for a value of this kind."""
        self._refs.append(ref)
        return Placeholder(self, f"{self._begins}{len(self._refs) - 1}{_ENDS}", kind)

    def parts(self, text: str) -> tuple[str | Ref, ...]:
        """The text, with what its marks stand for."""
        first, *others = text.split(self._begins)
        parts: list[str | Ref] = [first]
        for other in others:
            number, ends, after = other.partition(_ENDS)
            parts += (self._refs[int(number)], after) if ends else (self._begins + other,)  # some texts are cut
        return tuple(part for part in parts if part)

    def readable(self, text: str) -> str:
        """The text for people."""
        return "".join(part if isinstance(part, str) else part.label for part in self.parts(text))

    def derived(self, text: str, label: str) -> Placeholder:
        """A text that is made from what the marks in `text` stand for."""
        refs = [part for part in self.parts(text) if isinstance(part, Ref)]
        nodes = dict.fromkeys(node for ref in refs for node in ref.nodes)
        arguments = dict.fromkeys(name for ref in refs for name in ref.arguments)
        return self.new(Ref(label, tuple(nodes), tuple(arguments)))

    def stop(self, variable: str, why: str) -> NoReturn:
        """The static part ends on the line of the program that runs now."""
        if self.ending is None:
            self.ending = Ending(**self._at(_frames(sys._getframe(1))), variable=variable, why=why)
        raise DataDependent(str(self.ending))

    def failed(self, error: BaseException) -> None:
        """The function has raised something, which may well come of a placeholder that stood for another value."""
        if self.ending is None:
            why = said(error)
            readable = self.readable(why)
            fault = readable == why and not any(kind.__name__ in why for kind in (Placeholder, MarkedText))
            place = raised_in(error, self.files)._asdict()
            self.ending = Ending(**place, variable=self.last_read, why=readable, fault=fault)

    def waits(self, coroutine: Any) -> None:
        """The async function waits for something that is not ours."""
        frames: list[Place] = []
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            frames.append(Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            coroutine = coroutine.cr_await
        if self.ending is None:
            why = "it waits for something outside the program"
            self.ending = Ending(**self._at(reversed(frames)), variable=self.last_read, why=why)

    def _at(self, frames: Iterable[Place]) -> dict[str, Any]:
        """Where the program is, of these frames."""
        return innermost(frames, self.files)._asdict()

    def __len__(self) -> int:
        return len(self._refs)


class Placeholder(Expression):
    """The value of a variable that has not been generated, or an argument that has not been given."""

    __slots__ = ("_kind", "_marks", "_text")

    def __init__(self, marks: Marks, text: str, kind: type) -> None:
        self._marks, self._text, self._kind = marks, text, kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind  # so that isinstance tells what the value will be

    @property
    def _label(self) -> str:
        return self._marks.readable(self._text)

    def pieces(self) -> tuple[Piece, ...]:
        return (self._text,)

    # -- what keeps it a placeholder ----------------------------------------------------------------------------------

    def __str__(self) -> str:
        return MarkedText(self)

    def __format__(self, spec: str) -> str:
        return MarkedText(self._marks.derived(self._text, f"{self._label}:{spec}") if spec else self)

    def __repr__(self) -> str:
        return MarkedText(self._marks.derived(self._text, f"{self._label}!r"))

    def __add__(self, other: Any) -> Any:
        if isinstance(other, str):
            return Placeholder(self._marks, self._text + plain(other), str)
        if isinstance(other, Expression):
            return Joined((self._text, *pieces_of(other)))
        self._marks.stop(self._label, f"'+' needs the value of {self._label}")

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, str):
            return Placeholder(self._marks, plain(other) + self._text, str)
        self._marks.stop(self._label, f"'+' needs the value of {self._label}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _TEXT_METHODS.split() or not issubclass(self._kind, str):
            self._marks.stop(self._label, f".{name} needs the value of {self._label}")

        def method(*args: Any, **kwargs: Any) -> Placeholder:
            given = ", ".join([*map(_shown, args), *(f"{key}={_shown(value)}" for key, value in kwargs.items())])
            text = self._text + "".join(plain(str(arg)) for arg in args)
            return self._marks.derived(text, f"{self._label}.{name}({self._marks.readable(given)})")

        return method


def _shown(value: Any) -> str:
    return value._label if type(value) is Placeholder else repr(value)


class MarkedText(str):
    """What `str()` makes of a placeholder: a text that may be written, and asked as little as the placeholder. Other
    texts that it goes into know nothing of it."""

    _placeholder: Placeholder

    def __new__(cls, placeholder: Placeholder) -> MarkedText:
        made = super().__new__(cls, placeholder._text)
        made._placeholder = placeholder
        return made

    def __str__(self) -> str:
        return self

    def __format__(self, spec: str) -> str:
        return format(self._placeholder, spec)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattribute__(name)
        return getattr(self._placeholder, name)


def plain(text: Any) -> str:
    """A text, or a placeholder for one, as a text with marks."""
    return text._text if type(text) is Placeholder else str.__str__(text)


def _needing(name: str) -> Callable[..., NoReturn]:
    def needs(self: Placeholder, *args: Any, **kwargs: Any) -> NoReturn:
        self._marks.stop(self._label, f"{_SAID.get(name, name)} needs the value of {self._label}")

    needs.__name__ = f"__{name}__"
    return needs


_SAID: Final = {
    "bool": "a condition", "eq": "'=='", "ne": "'!='", "lt": "'<'", "le": "'<='", "gt": "'>'", "ge": "'>='",
    "len": "len()", "iter": "iteration", "next": "iteration", "getitem": "[...]", "contains": "'in'", "int": "int()",
    "float": "float()", "index": "a whole number", "hash": "a look-up", "mul": "'*'", "rmul": "'*'", "mod": "'%'",
    "call": "a call", "sub": "'-'", "rsub": "'-'", "fspath": "a path",
}  # fmt: skip
_OTHERS: Final = (
    "rmod truediv rtruediv floordiv rfloordiv pow rpow neg pos abs invert round complex bytes setitem delitem enter "
    "exit aenter aexit await aiter anext reversed and or xor lshift rshift"
)
for _name in (*_SAID, *_OTHERS.split()):
    setattr(Placeholder, f"__{_name}__", _needing(_name))


def _asking(name: str) -> Callable[..., Any]:
    return lambda text, *args: getattr(text._placeholder, name)(*args)


for _name in "eq ne lt le gt ge len iter getitem contains hash mul rmul mod add".split():  # noqa: SIM905
    setattr(MarkedText, f"__{_name}__", _asking(f"__{_name}__"))


# -- where we are -----------------------------------------------------------------------------------------------------


def _frames(frame: FrameType | None) -> Iterator[Place]:
    """Innermost first."""
    while frame is not None:
        yield Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def line_of(files: set[str]) -> int:
    """The line of these files that runs now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in files:
        frame = frame.f_back
    return 0 if frame is None else frame.f_lineno


# -- what must not happen while a function is traced -------------------------------------------------------------------

_tracing: ContextVar[Marks | None] = ContextVar("bosquet_tracing", default=None)


@contextmanager
def tracing(marks: Marks) -> Iterator[None]:
    """Functions called inside are traced."""
    token = _tracing.set(marks)
    try:
        yield
    finally:
        _tracing.reset(token)


def leaves_the_trace(what: str) -> None:
    """Raises `DataDependent` while a function is traced, which must not do `what`: it has effects, or needs a model."""
    marks = _tracing.get()
    if marks is not None:
        marks.stop(marks.last_read, what)
