"""The loops of `bench programs` that echo turns: what clients' habits cost in the cache, and what transcripts save."""

from __future__ import annotations

import pytest
from rich.console import Console
from tokenizer_samples import chatml_folder

from bosquet.runtime.bench.transcripts import HABITS, Row, measure, table


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    added = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    return measure(chatml_folder(tmp_path_factory.mktemp("model"), added=added), turns=6)


def test_nothing_is_lost_with_transcripts(rows: list[Row]):
    for row in rows:
        if row.transcripts and (row.history == "append_only" or row.habit != "reasoning stripped"):
            assert row.hit == row.live


def test_each_habit_costs_without(rows: list[Row]):
    lost = {row.habit: row.share for row in rows if not row.transcripts}
    assert set(lost) == {habit.name for habit in HABITS}
    assert all(0.5 < share < 0.99 for share in lost.values()), lost


def test_the_templates_way_drops_reasoning_either_way(rows: list[Row]):
    shares = {
        row.transcripts: row.share for row in rows if row.habit == "reasoning stripped" and row.history == "template"
    }
    assert shares[True] == shares[False]


def test_the_table_has_a_line_a_run(rows: list[Row]):
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table(rows))
    assert shown.get().count("%") == len(rows)
