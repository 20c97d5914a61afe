"""Tells routers which prefixes are cached here: over ZeroMQ, in the form that vLLM gave these events and that routers
of several projects read, https://docs.vllm.ai/en/stable/examples/online_serving/kv_events_subscriber/

A message has three frames: topic (empty), sequence number (8 bytes, big-endian), and a batch in MessagePack. Whoever
connects late or finds a gap asks the second address, if there is one, for what came from a number on. Events carry
token ids: who may connect can read what users say.

A thread sends; the engine's own costs are those of noting what happened. Knows nodes and pages of the tree.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
import zmq
from msgspec import Struct

from ..errors import ConfigError
from ..radix_cache.key import PAGE_BYTES
from ..radix_cache.marks import mark_before, marks_of
from ..radix_cache.tree import EvictionCause, Node
from ..types import PAGE

MEDIUM = "GPU"
"""The protocol's word for the memory that passes read from, whatever the device."""

KEPT = 10_000
"""Batches that can be asked for again."""

MOST = 256
"""Events of one batch."""

WAITS_MS = 5
"""How long events are gathered, and how soon a question for old ones is heard."""

END = (-1).to_bytes(8, "big", signed=True)


class BlockStored(Struct, array_like=True, tag=True, frozen=True):
    """Blocks in a row, each of `block_size` tokens, the first after the one called `parent_block_hash`. Hashes are of
    this process: the same block has another in another one. `extra_keys` names the tenant of each, where there is one.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int = PAGE
    lora_id: int | None = None
    medium: str | None = MEDIUM
    lora_name: str | None = None
    extra_keys: list[tuple[str, ...]] | None = None


class BlockRemoved(Struct, array_like=True, tag=True, frozen=True):
    block_hashes: list[int]
    medium: str | None = MEDIUM


class AllBlocksCleared(Struct, array_like=True, tag=True, frozen=True):
    """Nothing is cached any more: also the first event of a process."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, array_like=True, frozen=True):
    """`ts` is Unix time."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class KvEvents:
    """Listens to a tree. `addresses` is that of the publisher, and perhaps, after a comma, that of old events. Raises
    `ConfigError` where these cannot be had."""

    def __init__(self, addresses: str) -> None:
        publish, _, replay = addresses.partition(",")
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._context = zmq.Context()
        try:
            self._publisher = self._socket(zmq.PUB, publish)
            self._replay = self._socket(zmq.ROUTER, replay) if replay else None
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(f"kv_events is {addresses}: {error}") from None
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT)
        self._events.put(AllBlocksCleared())
        self._thread = threading.Thread(target=self._serve, name="kv-events", daemon=True)
        self._thread.start()

    def inserted(self, node: Node, pages: Sequence[int]) -> None:
        marks = marks_of(node)
        first = len(node.pages) - len(pages)
        new = marks[first:]
        if not new:  # a part of a page
            return
        parent = marks[first - 1] if first else mark_before(node) if node.start else None
        run = node.run[first * PAGE_BYTES : (first + len(new)) * PAGE_BYTES]
        tenant = node.namespace.tenant
        self._events.put(
            BlockStored(
                [_hash(mark) for mark in new],
                None if parent is None else _hash(parent),
                np.frombuffer(run, np.int32).tolist(),
                extra_keys=[(tenant,)] * len(new) if tenant else None,
            )
        )

    def evicted(self, node: Node, pages: Sequence[int], cause: EvictionCause) -> None:
        gone = marks_of(node)[len(node.pages) - len(pages) :]
        if gone:
            self._events.put(BlockRemoved([_hash(mark) for mark in gone]))

    def close(self) -> None:
        """Send what waits, and end."""
        self._events.put(None)
        self._thread.join(5)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        encode = msgspec.msgpack.Encoder().encode
        number = 0
        more = True
        while more:
            events, more = self._gather()
            if events:
                name, payload = number.to_bytes(8, "big"), encode(EventBatch(time.time(), events))
                self._kept.append((name, payload))
                self._publisher.send_multipart((b"", name, payload))
                number += 1
            self._answer()
        self._context.destroy(linger=500)

    def _gather(self) -> tuple[list[Event], bool]:
        """What has happened, and whether more may come."""
        events: list[Event] = []
        wait = WAITS_MS / 1000 if self._replay is not None else None
        try:
            while len(events) < MOST:
                event = self._events.get(timeout=wait) if not events else self._events.get_nowait()
                if event is None:
                    return events, False
                events.append(event)
        except queue.Empty:
            pass
        return events, True

    def _answer(self) -> None:
        """Send old batches to those who asked for them."""
        while self._replay is not None and self._replay.poll(0):
            frames = self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            who, _, start = frames
            for name, payload in self._kept:
                if name >= start:
                    self._replay.send_multipart((who, b"", name, payload))
            self._replay.send_multipart((who, b"", END, b""))

    def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, KEPT)
        socket.bind(address)
        return socket


def _hash(mark: int) -> int:
    """Hashes of the protocol have no sign."""
    return mark & 0xFFFF_FFFF_FFFF_FFFF
