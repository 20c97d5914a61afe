"""What runs show of their programs: how it is worked out, kept, and told to backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fakes_lang import FakeBackend, echo, encode_text, until, written
from lang_plans import told, tree

import bosquet.lang as bosquet
from bosquet.errors import ProgramError, Unavailable
from bosquet.lang import State, learnt
from bosquet.lang.journal import Journal
from bosquet.lang.learnt import Habits, Learnt, code_of
from bosquet.types import Ahead


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Learnt:
    """What is learnt, in memory."""
    fresh = Learnt()
    monkeypatch.setattr(learnt, "_learnt", fresh)
    return fresh


# -- what runs show ----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


def asked(journal: Journal, clock: Clock, branch: str, began: float, ended: float, tokens: int = 5) -> None:
    clock.now = began
    _, request = journal.ask(branch)
    clock.now = ended
    journal.answered(request, tokens)


def test_a_journal_tells_pauses_and_the_longest_path() -> None:
    clock = Clock()
    journal = Journal(clock)
    first = journal.written("", 1, "first")
    journal.begin(first)
    asked(journal, clock, "", 2, 3)
    asked(journal, clock, "", 7, 8)  # a second request of the same step, after a tool of four seconds
    journal.forked("", 1, ["0", "1"])
    for branch, written_at in (("0", 8.5), ("1", 8.6)):
        clock.now = written_at
        journal.begin(journal.written(branch, 1, "branch"))
    asked(journal, clock, "0", 9, 12, tokens=30)
    asked(journal, clock, "1", 9.5, 11)
    clock.now = 13  # the program has read both
    journal.begin(journal.written("", 2, "last"))
    asked(journal, clock, "", 14, 15)
    found = {(lesson.step, lesson.request, lesson.began): lesson for lesson in journal.lessons()}
    assert {key: (lesson.pause, lesson.left, lesson.tokens) for key, lesson in found.items()} == {
        ("first", 0, 2): (4, 4, 5),
        ("first", 1, 7): (1, 3, 5),  # the first branch began a second later
        ("branch", 0, 9): (None, 2, 30),
        ("branch", 0, 9.5): (None, 2, 5),
        ("last", 0, 14): (None, 1, 5),
    }
    assert journal.forks == [("", "first", 2)]


def test_requests_that_failed_teach_nothing() -> None:
    clock = Clock()
    journal = Journal(clock)
    journal.begin(journal.written("", 1, "x"))
    journal.ask("")
    assert list(journal.lessons()) == []


def test_a_run_that_was_seen_before_is_foreseen(book: Learnt) -> None:
    for number in range(4):
        backend = FakeBackend(script={"plan": "abc", "more": "ab", "most": "a", "end": "abc"})
        tree.run("bees", number + 10, backend=backend)  # widths that are not compiled
        if number == 0:
            assert set(told(backend).values()) == {Ahead()}
        until(lambda number=number: seen(book, tree, "end") == number + 1)
    ahead = told(backend)
    assert ahead["", "plan"].returns is True
    assert ahead["", "plan"].steps >= 4
    assert ahead["", "end"].returns is False
    assert ahead["", "end"].steps == 1
    assert ahead["3", "more"].returns is True
    assert (ahead["3", "most"].returns, ahead["3", "most"].tokens) == (False, len(encode_text("a")) + 1)


def seen(book: Learnt, program: bosquet.Program[Any], step: str) -> int:
    """How often a request of the step was learnt from."""
    habits = book.of(program.name, code_of(program.function))
    habit = None if habits is None else habits.of(step)
    return 0 if habit is None else habit.seen


def test_a_compiled_run_knows_lengths_from_others(book: Learnt) -> None:
    backend = FakeBackend(script={"plan": "abc"})
    tree.compile("bees")
    tree.run("bees", backend=backend)
    until(lambda: seen(book, tree, "end") == 1)
    backend = FakeBackend(script={"plan": "abc"})
    tree.run("bees", backend=backend)
    assert told(backend)["", "plan"].tokens == len(encode_text("abc")) + 1
    assert told(backend)["", "plan"].steps == 4


def test_tools_teach_how_long_they_take(book: Learnt) -> None:
    waits = threading.Event()

    @bosquet.tool
    def slow() -> str:
        """Take a while."""
        waits.wait(0.03)
        return "done"

    @bosquet.program(temperature=0)
    def agent(s: State) -> str:
        s.user("Do it.")
        s.act([slow])
        return s["act"].text

    began = time.monotonic()
    for number in range(4):
        backend = FakeBackend(script={"act": [written("slow"), "It is done."]})
        agent.run(backend=backend)
        until(lambda number=number: seen(book, agent, "act") == number + 1)
    first, second = (call.ahead for call in backend.calls)
    assert first.returns is True
    assert 0.02 < first.pause_s < time.monotonic() - began
    assert (first.steps, second.steps) == (2, 1)
    assert (second.returns, second.pause_s) == (False, 0.0)


def test_runs_that_fail_or_are_cut_short_teach_nothing(book: Learnt) -> None:
    backend = FakeBackend(script={"reply": Unavailable("down")})
    with pytest.raises(ProgramError):
        echo.run("ab", backend=backend)
    until(lambda: len(backend.ended) == 1)
    assert book.of("echo", code_of(echo.function)) is None


def test_learning_can_be_switched_off(book: Learnt) -> None:
    bosquet.set_learning(False)
    try:
        backend = FakeBackend()
        echo.run("ab", backend=backend)
        until(lambda: len(backend.ended) == 1)
        assert book.of("echo", code_of(echo.function)) is None
    finally:
        learnt._learnt = book


# -- the store --------------------------------------------------------------------------------------------------------


def journal_of(*steps: str) -> Journal:
    journal = Journal()
    for place, step in enumerate(steps, 1):
        journal.begin(journal.written("", place, step))
        _, request = journal.ask("")
        journal.answered(request, 7)
    return journal


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    one = Learnt(lambda: tmp_path / "cache")
    one.learn("p", 1, journal_of("b", "a"))
    one.save()
    other = Learnt(lambda: tmp_path / "cache")
    other.load()
    habits = other.of("p", 1)
    assert habits is not None
    assert list(habits.steps) == ["b", "a"]  # in the order of the run
    assert habits.steps["b"].tokens == 7
    assert other.of("p", 2) is None  # other code of the same name
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["learnt.json"]


def test_two_processes_keep_each_others(tmp_path: Path) -> None:
    one, two = Learnt(lambda: tmp_path), Learnt(lambda: tmp_path)
    one.learn("p", 1, journal_of("a"))
    two.learn("q", 1, journal_of("a"))
    one.save()
    two.save()
    third = Learnt(lambda: tmp_path)
    third.load()
    assert third.of("p", 1) is not None
    assert third.of("q", 1) is not None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"format": 1, "programs": {"p": 3}}', b'{"format": 99, "programs": {}}'],
)
def test_a_damaged_file_is_as_good_as_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "learnt.json").write_bytes(content)
    book = Learnt(lambda: tmp_path)
    book.load()
    assert book.of("p", 1) is None
    book.learn("p", 1, journal_of("a"))
    book.save()
    assert "p" in json.loads((tmp_path / "learnt.json").read_text())["programs"]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    book = Learnt(lambda: tmp_path / "file" / "cache")
    book.learn("p", 1, journal_of("a"))
    book.save()
    book.load()
    assert book.of("p", 1) is not None


def test_it_is_bounded(tmp_path: Path) -> None:
    book = Learnt(lambda: tmp_path)
    for number in range(learnt.PROGRAMS + 20):
        book.learn(f"p{number}", 1, journal_of("a"))
    assert book.of("p0", 1) is None
    assert book.of(f"p{learnt.PROGRAMS + 19}", 1) is not None
    book.save()
    assert len(json.loads((tmp_path / "learnt.json").read_text())["programs"]) == learnt.PROGRAMS
    habits = Habits()
    habits.learn(journal_of(*(f"s{number}" for number in range(learnt.STEPS + 50))))
    assert len(habits.steps) == learnt.STEPS


def test_habits_follow_what_is_new() -> None:
    habits = Habits()
    for _ in range(5):
        habits.learn(journal_of("a", "b"))
    known = habits.of("a")
    assert known is not None
    assert known.returns is True
    assert habits.of("b").returns is False  # type: ignore[union-attr]
    for _ in range(40):
        habits.learn(journal_of("a"))
    assert known.returns is False
    assert round(known.left) == 1


def test_code_that_differs_is_another_program() -> None:
    def one(s: State) -> None:
        s += "a"

    def same(s: State) -> None:
        s += "b"

    def other(s: State) -> None:
        s.user("a")

    assert code_of(one) == code_of(same)  # only its text differs
    assert code_of(one) != code_of(other)


def test_a_script_that_ends_at_once_still_learns_and_says_goodbye(tmp_path: Path) -> None:
    script = """
        import asyncio, sys
        sys.path.insert(0, sys.argv[1])
        from fakes_lang import FakeBackend, echo

        class Slow(FakeBackend):
            async def end(self, run):
                for _ in range(100):
                    await asyncio.sleep(0)
                print("ended", run == result.run_id)

        result = echo.run("ab", backend=Slow())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(Path(__file__).parents[1])],
        capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "PYTHONSAFEPATH": "1", "BOSQUET_CACHE": str(tmp_path)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("ended True\n", "")
    assert list(json.loads((tmp_path / "learnt.json").read_text())["programs"]["echo"]["steps"]) == ["reply"]
