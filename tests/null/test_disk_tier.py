"""Evicted prefixes come back from disk: to whom they are right for, when it pays, and without holding anybody up."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from disk_bed import FORM, World, tokens

from bosquet.radix_cache.tree import Key, Namespace
from bosquet.runtime import disk_store, disk_tier, engine
from bosquet.runtime.disk_segments import Form
from bosquet.runtime.disk_tier import Chain, chain_keys
from bosquet.types import PAGE


def pushed_out(world: World, name: str, ids: list[int], tenant: str = "") -> None:
    """Compute a prompt, and then others that take all its pages."""
    world.run(name, ids, tenant)
    for number in range(2):
        world.run(f"{name} out {number}", tokens(1000 + number, world.cache.pool.total - 1), "others")


def test_an_evicted_prefix_comes_back(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    ids = tokens(1, 12)
    pushed_out(world, "first", ids)
    assert world.run("again", ids) == PAGE  # a hit leaves a token to compute; on disk are whole pages
    assert world.cached("again") == len(ids) - PAGE
    stats = world.engine.stats()
    assert stats.disk_pages_read == 11
    assert stats.disk_pages_written >= stats.disk_pages >= 12
    assert stats.disk_pages_refused == 0
    assert world.run("once more", ids) == 1  # the tree has it now


def test_what_the_tree_has_lost_the_end_of_is_completed(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    ids = tokens(1, 15)
    world.run("first", ids)
    world.cache.evict(6)
    world.writes.work()
    assert world.run("longer", [*ids, 5, 6]) == 2
    assert world.engine.stats().disk_pages_read == 6


def test_what_came_from_disk_is_told_apart(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    ids = tokens(1, 15)
    world.run("first", ids)
    world.cache.evict(6)
    world.writes.work()
    world.run("longer", [*ids, 5, 6])
    world.run("again", [*ids, 5, 6])
    told = {trace.request: trace.choices[0].miss for trace in world.engine.take_traces()}
    longer, again = told["longer"], told["again"]
    assert longer is not None
    assert again is not None
    assert (longer.matched, longer.disk) == (15 * PAGE, 6 * PAGE)
    assert (again.matched, again.disk) == (15 * PAGE + 1, 0)


def test_a_turn_goes_on_from_an_answer_on_disk(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    ids = tokens(1, 8)
    world.ask("first", ids, max_tokens=40)
    world.finish()
    said = [token for output in world.outputs["first", 0] for token in output.tokens]
    world.run("out", tokens(2, 19))
    turn = [*ids, *said, 1, 2, 3]
    computed = world.run("turn", turn)
    assert computed == len(turn) - (len(ids) + len(said) - 1) // PAGE * PAGE


def test_it_survives_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    ids = tokens(1, 12)
    pushed_out(world, "first", ids)
    world.close()
    world = World(tmp_path, 20)
    assert world.run("again", ids) == PAGE


def test_what_was_never_evicted_survives_a_restart_too(tmp_path: Path) -> None:
    world = World(tmp_path, 40)
    asked = [(tokens(seed, 10), tenant) for seed, tenant in ((1, "one"), (2, "two"), (3, "one"))]
    for number, (ids, tenant) in enumerate(asked):
        world.run(str(number), ids, tenant)
    world.run("branch", [*asked[0][0][:80], *tokens(4, 3)], "one")
    world.engine.close()
    world = World(tmp_path, 40)
    for number, (ids, tenant) in enumerate(asked):
        assert world.run(str(number), ids, tenant) == PAGE
    assert world.run("branch", [*asked[0][0][:80], *tokens(4, 3)], "one") == PAGE


def test_saving_ends_in_time_and_the_newest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "QUEUED_BYTES", 4 * FORM.payload)
    monkeypatch.setattr(engine, "SAVES_S", 0.2)
    world = World(tmp_path, 40, by_itself=False)
    for seed in (1, 2):
        world.run(str(seed), tokens(seed, 10))
    world.engine.close()  # nobody writes, so that there is room for four pages
    world = World(tmp_path, 40)
    assert world.run("newest", tokens(2, 10)) == 6 * PAGE
    assert world.run("oldest", tokens(1, 10)) == 10 * PAGE


def test_another_model_has_none_of_it(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    ids = tokens(1, 12)
    pushed_out(world, "first", ids)
    world.close()
    world = World(tmp_path, 20, form=Form(b"g" * 32, FORM.payload))
    assert world.run("again", ids) == len(ids)


def test_tenants_never_meet(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    ids = tokens(1, 12)
    pushed_out(world, "first", ids, "one")
    assert world.run("another's", ids, "two") == len(ids)
    assert world.run("own", ids, "one") < len(ids)


def test_a_key_is_of_all_that_came_before_it() -> None:
    ids = Key.of(tokens(1, 4)).data
    keys = chain_keys(Namespace("a"), ids)
    assert keys == [chain_keys(Namespace("a"), ids[: (n + 1) * 64])[-1] for n in range(4)]
    assert chain_keys(Namespace("a"), ids[:-1]) == keys[:3]
    changed = chain_keys(Namespace("a"), b"\1" + ids[1:])
    everyone = [*keys, *changed, *chain_keys(Namespace("b"), ids), *chain_keys(Namespace("", "a"), ids)]
    assert len(set(everyone)) == 16
    assert chain_keys(Namespace("ab", "c"), ids) != chain_keys(Namespace("a", "bc"), ids)


def test_remembered_keys_are_those_of_the_tokens() -> None:
    rng = random.Random(1)
    chain = Chain()
    data = b""
    for _ in range(300):
        cut = data[: rng.randrange(len(data) + 1) // 4 * 4]
        data = cut + Key.of([rng.randrange(3) for _ in range(rng.choice([0, 1, 16, 40]))]).data
        data = data[:2000]
        namespace = Namespace(rng.choice("aab"))
        want = chain_keys(namespace, data)
        assert chain.keys(namespace, data)[: len(want)] == want


# ---- waiting ---------------------------------------------------------------------------------------------------------


def on_disk(tmp_path: Path, ids: list[int], pages: int = 20) -> World:
    """A world whose disk has a prompt, and whose workers have to be told to work."""
    world = World(tmp_path, pages)
    pushed_out(world, "first", ids)
    world.by_itself = False
    return world


def test_others_go_first_while_it_is_read(tmp_path: Path) -> None:
    ids = tokens(1, 8)
    world = on_disk(tmp_path, ids)
    world.ask("slow", ids)
    world.step()
    world.ask("other", tokens(2, 1))
    world.step()
    assert world.outputs["other", 0][-1].finish
    assert not world.outputs["slow", 0]
    assert world.engine.step() == []
    assert world.engine.waits
    world.reads.work()
    world.finish()
    world.check_answers()
    assert world.cached("slow") == len(ids) - PAGE


def test_a_disk_that_does_not_answer_stalls_nobody(tmp_path: Path) -> None:
    ids = tokens(1, 12)
    world = on_disk(tmp_path, ids)
    began = world.now
    assert world.run("late", ids) == len(ids)
    assert world.now - began < 0.2  # it waits no longer than computing takes, or 50 ms
    began = world.now
    assert world.run("next", tokens(3, 12)) == 12 * PAGE
    assert world.run("later", tokens(1000, 12), "others") > 8 * PAGE
    assert world.store.has(chain_keys(Namespace("others"), Key.of(tokens(1000, 12)).data)[11])
    assert len(world.reads.jobs) == 1, "nothing else is asked of it"
    world.reads.work()  # at last; nobody waits for it
    world.by_itself = True
    assert world.run("when it is back", ids) < len(ids)


def test_what_has_come_when_time_is_over_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tokens(1, 12)
    world = on_disk(tmp_path, ids)
    read = world.store.read
    served: list[bytes] = []
    reached, gate = threading.Event(), threading.Event()

    def slow(key: bytes) -> object:
        if len(served) == 5:
            reached.set()
            gate.wait(60)
        served.append(key)
        return read(key)

    monkeypatch.setattr(world.store, "read", slow)
    world.ask("late", ids)
    world.step()
    thread = threading.Thread(target=world.reads.work)
    thread.start()
    assert reached.wait(60)
    world.finish()
    world.check_answers()
    assert world.cached("late") == 5 * PAGE
    gate.set()
    thread.join()
    assert len(served) == 6, "the rest is not read for nobody"


@pytest.mark.parametrize("moment", ["before", "half way", "after"])
def test_cancelled_while_it_is_read(tmp_path: Path, moment: str) -> None:
    ids = tokens(1, 12)
    world = on_disk(tmp_path, ids)
    free = world.engine.stats().pages_free
    world.ask("gone", ids)
    world.step()
    if moment == "after":
        world.reads.work()
    world.cancel("gone")
    world.check_still()
    assert world.engine.stats().pages_free == free
    world.reads.work()
    world.check_still()
    assert world.engine.stats().disk_pages_read == 0
    world.by_itself = True
    assert world.run("again", ids) == PAGE


def test_requests_with_the_same_prefix_read_it_once(tmp_path: Path) -> None:
    ids = tokens(1, 8)
    world = on_disk(tmp_path, ids, 40)
    for branch in range(4):
        world.ask(f"branch {branch}", [*ids, branch])
    world.step()
    assert len(world.reads.jobs) == 1
    world.cancel("branch 0")
    world.reads.work()
    before = world.runner.computed
    world.finish()
    world.check_answers()
    assert world.engine.stats().disk_pages_read == 8
    assert world.runner.computed - before == 3


def test_a_prefix_that_was_computed_meanwhile_is_not_read_in_again(tmp_path: Path) -> None:
    ids = tokens(1, 8)
    world = on_disk(tmp_path, ids, 40)
    world.ask("waits", [*ids, 1])
    world.step()
    world.cache.evict(8)
    pages = world.cache.pool.take(8)
    world.runner.memory.write_pages(pages, np.asarray(ids).reshape(8, -1).view(np.uint8))
    world.cache.pool.give(world.cache.insert(Namespace(), ids, pages).duplicates)
    world.reads.work()
    world.finish()
    world.check_answers()
    assert world.cached("waits") == len(ids)
    assert world.engine.stats().disk_pages_read == 0


def test_a_prefix_that_was_evicted_meanwhile_leaves_no_gap(tmp_path: Path) -> None:
    ids = tokens(1, 12)
    world = World(tmp_path, 20)
    world.run("first", ids)
    world.cache.evict(6)
    world.writes.work()
    world.by_itself = False
    world.ask("waits", ids)
    world.step()
    assert world.cache.evict(20) > 0
    world.reads.work()
    world.finish()
    world.check_answers()
    assert world.cached("waits") == 0


def test_a_damaged_page_ends_what_is_reused(tmp_path: Path) -> None:
    ids = tokens(1, 12)
    world = on_disk(tmp_path, ids)
    key = chain_keys(Namespace(), Key.of(ids).data)[7]
    segment, slot = world.store._index[key]
    os.pwrite(segment._fd, b"\xff\xff", segment._offset(slot) + 60)
    world.by_itself = True
    assert world.run("again", ids) == len(ids) - 7 * PAGE
    assert world.engine.stats().disk_pages_refused == 1


def test_what_is_read_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "LOADED_BYTES", 5 * FORM.payload)
    ids = tokens(1, 12)
    world = on_disk(tmp_path, ids, 40)
    world.ask("long", ids)
    world.step()
    world.ask("finds no memory left", tokens(1000, 12), "others")
    world.step()
    assert len(world.reads.jobs) == 1
    world.by_itself = True
    world.finish()
    world.check_answers()
    assert world.cached("long") >= 10 * PAGE, "one load after the other"
    assert world.cached("finds no memory left") <= PAGE


# ---- what pays -------------------------------------------------------------------------------------------------------


def test_what_is_computed_faster_than_read_is_left(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    world.store.page_seconds = 1.0
    pushed_out(world, "first", tokens(1, 12))
    assert world.engine.stats().disk_pages_written == 0
    world.store.page_seconds = 1e-6
    pushed_out(world, "first again", tokens(1, 12))
    assert world.engine.stats().disk_pages_written > 0
    world.store.page_seconds = 1.0
    assert world.run("again", tokens(1, 12)) == 12 * PAGE
    world.cache.evict(20)
    world.now += disk_tier.TRIES_AGAIN_S
    assert world.run("once a minute", tokens(1, 12)) == PAGE
    world.cache.evict(20)
    assert world.run("not twice", tokens(1, 12)) == 12 * PAGE


def test_short_prefixes_are_not_worth_a_read(tmp_path: Path) -> None:
    world = World(tmp_path, 20)
    ids = tokens(1, 2)
    pushed_out(world, "short", ids)
    assert world.run("again", ids) == len(ids)
    assert world.engine.stats().disk_pages_read == 0


def test_more_than_can_be_written_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "QUEUED_BYTES", 4 * FORM.payload)
    ids = tokens(1, 12)
    world = World(tmp_path, 20, by_itself=False)
    world.run("first", ids)
    world.cache.evict(20)
    world.writes.work()
    stats = world.engine.stats()
    assert (stats.disk_pages_written, stats.disk_pages_refused) == (4, 8)
    world.by_itself = True
    assert world.run("again", ids) == 8 * PAGE, "the first pages are the ones that were kept"
