"""Traces of requests, by lengths and prefix blocks alone, made into runs of requests with token ids.

Two forms, a JSON object a line, plain or gzip: with `conversation` and `agent` (one id a full block, local to the
conversation), and the Mooncake form without them (one id a block for the whole file, the last partial block included).
Equal ids mean equal prefixes. Where a trace names no runs they are inferred: see `_infer_runs`.

What a trace does not say is made up so that a conversation appends only: where a request goes on from all whole blocks
of the one before it, that one's last tokens and its answer are what the next has in their place.
"""

from __future__ import annotations

import gzip
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from ...errors import ConfigError

Ids = npt.NDArray[np.int32]

BLOCKS = tuple(1 << power for power in range(4, 13))
"""Lengths of block that a trace may have, in tokens."""


class Record(msgspec.Struct):
    """A line of a trace; times in milliseconds, null where they are not known."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    conversation: str = ""
    agent: int = 0
    api_time_ms: float | None = None
    think_time_ms: float | None = None


@dataclass(slots=True)
class Turn:
    """One request. `starts` has the first token id of each whole block, whose ids are consecutive; `rest` follows them.
    `pause_s`: between the end of the turn before it, or of whatever the stream began after, and this one."""

    starts: Ids
    rest: Ids
    answer: Ids
    pause_s: float

    def prompt(self, block: int) -> Ids:
        whole = (self.starts[:, None] + np.arange(block, dtype=np.int32)).ravel()
        return np.concatenate((whole, self.rest))

    def length(self, block: int) -> int:
        return len(self.starts) * block + len(self.rest)


@dataclass(slots=True)
class Stream:
    """Turns, one after the other. It begins when turn `after` of the first stream has ended; None: with the run."""

    after: int | None
    turns: list[Turn] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """One run of an agent program, or one conversation: its main stream, and those of sub-agents."""

    name: str
    streams: list[Stream]

    @property
    def turns(self) -> Iterator[Turn]:
        return (turn for stream in self.streams for turn in stream.turns)

    @property
    def blocks(self) -> int:
        """Distinct whole blocks of its prompts."""
        return len(np.unique(np.concatenate([turn.starts for turn in self.turns])))

    @property
    def pauses_s(self) -> float:
        return sum(turn.pause_s for turn in self.turns)


@dataclass(slots=True)
class Trace:
    """Lengths are those of the file divided by `scale`; `block` tokens, after that, have one id in the file."""

    name: str
    runs: list[Run]
    block: int
    scale: int
    inferred: bool

    def first(self, count: int, seed: int) -> Trace:
        """So many runs (0: all), in an order drawn from `seed`."""
        runs = list(self.runs)
        random.Random(seed).shuffle(runs)
        return Trace(self.name, runs[: count or None], self.block, self.scale, self.inferred)

    @property
    def requests(self) -> int:
        return sum(len(stream.turns) for run in self.runs for stream in run.streams)


def read(path: str, scale: int) -> Trace:
    """Raises `ConfigError` for what is no trace, and for a scale that does not divide its blocks."""
    records = _records(path)
    block = _block(records, path)
    if scale < 1 or block % scale:
        raise ConfigError(f"--scale {scale}: it must divide the {block} tokens of a block of {path}")
    inferred = not records[0].conversation
    if inferred:
        _infer_runs(records)
    maker = _Maker(block, scale, local=not inferred)
    grouped: dict[str, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        grouped[record.conversation][record.agent].append(record)
    runs = [maker.run(name, agents) for name, agents in grouped.items()]
    return Trace(Path(path).name.partition(".")[0], runs, block // scale, scale, inferred)


def _records(path: str) -> list[Record]:
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        decoder = msgspec.json.Decoder(Record)
        records = [decoder.decode(line) for line in data.splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"--trace {path}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, EOFError) as error:
        raise ConfigError(f"--trace {path}: a line is not in the form of a trace: {error}") from None
    if not records:
        raise ConfigError(f"--trace {path}: there is no request in it")
    return records


def _block(records: Sequence[Record], path: str) -> int:
    """The length of a block: what makes the number of ids of every request right, rounded down or up."""
    for block in BLOCKS:
        if all(len(r.hash_ids) in (r.input_length // block, -(-r.input_length // block)) for r in records):
            return block
    raise ConfigError(f"--trace {path}: no length of block gives each request its number of hash_ids")


def _infer_runs(records: list[Record]) -> None:
    """Name the run of each request. It goes on with the run that it shares the longest chain of blocks with, if that
    is at least half of the chain of the run's latest request: turns of a conversation, or questions about a text.
    A shorter one is a common opening, such as a system prompt. A turn comes after the one before it."""
    owner: dict[int, int] = {}  # block → the latest run that had it
    chain: list[int] = []  # of each run's latest request
    for record in sorted(records, key=lambda record: record.timestamp):
        shared, run = 0, -1
        for at, block in enumerate(record.hash_ids):
            if block not in owner:
                break
            shared, run = at + 1, owner[block]
        if run < 0 or 2 * shared < chain[run]:
            run = len(chain)
            chain.append(0)
        chain[run] = len(record.hash_ids)
        owner.update(dict.fromkeys(record.hash_ids, run))
        record.conversation = f"run {run}"


class _Maker:
    """Gives out token ids. `local`: block ids are those of one run only."""

    def __init__(self, block: int, scale: int, *, local: bool) -> None:
        self._full = block
        self._block = block // scale
        self._scale = scale
        self._local = local
        self._known: dict[str, dict[int, int]] = defaultdict(dict)  # run, or "" for all → block → its first token id
        self._next = 1

    def run(self, name: str, agents: dict[int, list[Record]]) -> Run:
        ordered = [sorted(agents[agent], key=lambda record: record.timestamp) for agent in sorted(agents)]
        main = ordered[0]
        streams = []
        for records in ordered:
            began = records[0].timestamp
            before = [at for at, record in enumerate(main) if record.timestamp < began]
            after = None if records is main or not before else before[-1]
            streams.append(Stream(after, self._turns(name, records)))
        return Run(name, streams)

    def _turns(self, name: str, records: list[Record]) -> list[Turn]:
        turns: list[Turn] = []
        following: tuple[Record, Turn] | None = None
        for at in reversed(range(len(records))):
            turn = self._turn(name, records[at], following)
            if at:
                turn.pause_s = _pause_s(records[at - 1], records[at])
            turns.append(turn)
            following = records[at], turn
        turns.reverse()
        return turns

    def _turn(self, name: str, record: Record, following: tuple[Record, Turn] | None) -> Turn:
        whole = record.input_length // self._full
        partial = record.hash_ids[whole] if len(record.hash_ids) > whole else None
        starts = self._starts(name, record.hash_ids[:whole])
        rest = record.input_length // self._scale - whole * self._block
        answer = max(1, record.output_length // self._scale)
        if following is not None and _goes_on(record, whole, following[0], named=partial is not None):
            tail = following[1].prompt(self._block)[whole * self._block :][: rest + answer]
            tail = np.concatenate((tail, self._fresh(rest + answer - len(tail))))
        elif partial is not None:
            start = int(self._starts(name, [partial])[0])
            tail = np.concatenate((np.arange(start, start + rest, dtype=np.int32), self._fresh(answer)))
        else:
            tail = self._fresh(rest + answer)
        return Turn(starts, tail[:rest], tail[rest:], 0.0)

    def _starts(self, name: str, blocks: list[int]) -> Ids:
        known = self._known[name if self._local else ""]
        for block in blocks:
            if block not in known:
                known[block] = self._take(self._block)
        return np.fromiter(map(known.__getitem__, blocks), np.int32, len(blocks))

    def _fresh(self, count: int) -> Ids:
        start = self._take(count)
        return np.arange(start, start + count, dtype=np.int32)

    def _take(self, count: int) -> int:
        self._next += count
        return self._next - count


def _goes_on(record: Record, whole: int, following: Record, *, named: bool) -> bool:
    """Whether `following` has all whole blocks of `record` and more. Where partial blocks have ids too (`named`), equal
    numbers of whole blocks say that the text parts inside the last."""
    longer = len(following.hash_ids) > whole + 1 if named else following.input_length > record.input_length
    return longer and following.hash_ids[:whole] == record.hash_ids[:whole]


def _pause_s(before: Record, record: Record) -> float:
    """As recorded, or else the time between the two requests without what the server took."""
    if record.think_time_ms is not None:
        return record.think_time_ms / 1000
    return max(0.0, record.timestamp - before.timestamp - (before.api_time_ms or 0.0)) / 1000
