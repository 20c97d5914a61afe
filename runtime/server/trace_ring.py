"""Records of requests in SQLite: a ring of bounded size, for one thread at a time.

A process that is killed loses the transaction under way; the file opens again. Knows nothing of threads or HTTP.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ...errors import ConfigError
from .trace_records import RequestRecord, cause, origins

log = logging.getLogger("bosquet.traces")

VERSION = 1
"""Of the file's form. Kept in the file; one of another version is refused."""

ROWS, BYTES = 64, 1 << 17
"""Records of one transaction, and about their size."""

LONGEST = 1 << 19
"""Bytes of one record."""

ALLOWANCE = 2 << 20
"""Of the size cap, what is left for the write-ahead log: it holds the pages that one transaction touches."""

_TABLE = """
CREATE TABLE requests (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL, request_id TEXT NOT NULL,
    tenant TEXT NOT NULL, program TEXT NOT NULL, run TEXT NOT NULL, branch TEXT NOT NULL,
    arrival REAL NOT NULL, seconds REAL NOT NULL,
    prompt INTEGER NOT NULL, cached INTEGER NOT NULL, computed INTEGER NOT NULL, generated INTEGER NOT NULL,
    cost REAL NOT NULL, saved REAL NOT NULL, status INTEGER NOT NULL, cause TEXT, body BLOB NOT NULL
);
CREATE INDEX by_id ON requests (id);
CREATE INDEX by_request_id ON requests (request_id);
CREATE INDEX by_run ON requests (run, seq);
CREATE INDEX by_program ON requests (program, seq);
"""
_INSERT = f"INSERT INTO requests VALUES (NULL{', ?' * 17})"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RequestRecord).decode


class Wanted(NamedTuple):
    """Which records: of this tenant (None: of any), program and run, and older than number `before`."""

    tenant: str | None = None
    program: str | None = None
    run: str | None = None
    before: int | None = None

    def where(self) -> tuple[str, list[str | int]]:
        """As SQL, with its values."""
        named = (("tenant", self.tenant), ("program", self.program), ("run", self.run))
        tests = [f"{name} = ?" for name, value in named if value is not None]
        values: list[str | int] = [value for _, value in named if value is not None]
        if self.before is not None:
            tests.append("seq < ?")
            values.append(self.before)
        return (f" WHERE {' AND '.join(tests)}" if tests else ""), values


class Call(NamedTuple):
    """What the ledger needs of a record. `cost` is what computing its prompt took of the engine's time, `saved` what
    its cached tokens would have taken."""

    program: str
    run: str
    branch: str
    arrival: float
    seconds: float
    prompt: int
    cached: int
    computed: int
    generated: int
    cost: float
    saved: float
    status: int


class TraceRing:
    """Opens `path`; an empty one is a file without a name that is gone with the process. `size` bounds it, in bytes.
    Raises `ConfigError`."""

    def __init__(self, path: str, size: int) -> None:
        self._size = max(size - ALLOWANCE, 2 * size // 5)
        self._db = _open(path)
        self._trim()
        self._db.executescript("PRAGMA incremental_vacuum")  # the cap may have been larger
        self._checkpoint()

    def write(self, records: list[RequestRecord]) -> int:
        """Keep records, and drop the oldest where there is no room; how many could not be kept."""
        lost = at = 0
        while at < len(records):
            part: list[tuple[Any, ...]] = []
            while at < len(records) and len(part) < ROWS and sum(len(row[-1]) for row in part) < BYTES:
                part.append(_row(records[at], min(self._size // 8, LONGEST)))
                at += 1
            try:
                with self._db:
                    self._db.executemany(_INSERT, part)
                self._trim()
                self._checkpoint()
            except sqlite3.Error as error:  # a full disk must not end the thread, nor the server
                lost += len(part)
                log.warning("%d records of requests are lost: %s", len(part), error)
        return lost

    def last(self, wanted: Wanted, limit: int) -> list[tuple[int, RequestRecord]]:
        """The newest first, with their numbers."""
        where, values = wanted.where()
        query = f"SELECT seq, body FROM requests{where} ORDER BY seq DESC LIMIT ?"
        return [(seq, _decode(body)) for seq, body in self._db.execute(query, (*values, limit))]

    def get(self, name: str, tenant: str | None) -> RequestRecord | None:
        """The record of this id, or the newest of the HTTP request or answer of this id."""
        for column, value in (("id", name), ("request_id", name), ("id", f"{name}-0")):
            tests, values = f"{column} = ?", [value]
            if tenant is not None:
                tests += " AND tenant = ?"
                values.append(tenant)
            query = f"SELECT body FROM requests WHERE {tests} ORDER BY seq DESC LIMIT 1"
            for (body,) in self._db.execute(query, values):
                return _decode(body)
        return None

    def place(self, id: str, tenant: str | None) -> int | None:
        """The number of the newest record of this id, if it is this tenant's."""
        tests, values = ("id = ?", [id]) if tenant is None else ("id = ? AND tenant = ?", [id, tenant])
        for (seq,) in self._db.execute(f"SELECT seq FROM requests WHERE {tests} ORDER BY seq DESC LIMIT 1", values):
            return int(seq)
        return None

    def calls(self, wanted: Wanted) -> list[Call]:
        """All there are, the oldest first."""
        where, values = wanted.where()
        query = f"SELECT {', '.join(Call._fields)} FROM requests{where} ORDER BY seq"
        return [Call(*row) for row in self._db.execute(query, values)]

    def count(self, tenant: str | None = None) -> int:
        """How many records there are."""
        where, values = Wanted(tenant).where()
        return self._number(f"SELECT COUNT(*) FROM requests{where}", *values)

    def close(self) -> None:
        self._db.close()

    def _trim(self) -> None:
        """Drop the oldest until what is used is below the cap; freed pages are used again, so the file stays so."""
        page = self._number("PRAGMA page_size")
        while page * (self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")) > self._size:
            with self._db:
                gone = self._db.execute(
                    "DELETE FROM requests WHERE seq IN (SELECT seq FROM requests ORDER BY seq LIMIT ?)", (ROWS // 4,)
                )
            self._checkpoint()
            if not gone.rowcount:
                break

    def _checkpoint(self) -> None:
        """Move the log into the file."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _number(self, query: str, *values: str | int) -> int:
        (number,) = self._db.execute(query, values).fetchone()
        return int(number)


def _row(record: RequestRecord, most: int) -> tuple[Any, ...]:
    """A text that would take a good part of the file by itself is left out."""
    body = _encode(record)
    if len(body) > most:
        body = _encode(replace(record, text=None))
    engine = record.engine
    return (
        record.id, record.request_id, record.tenant, record.program, record.run, record.branch,
        record.arrival, record.seconds,
        record.prompt_tokens, record.cached_tokens, origins(record).computed, record.completion_tokens,
        sum(choice.prefill_cost for choice in engine.choices) if engine is not None else 0.0,
        record.cached_tokens * engine.pace if engine is not None else 0.0,
        record.status, cause(record), body,
    )  # fmt: skip


def _open(path: str) -> sqlite3.Connection:
    """A connection for one thread, other than this one. Nobody else may read the file: it says who asked."""
    if path:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise ConfigError(f"cannot keep records in {path}: {error.strerror}") from None
    try:
        db = sqlite3.connect(path, timeout=0.3, check_same_thread=False)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if version != VERSION and (version or tables):
            db.close()
            raise ConfigError(f"{path} is no store of requests of this version; give another --trace-file")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA cache_size = -4096")
        if not tables:
            db.executescript(f"BEGIN; {_TABLE} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.OperationalError as error:
        said = "another server has it open" if "locked" in str(error) else str(error)
        raise ConfigError(f"cannot keep records in {path}: {said}") from None
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} cannot be read ({error}); move it away, or give another --trace-file") from None
    return db
