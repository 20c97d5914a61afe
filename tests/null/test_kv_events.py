"""What routers are told of the prefix tree: a router that hears it all knows what is cached, block by block."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from run_world import World, text

from bosquet.errors import ConfigError
from bosquet.radix_cache.node import Node
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.kv_events import END, KvEvents
from bosquet.runtime.settings import EngineConfig
from bosquet.types import PAGE

Block = tuple[str, tuple[int, ...]]  # tenant, and all tokens up to the block's end


class Router:
    """Reads the messages by their public description alone, without our types: msgpack, positions of fields."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.next = 0

    def hear(self, name: bytes, payload: bytes) -> None:
        assert int.from_bytes(name, "big") == self.next, "no gap"
        self.next += 1
        batch: list[Any] = msgspec.msgpack.decode(payload)
        at, events, rank = batch
        assert abs(at - time.time()) < 60
        assert rank is None
        for kind, *fields in events:
            if kind == "BlockStored":
                hashes, parent, tokens, size, lora_id, medium, lora_name, extra = fields
                assert (size, lora_id, medium, lora_name) == (PAGE, None, "GPU", None)
                assert len(tokens) == size * len(hashes)
                tenants = [keys[0] for keys in extra] if extra else [""] * len(hashes)
                before: tuple[int, ...] = ()
                if parent is not None:
                    tenant, before = self.blocks[parent]
                    assert tenant == tenants[0]
                for i, name_of in enumerate(hashes):
                    assert 0 <= name_of < 2**64
                    before += tuple(tokens[i * size : (i + 1) * size])
                    assert name_of not in self.blocks, "stored twice"
                    self.blocks[name_of] = (tenants[i], before)
            elif kind == "BlockRemoved":
                hashes, medium = fields
                assert medium == "GPU"
                for name_of in hashes:
                    del self.blocks[name_of]
            else:
                assert (kind, fields) == ("AllBlocksCleared", [])
                self.blocks.clear()


def cached(cache: RadixCache) -> list[Block]:
    """The whole pages of the tree, read off its nodes."""
    found: list[Block] = []

    def walk(node: Node, before: tuple[int, ...]) -> None:
        tokens = tuple(np.frombuffer(node.run, np.int32).tolist())
        found.extend((node.namespace.tenant, before + tokens[:end]) for end in range(PAGE, len(tokens) + 1, PAGE))
        for child in node.children:
            walk(child, before + tokens)

    for root in cache.roots():
        walk(root, ())
    return sorted(found)


@contextmanager
def told(world: World, tmp_path: Path) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """The world's tree tells a subscriber; the other socket asks for old events."""
    publish, replay = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/old"
    events = KvEvents(f"{publish},{replay}")
    world.engine.listeners.add(events)
    with zmq.Context() as context, context.socket(zmq.SUB) as news, context.socket(zmq.REQ) as old:
        for socket in (news, old):
            socket.setsockopt(zmq.RCVTIMEO, 5000)
            socket.setsockopt(zmq.LINGER, 0)
        news.subscribe(b"")
        news.connect(publish)
        old.connect(replay)
        try:
            yield news, old
        finally:
            events.close()


def replayed(old: zmq.Socket[bytes], start: int) -> list[tuple[bytes, bytes]]:
    """As a router does that has found a gap. A REQ socket takes one answer, so a DEALER's frames are made by hand."""
    with old.context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.RCVTIMEO, 30_000)
        dealer.connect(old.last_endpoint)
        dealer.send_multipart((b"", start.to_bytes(8, "big")))
        found = []
        while True:
            empty, name, payload = dealer.recv_multipart()
            assert empty == b""
            if name == END:
                assert payload == b""
                return found
            found.append((name, payload))


def catch_up(router: Router, old: zmq.Socket[bytes], wanted: Sequence[Block]) -> None:
    """Until the router knows what is wanted; fails if it never does."""
    end = time.monotonic() + 30
    while sorted(router.blocks.values()) != list(wanted):
        assert time.monotonic() < end, "what the router knows is not what is cached"
        for name, payload in replayed(old, router.next):
            router.hear(name, payload)


@pytest.mark.parametrize("seed", range(3))
def test_a_router_knows_what_is_cached_after_a_random_workload(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    world = World(30, budget=48)
    with told(world, tmp_path) as (_, old):
        router = Router()
        texts = [text(f"{seed} {i}", rng.randrange(1, 6)) for i in range(4)]
        for number in range(30):
            ids = [*rng.choice(texts), *text(number, 2)[: rng.randrange(1, 30)]]
            world.ask(f"r{number}", ids, tokens=rng.randrange(1, 20), tenant=rng.choice(["", "ada"]))
            for _ in range(rng.randrange(4)):
                world.step()
            if rng.random() < 0.2:
                world.engine.cancel(f"r{number}")
            if number % 10 == 0:
                catch_up(router, old, cached(world.engine.scheduler.cache))
        world.finish(*(f"r{number}" for number in range(30) if world.engine.has(f"r{number}")))
        assert world.engine.stats().evictions["evicted"] > 0
        catch_up(router, old, cached(world.engine.scheduler.cache))
        world.engine.scheduler.cache.reset()
        catch_up(router, old, [])


def test_a_subscriber_hears_what_happens_from_then_on(tmp_path: Path) -> None:
    world = World(30, budget=64)
    with told(world, tmp_path) as (news, _):
        end = time.monotonic() + 60
        for number in range(100):  # until it has joined
            world.ask(f"r{number}", text(number, 2), tokens=1)
            world.finish(f"r{number}")
            if news.poll(50):
                break
            assert time.monotonic() < end
        topic, name, payload = news.recv_multipart()
        assert topic == b""
        assert len(name) == 8
        assert msgspec.msgpack.decode(payload)[1][0][0] in ("BlockStored", "BlockRemoved")


def test_the_first_event_says_that_nothing_is_cached(tmp_path: Path) -> None:
    world = World(30)
    with told(world, tmp_path) as (_, old):
        found: list[tuple[bytes, bytes]] = []
        end = time.monotonic() + 30
        while not found:
            assert time.monotonic() < end
            found = replayed(old, 0)
        assert msgspec.msgpack.decode(found[0][1])[1] == [["AllBlocksCleared"]]


@pytest.mark.parametrize("wrong", ["5557", "http://x:1", "tcp://a,tcp://b,tcp://c", "tcp:// x"])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="kv_events"):
        EngineConfig(kv_events=wrong)


def test_an_address_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_events"):
        KvEvents("tcp://203.0.113.1:5557")
