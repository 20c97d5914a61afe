"""Pages on disk: what is put is read, also after a restart and never wrong; what does not fit is refused."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from disk_bed import FORM, Hand

from bosquet.errors import CacheFileRefused
from bosquet.runtime import disk_store
from bosquet.runtime.disk_segments import HEADER_BYTES, KEY_BYTES, Bytes, Form, segment_name
from bosquet.runtime.disk_store import PageStore, WorkerThread

BOUND = 1 << 20


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def page(number: int) -> Bytes:
    return np.random.default_rng(number).integers(0, 256, FORM.payload, np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


def folder(root: Path, form: Form = FORM) -> Path:
    return root / form.fingerprint.hex()[:32]


def opened(root: Path, bound: int = BOUND, form: Form = FORM) -> tuple[PageStore, Hand]:
    hand = Hand()
    return PageStore(root, form, bound, hand), hand


def filled(root: Path, numbers: range, bound: int = BOUND, form: Form = FORM) -> PageStore:
    store, hand = opened(root, bound, form)
    for number in numbers:
        store.put(key(number), page(number))
        hand.work()
    return store


def found(store: PageStore, numbers: range) -> list[int]:
    """Which of these it gives; what it gives is right."""
    there = []
    for number in numbers:
        payload = store.read(key(number))
        if payload is not None:
            assert payload.tobytes() == page(number).tobytes()
            there.append(number)
    return there


def test_what_is_put_is_read_before_and_after_it_is_written(root: Path) -> None:
    store, hand = opened(root)
    store.put(key(1), page(1))
    assert (len(store), store.has(key(1)), store.has(key(2))) == (0, True, False)
    assert found(store, range(3)) == [1]
    hand.work()
    assert (len(store), store.written) == (1, 1)
    assert found(store, range(3)) == [1]


def test_a_thread_writes(root: Path) -> None:
    store = PageStore(root, FORM, BOUND, WorkerThread("writer"))
    for number in range(50):
        store.put(key(number), page(number))
    store.close()
    assert store.written == 50
    assert found(opened(root)[0], range(50)) == list(range(50))


def test_a_thread_keeps_nothing_of_a_job_that_is_done() -> None:
    class Big:
        """What a job has read."""

    worker, done, big = WorkerThread("worker"), threading.Event(), Big()
    kept = weakref.ref(big)
    worker.put(lambda big=big: done.set())  # type: ignore[misc]
    del big
    assert done.wait(10)
    until = time.monotonic() + 10
    while kept() is not None and time.monotonic() < until:
        time.sleep(0.001)
    assert kept() is None
    assert worker.close()


def test_it_is_there_after_a_restart_and_goes_on_in_the_same_file(root: Path) -> None:
    filled(root, range(3)).close()
    store = filled(root, range(3, 5))
    assert found(store, range(6)) == [0, 1, 2, 3, 4]
    assert store.refused == 0
    assert len(list(folder(root).glob("segment-*"))) == 1


def test_only_we_may_read_it(root: Path) -> None:
    old = os.umask(0)
    try:
        filled(root, range(1))
    finally:
        os.umask(old)
    assert folder(root).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder(root).iterdir()} == {0o600}


def on_disk(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("segment-*"))


def test_the_oldest_goes_first_and_the_bound_holds(root: Path) -> None:
    bound = 64 * (HEADER_BYTES + 3 * FORM.entry)
    store, hand = opened(root, bound)
    for number in range(400):
        store.put(key(number), page(number))
        hand.work()
        assert on_disk(root) <= bound
    there = found(store, range(400))
    assert there == list(range(400 - len(there), 400))
    assert len(there) == len(store) > 180
    store.close()
    store, _ = opened(root, bound // 4)  # less is allowed now
    assert found(store, range(400)) == there[-len(store) :]
    assert on_disk(root) <= bound // 4


def test_what_goes_soon_is_written_again_by_whoever_has_it(root: Path) -> None:
    bound = 64 * (HEADER_BYTES + 3 * FORM.entry)
    store, hand = opened(root, bound)
    store.put(key(0), page(0))
    for number in range(1, 1000):
        store.put(key(number), page(number))
        hand.work()
        if not store.keeps(key(0)):
            store.put(key(0), page(0))
    assert found(store, range(2)) == [0]
    assert store.written < 1020  # not again and again
    assert not store.keeps(key(1))


@pytest.fixture
def whole(root: Path) -> tuple[Path, bytes]:
    """A segment of three entries: its path and bytes."""
    filled(root, range(3)).close()
    path = folder(root) / segment_name(1)
    data = path.read_bytes()
    assert len(data) == HEADER_BYTES + 3 * FORM.entry
    return path, data


def test_a_changed_byte_anywhere_costs_an_entry_and_never_gives_a_wrong_page(
    root: Path, whole: tuple[Path, bytes]
) -> None:
    path, data = whole
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        path.chmod(0o600)
        store, _ = opened(root)
        entry = (at - HEADER_BYTES) // FORM.entry
        assert found(store, range(3)) == ([n for n in range(3) if n != entry] if entry >= 0 else []), at
        assert not store.has(key(max(0, entry))), "what is damaged is forgotten"
        in_key = entry >= 0 and (at - HEADER_BYTES) % FORM.entry < KEY_BYTES  # then nobody asks for it
        assert store.refused == (not in_key), at
        store.close()


def test_a_file_cut_anywhere_gives_what_is_whole_and_takes_more(root: Path, whole: tuple[Path, bytes]) -> None:
    path, data = whole
    for size in range(len(data)):
        path.write_bytes(data[:size])
        path.chmod(0o600)
        store, hand = opened(root)
        entries = max(0, size - HEADER_BYTES) // FORM.entry
        assert found(store, range(3)) == list(range(entries)), size
        store.put(key(7), page(7))
        hand.work()
        assert found(store, range(8)) == [*range(entries), 7]
        store.close()
        store, _ = opened(root)
        assert found(store, range(8)) == [*range(entries), 7]
        store.close()
        for made in folder(root).glob("segment-*"):
            made.unlink()


def test_entries_that_changed_places_are_refused(root: Path, whole: tuple[Path, bytes]) -> None:
    path, data = whole
    head, size = data[:HEADER_BYTES], FORM.entry
    one, two, three = (data[HEADER_BYTES + i * size : HEADER_BYTES + (i + 1) * size] for i in range(3))
    path.write_bytes(head + two[:KEY_BYTES] + one[KEY_BYTES:] + three + two)
    store, _ = opened(root)
    assert found(store, range(3)) == [1, 2]  # the later of two that have the key of number 1; nothing has that of 0


def test_another_fingerprint_sees_nothing_and_its_files_are_refused(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Form(b"g" * 32, FORM.payload)
    filled(root, range(3)).close()
    store = filled(root, range(0), form=other)
    assert found(store, range(3)) == []
    store.close()
    shutil.copy(folder(root) / segment_name(1), folder(root, other) / segment_name(9))
    shutil.copy(folder(root) / segment_name(1), folder(root, other) / segment_name(10))
    spliced = folder(root, other) / segment_name(11)
    spliced.write_bytes(other.header() + (folder(root) / segment_name(1)).read_bytes()[HEADER_BYTES:])
    spliced.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        store, _ = opened(root, form=other)
    assert store.refused == 2
    assert "segment-000000000009 was made by something else" in caplog.text
    assert len(caplog.records) == 1, "told once"
    assert [path.name for path in folder(root, other).glob("segment-*")] == [spliced.name]
    assert found(store, range(3)) == []
    assert store.refused == 2 + 3


def test_what_other_models_left_counts_and_goes_first(root: Path) -> None:
    bound = 64 * (HEADER_BYTES + 3 * FORM.entry)
    other = Form(b"g" * 32, FORM.payload)
    filled(root, range(100), bound).close()
    store, hand = opened(root, bound, other)
    for number in range(300):
        store.put(key(number), page(number))
        hand.work()
        assert on_disk(root) <= bound
    assert not list(folder(root).glob("segment-*"))


def test_what_another_engine_uses_is_left_alone(root: Path) -> None:
    bound = 8 * (HEADER_BYTES + 3 * FORM.entry)
    busy = filled(root, range(20), bound)
    filled(root, range(100), bound, Form(b"g" * 32, FORM.payload))
    assert found(busy, range(20))[-1] == 19


def test_one_engine_at_a_time(root: Path) -> None:
    store = filled(root, range(1))
    with pytest.raises(CacheFileRefused, match="another engine uses"):
        opened(root)
    store.close()
    assert found(opened(root)[0], range(1)) == [0]


def test_a_folder_that_cannot_be_trusted_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(root)
    root.symlink_to(tmp_path)
    with pytest.raises(CacheFileRefused, match="expected a folder"):
        opened(root)
    root.unlink()
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(CacheFileRefused, match="prefixes is open to others: its mode is 777"):
        opened(root)
    root.chmod(0o700)
    place.write_text("a file")
    with pytest.raises(CacheFileRefused, match="expected a folder"):
        opened(root)
    place.unlink()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheFileRefused, match="expected a folder"):
        opened(root)
    assert not list((tmp_path / "elsewhere").iterdir())
    place.unlink()
    place.mkdir()
    place.chmod(0o750)
    with pytest.raises(CacheFileRefused, match="open to others: its mode is 750"):
        opened(root)
    place.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CacheFileRefused, match="belongs to user"):
        opened(root)


def test_files_that_cannot_be_trusted_are_refused(root: Path, tmp_path: Path) -> None:
    filled(root, range(3)).close()
    place = folder(root)
    (place / segment_name(1)).rename(tmp_path / "moved")
    (place / segment_name(1)).symlink_to(tmp_path / "moved")
    os.mkfifo(place / segment_name(2), 0o600)
    (place / segment_name(3)).mkdir()
    shutil.copy(tmp_path / "moved", place / segment_name(4))
    (place / segment_name(4)).chmod(0o644)
    store = filled(root, range(5, 7))
    assert found(store, range(9)) == [5, 6]
    assert store.refused == 4
    assert (tmp_path / "moved").is_file()


def test_a_disk_that_fails_costs_pages_and_is_told_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(root, range(2))

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(os, "pwrite", full)
        for number in (2, 3):
            store.put(key(number), page(number))
        store._writer.work()  # type: ignore[attr-defined]
        broken.setattr(os, "preadv", full)
        assert found(store, range(1)) == []
    assert len(caplog.records) == 2, "one of writing, one of reading"
    assert store.refused == 3
    assert store.room == 0, "it is left alone for a while"
    store._paused_until = 0.0
    assert found(store, range(4)) == [1]
    store.put(key(2), page(2))
    store._writer.work()  # type: ignore[attr-defined]
    assert found(store, range(4)) == [1, 2]


def test_what_waits_to_be_written_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "QUEUED_BYTES", 5 * FORM.payload)
    store, hand = opened(root)
    rooms = []
    for number in range(5):
        rooms.append(store.room)
        store.put(key(number), page(number))
    assert (*rooms, store.room) == (5, 4, 3, 2, 1, 0)
    hand.work()
    assert store.room == 5


def test_a_bound_below_a_page_is_refused(root: Path) -> None:
    with pytest.raises(CacheFileRefused, match="100 bytes hold no page"):
        opened(root, 100)
    store = filled(root, range(9), HEADER_BYTES + FORM.entry)
    assert found(store, range(9)) == [8]
