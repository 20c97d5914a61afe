"""The two halves of a record are joined whichever comes first, and none waits for ever."""

from __future__ import annotations

from bosquet.runtime.server.trace_book import MOST_LATE, TraceBook
from bosquet.runtime.server.trace_records import RequestRecord
from bosquet.runtime.trace import Trace


def book() -> tuple[TraceBook, list[RequestRecord]]:
    made, kept = TraceBook(), list[RequestRecord]()
    made.sinks.append(lambda record, complete: kept.append(record))
    return made, kept


def begin(made: TraceBook, name: str) -> RequestRecord:
    record = RequestRecord(id=name)
    made.begin(record, lambda record: None)
    return record


def test_the_engine_is_first_where_an_answer_ends_as_it_should() -> None:
    made, kept = book()
    record, noted = begin(made, "a"), Trace(request="a", prompt_tokens=3)
    made.noted(noted)
    assert kept == []
    made.over("a")
    made.over("a")
    assert kept == [record]
    assert record.engine is noted
    assert len(made) == 0


def test_the_answer_is_first_where_the_client_has_left() -> None:
    made, kept = book()
    record, noted = begin(made, "a"), Trace(request="a")
    made.over("a")
    assert kept == []
    made.noted(noted)
    made.noted(noted)
    assert kept == [record]
    assert record.engine is noted
    assert len(made) == 0


def test_where_the_engine_is_gone_nobody_waits_for_it() -> None:
    made, kept = book()
    record = begin(made, "a")
    made.over("a", lost=True)
    assert kept == [record]
    assert record.engine is None


def test_what_was_refused_and_what_is_not_known_leave_nothing() -> None:
    made, kept = book()
    begin(made, "a")
    made.refused("a")
    made.noted(Trace(request="a"))
    made.over("a")
    made.over("other")
    assert kept == []
    assert len(made) == 0


def test_those_that_wait_are_bounded_and_the_oldest_go_on_without() -> None:
    made, kept = book()
    for number in range(MOST_LATE + 3):
        begin(made, str(number))
        made.over(str(number))
    assert [record.id for record in kept] == ["0", "1", "2"]
    assert len(made) == MOST_LATE
    made.noted(Trace(request="0"))
    made.noted(Trace(request="7"))
    assert [record.id for record in kept] == ["0", "1", "2", "7"]
