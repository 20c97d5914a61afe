"""A run's state as data: its ids, turns and variables, to be kept in a file, gone on from, or made again.

Knows nothing of how programs run. The file is JSON with a version and a checksum, so that what was cut, edited or meant
for another version is refused; `VERSION` goes up when its form changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from ..errors import ProgramError, StateInvalid
from ..prompts.text_side import TextSide
from ..prompts.transcript import Close, Gap, Op, Open, Transcript, Turn, Write
from ..types import Message, Segment, ToolSpec
from .calls import Span
from .run import Run
from .values import Given, Meta, Promised, Variable

FORMAT: Final = "bosquet state"
VERSION: Final = 1
_PROBE: Final = (
    "The 2nd cañón, 日本語 and Ελληνικά:\n\n\tif (x[0] != 3.14159) {\r\n    return 'naïve';  } // 🌳 don't 12345678"
)
_MARKS: Final = "<s></s><|im_start|><|im_end|><|eot_id|><|endoftext|><start_of_turn><｜end▁of▁sentence｜>[INST]"


_vocabularies: WeakKeyDictionary[TextSide, str] = WeakKeyDictionary()


async def vocabulary_of(backend: TextSide) -> str:
    """What ids mean to a backend: a digest that is the same for the same tokenizer, whatever the model's weights. Two
    texts tell, one of them made of special strings."""
    ids = [await backend.encode([Segment(_PROBE, False)]), await backend.encode([Segment(_MARKS, True)])]
    return hashlib.sha256(msgspec.json.encode([await backend.text_start(), *ids])).hexdigest()


async def vocabulary_of_run(run: Run) -> str:
    """That of the run's backend, asked for once; empty where it carries chat messages."""
    if not run.carries_tokens:
        return ""
    known = _vocabularies.get(run.tokens)
    if known is None:
        known = _vocabularies[run.tokens] = await vocabulary_of(run.tokens)
    return known


async def check_vocabulary(kept: str, run: Run) -> None:
    """Raises `StateInvalid` unless a state with this vocabulary can be gone on from in the run."""
    now = await vocabulary_of_run(run)
    if bool(kept) != bool(now):
        had, has = ("token ids", "chat messages") if kept else ("chat messages", "token ids")
        raise StateInvalid(f"the state was saved from a backend that carries {had}, and {run.backend!r} carries {has}")
    if kept != now:
        raise StateInvalid(f"the state's token ids are of another vocabulary than that of {run.backend!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """Where the main branch of a run had come to. Variables are read as on a result.

    `vocabulary` tells what the ids mean; it is empty where a backend of chat messages had the run, which has no ids.
    """

    program: str
    run: str
    vocabulary: str
    transcript: Transcript = field(repr=False)
    variables: Mapping[str, Variable] = field(repr=False)
    spans: tuple[Span, ...] = field(default=(), repr=False)

    def __getitem__(self, name: str) -> Any:
        """A variable's value, as JSON has it. Raises the `ProgramError` of a call that had failed; KeyError."""
        return self.variables[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __contains__(self, name: object) -> bool:
        return name in self.variables

    def meta(self, name: str) -> Any:
        """The `Meta` of the variable's call."""
        return self.variables[name].meta()

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids up to the last call."""
        return self.transcript.ids

    @property
    def text(self) -> str:
        """All that was said, as the model saw it."""
        return self.transcript.text

    @property
    def messages(self) -> list[Message]:
        """The turns."""
        return self.transcript.messages

    async def known_vocabulary(self) -> str:
        """`vocabulary`, as a run asks for it."""
        return self.vocabulary

    def write(self, path: str | os.PathLike[str]) -> None:
        """Keep it in a file, in place of what was there, at once or not at all. Raises TypeError or ValueError for a
        variable that JSON cannot say, and names it."""
        state = msgspec.json.encode(_to_file(self))
        file = _File(FORMAT, VERSION, hashlib.sha256(state).hexdigest(), msgspec.Raw(state))
        target = Path(path)
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            aside.write_bytes(msgspec.json.encode(file))
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)


def load_state(path: str | os.PathLike[str]) -> SavedState:
    """A state from the file that `Result.save` made. Raises `StateInvalid` for any other, and OSError."""
    raw = Path(path).read_bytes()
    try:
        file = msgspec.json.decode(raw, type=_File)
        if file.format != FORMAT:
            raise StateInvalid(f"{path}: no saved state, but {file.format[:40]!r}")
        if file.version != VERSION:
            raise StateInvalid(f"{path}: a state of version {file.version}, and this Bosquet reads version {VERSION}")
        if hashlib.sha256(bytes(file.state)).hexdigest() != file.sha256:
            raise StateInvalid(f"{path}: the state is not as it was saved: its checksum differs")
        return _from_file(msgspec.json.decode(file.state, type=_State))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StateInvalid(f"{path}: no saved state: {error}") from error


# -- the file -------------------------------------------------------------------------------------------------------


class _File(msgspec.Struct):
    format: str
    version: int
    sha256: str
    state: msgspec.Raw


class _Op(msgspec.Struct, omit_defaults=True):
    """`kind` is "open", "write" or "close"; `text` is the role of what opens."""

    kind: str
    text: str = ""
    answers: str = ""
    name: str = ""


class _Variable(msgspec.Struct, omit_defaults=True):
    value: Any = None
    meta: Any = None
    error: str | None = None
    step: str = ""


class _State(msgspec.Struct, kw_only=True):
    program: str
    run: str
    vocabulary: str
    turns: tuple[Turn, ...]
    open: bool
    plain: str
    ids: tuple[int, ...]
    rendered: str
    gaps: tuple[Gap, ...]
    tail: Gap
    pending: tuple[_Op, ...]
    tools: tuple[ToolSpec, ...]
    variables: dict[str, _Variable]
    spans: tuple[Span, ...]


def _to_file(saved: SavedState) -> _State:
    said = saved.transcript
    return _State(
        program=saved.program,
        run=saved.run,
        vocabulary=saved.vocabulary,
        turns=said.turns,
        open=said.open,
        plain=said.plain,
        ids=said.ids,
        rendered=said.rendered,
        gaps=said.gaps,
        tail=said.tail,
        pending=tuple(_op_to_file(op) for op in said.pending),
        tools=said.tools,
        variables={name: _variable_to_file(name, variable) for name, variable in saved.variables.items()},
        spans=saved.spans,
    )


def _from_file(state: _State) -> SavedState:
    said = Transcript(
        turns=state.turns,
        open=state.open,
        plain=state.plain,
        ids=state.ids,
        rendered=state.rendered,
        gaps=state.gaps,
        tail=state.tail,
        pending=tuple(_op_from_file(op) for op in state.pending),
        tools=state.tools,
    )
    variables = {name: _variable_from_file(state.program, variable) for name, variable in state.variables.items()}
    return SavedState(
        program=state.program,
        run=state.run,
        vocabulary=state.vocabulary,
        transcript=said,
        variables=variables,
        spans=state.spans,
    )


def _op_to_file(op: Op) -> _Op:
    match op:
        case Open():
            return _Op("open", op.role, op.answers, op.name)
        case Write():
            return _Op("write", op.text)
        case Close():
            return _Op("close")


def _op_from_file(op: _Op) -> Op:
    match op.kind:
        case "open":
            return Open(op.text, op.answers, op.name)
        case "write":
            return Write(op.text)
        case "close":
            return Close()
    raise msgspec.ValidationError(f"an unknown part {op.kind!r}")


def _variable_to_file(name: str, variable: Variable) -> _Variable:
    try:
        value = variable.read()
    except ProgramError as error:
        return _Variable(error=str(error), step=error.step)
    try:
        plain = msgspec.to_builtins(value, enc_hook=_plain)
        json.dumps(plain, allow_nan=False)
        meta = msgspec.to_builtins(variable.meta(), enc_hook=_plain)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the variable {name!r} cannot be saved as JSON: {error}") from None
    return _Variable(plain, meta)


def _plain(value: Any) -> Any:
    """What has no form of its own in JSON, as something that has one."""
    if hasattr(value, "model_dump"):  # of pydantic
        return value.model_dump(mode="json")
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    raise TypeError(f"{type(value).__name__} is no JSON")


def _variable_from_file(program: str, variable: _Variable) -> Variable:
    if variable.error is None:
        return Given(variable.value, _meta_from_file(variable.meta))
    failed = Promised()
    failed.fail(ProgramError(variable.error, program=program, step=variable.step))
    return failed


def _meta_from_file(meta: Any) -> Any:
    if isinstance(meta, list):
        return [_meta_from_file(entry) for entry in meta]
    return None if meta is None else msgspec.convert(meta, Meta, dec_hook=lambda kind, said: kind(said))
