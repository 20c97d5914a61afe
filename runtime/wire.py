"""The messages between an engine process and those who use it: MessagePack, one tagged union each way."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..types import ModelInfo, Output, Relaxed, Request, Stats
from .cache_view import Reuse, Tree
from .trace import Trace


class Join(Struct, tag=True):
    """A client is there; the engine answers `Hello` once it is ready."""


class Submit(Struct, tag=True):
    request: Request


class Cancel(Struct, tag=True):
    request: str


class EndRun(Struct, tag=True):
    """No request of this run will come any more."""

    tenant: str
    run: str


class AskStats(Struct, tag=True):
    token: int


class AskTree(Struct, tag=True):
    """`tenant`: whose nodes are asked for; null: everybody's."""

    token: int
    tenant: str | None = None


class AskReuse(Struct, tag=True):
    token: int


class Found(Struct, tag=True):
    """The folder of the model that the engine is about to load: its tokenizer can be read meanwhile."""

    folder: str


class Hello(Struct, tag=True):
    """The engine is ready. `incarnation` tells a restarted engine from the one before."""

    incarnation: int
    info: ModelInfo


class Accepted(Struct, tag=True, omit_defaults=True):
    """`relaxed`: what the grammar does not hold the output to."""

    request: str
    relaxed: tuple[Relaxed, ...] = ()


class Rejected(Struct, tag=True):
    """`code` is that of an error class, see errors.py."""

    request: str
    code: str
    message: str
    field: str | None = None


class Outputs(Struct, tag=True):
    """What one step produced for one client, and the records of its requests that have ended."""

    incarnation: int
    outputs: list[Output]
    traces: list[Trace] = []


class StatsReply(Struct, tag=True):
    token: int
    stats: Stats


class TreeReply(Struct, tag=True):
    token: int
    tree: Tree


class ReuseReply(Struct, tag=True):
    token: int
    reuse: Reuse


class Failed(Struct, tag=True):
    """The engine cannot start; one line why."""

    message: str


ToEngine = Join | Submit | Cancel | EndRun | AskStats | AskTree | AskReuse
FromEngine = Found | Hello | Accepted | Rejected | Outputs | StatsReply | TreeReply | ReuseReply | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
