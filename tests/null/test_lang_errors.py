"""What goes wrong in programs, and what stops them: failed calls, refusals, time limits, cancelling, misuse."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from fakes_lang import FakeBackend, aecho, echo, until

import bosquet.lang as bosquet
from bosquet.errors import DeadlineExceeded, Overloaded, ProgramError, Unsupported


def test_a_failed_call_raises_where_its_value_is_read_with_program_step_and_cause() -> None:
    cause = Overloaded("the queue is full")

    @bosquet.program
    def failing(s: bosquet.State) -> str:
        s.user("Go.")
        branches = s.fork(2)
        branches[0].assistant(bosquet.gen("good"))
        branches[1].assistant(bosquet.gen("bad"), bosquet.gen("later"))
        s.assistant(bosquet.gen("mine"))
        with pytest.raises(ProgramError, match="step 'bad'") as caught:
            branches[1]["bad"]
        assert str(caught.value) == "failing: step 'bad' in branch 1: the queue is full"
        assert (caught.value.program, caught.value.step, caught.value.__cause__) == ("failing", "bad", cause)
        with pytest.raises(ProgramError, match=r"step 'later' in branch 1 was not reached.*queue is full"):
            branches[1]["later"]
        with pytest.raises(ProgramError):
            branches[1].meta("bad")
        return str(branches[0]["good"] + s["mine"])

    result = failing.run(backend=FakeBackend(script={"good": "a", "mine": "b", "bad": cause}))
    assert result.value == "ab"
    assert result.error is None  # the program has looked at every failure
    assert result.text


def test_a_failure_that_the_program_never_looked_at_is_the_results_error() -> None:
    @bosquet.program
    def careless(s: bosquet.State) -> str:
        s.user("Go.")
        s.assistant(bosquet.gen("bad"))
        return "done"

    result = careless.run(backend=FakeBackend(script={"bad": Overloaded("full")}))
    assert result.value == "done"
    assert isinstance(result.error, ProgramError)
    for read in (lambda: result["bad"], lambda: result.text, lambda: result.messages, lambda: result.ids):
        with pytest.raises(ProgramError, match="step 'bad'"):
            read()


def test_what_the_function_raises_comes_out_of_run_and_cancels_its_calls() -> None:
    @bosquet.program
    def broken(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x"))
        until(lambda: backend.active == 1)
        raise LookupError("mine")

    backend = FakeBackend(pause=0.05)
    with pytest.raises(LookupError, match="mine"):
        broken.run(backend=backend)
    until(lambda: backend.active == 0)
    assert backend.cancelled == 1


def test_a_backend_without_a_capability_is_refused_by_name_at_the_line_that_asks() -> None:
    @bosquet.program
    def picky(s: bosquet.State, piece: bosquet.Expression) -> None:
        s.user("Go.")
        s.assistant(piece)

    lacking = {"regex", "select", "top_k", "top_logprobs", "speculation"}
    backend = FakeBackend(capabilities=bosquet.TOKEN_CAPABILITIES - lacking)
    for capability, piece in {
        "regex": bosquet.gen("x", regex="a"),
        "select": bosquet.select("x", ["a", "b"]),
        "top_k": bosquet.gen("x", top_k=3),
        "top_logprobs": bosquet.gen("x", logprobs=2),
        "speculation": bosquet.gen("x", speculation="off"),
    }.items():
        with pytest.raises(Unsupported, match=f"FakeBackend cannot do '{capability}'") as caught:
            picky.run(piece, backend=backend)
        assert caught.value.capability == capability
    assert not backend.calls
    picky.run(bosquet.gen("x", logprobs=0), backend=backend)


def test_a_gen_has_a_time_limit() -> None:
    @bosquet.program
    def slow(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x", timeout=0.02))

    backend = FakeBackend(held=True)
    result = slow.run(backend=backend)
    with pytest.raises(ProgramError, match=r"step 'x': no answer within 0\.02 s") as caught:
        result["x"]
    assert isinstance(caught.value.__cause__, DeadlineExceeded)
    assert backend.cancelled == 1


def test_a_generation_that_ends_without_a_reason_is_an_error() -> None:
    class Cut(FakeBackend):
        async def generate(self, call: bosquet.Call) -> Any:
            yield bosquet.Chunk("ab", [256])

    with pytest.raises(ProgramError, match="ended early"):
        echo.run("hi", backend=Cut())


def test_the_path_of_programs_is_said_of_what_fails_in_an_inner_one() -> None:
    @bosquet.program(temperature=0)
    def inner(s: bosquet.State) -> None:
        s.assistant(bosquet.gen("in"))
        with pytest.raises(RuntimeError, match=r"^a?outer > (ainner > )?inner: (branch 1: )?text outside a turn"):
            s += "loose"

    @bosquet.program
    async def ainner(s: bosquet.State) -> None:
        inner(s)

    @bosquet.program
    def outer(s: bosquet.State) -> None:
        s.user("Go.")
        inner(s)
        s.user("And?")
        s.assistant(bosquet.gen("out"))

    @bosquet.program
    async def aouter(s: bosquet.State) -> None:
        first, second = s.fork(2)
        second.user("Go.")
        await asyncio.gather(ainner(second))  # type: ignore[arg-type]
        first.user("Go.")
        first.assistant(bosquet.gen("x"))
        s.join([first, second])

    result = outer.run(backend=FakeBackend(script={"in": Overloaded("full")}))
    with pytest.raises(ProgramError) as caught:
        result["in"]
    assert str(caught.value) == "outer > inner: step 'in': full"
    assert (caught.value.program, caught.value.programs) == ("outer", ("outer", "inner"))
    with pytest.raises(ProgramError) as caught:
        result["out"]
    assert caught.value.programs == ("outer",)
    assert str(caught.value).endswith("an earlier one failed: outer > inner: step 'in': full")
    script = {"in": Overloaded("full"), "x": Overloaded("full")}
    branches = aouter.run(backend=FakeBackend(script=script))
    with pytest.raises(ProgramError, match=r"^aouter > ainner > inner: step 'in' in branch 1: full"):
        branches["in"]
    with pytest.raises(ProgramError, match=r"^aouter: step 'x' in branch 0: full"):
        branches["x"]


# -- cancelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [echo, aecho])
def test_cancelling_the_awaiting_task_cancels_the_calls(program: bosquet.Program[Any]) -> None:
    backend = FakeBackend(held=True)

    async def main() -> None:
        task = asyncio.create_task(program.arun("hi", backend=backend))
        while not backend.active:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while backend.active:
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert backend.cancelled == 1


def test_after_a_cancel_every_value_that_is_still_to_come_raises(caplog: pytest.LogCaptureFixture) -> None:
    """Also those of calls that wait for one another, and of calls that were only just asked for."""
    backend = FakeBackend(held=True)
    heard: list[str] = []

    @bosquet.program
    def chain(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x"), bosquet.gen("y"), bosquet.gen("z"))
        branch = s.fork(2)[0]
        branch.user("On.")
        branch.assistant(bosquet.gen("v"))
        until(lambda: backend.active == 1)
        stream.close()
        until(lambda: s.ready("z"))
        for state, name in ((s, "x"), (s, "y"), (s, "z"), (branch, "v")):
            with pytest.raises(ProgramError):
                state[name]
            heard.append(name)

    @bosquet.program
    async def hasty(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x"))
        raise LookupError("at once")

    stream = chain.stream(backend=backend)
    until(lambda: len(heard) == 4)
    assert len(backend.calls) == backend.cancelled == 1
    (result,) = hasty.map([{}], backend=backend)
    assert isinstance(result.error, LookupError)
    with pytest.raises(ProgramError, match="step 'x' was cancelled"):
        result["x"]
    assert not caplog.records


def test_a_reader_that_gives_up_leaves_the_value_to_others() -> None:
    @bosquet.program
    async def impatient(s: bosquet.State) -> Any:
        s.user("Go.")
        s.assistant(bosquet.gen("x", max_tokens=4))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(s.get("x"), 0.01)
        backend.held = False
        return await s.get("x")

    backend = FakeBackend(held=True, script={"x": "abc"})
    assert impatient.run(backend=backend).value == "abc"


def test_nothing_is_left_of_a_run_that_is_over() -> None:
    @bosquet.program
    def forks(s: bosquet.State) -> None:
        s.user("Go.")
        branches = s.fork(3)
        for branch in branches:
            branch.assistant(bosquet.gen("x"), bosquet.select("y", ["a", "b"]))
        s.join(branches)

    backend = FakeBackend()
    result = forks.run(backend=backend)
    run = weakref.ref(result._branch.run)
    del result
    until(lambda: gc.collect() >= 0 and run() is None)  # the backend may still be told that it has ended


# -- what may be written where ----------------------------------------------------------------------------------------


def test_a_state_refuses_what_makes_no_sense() -> None:
    @bosquet.program
    def odd(s: bosquet.State) -> None:
        s.user("Go.")
        with pytest.raises(RuntimeError, match=r"^odd: text outside a turn"):
            s += "loose"
        with pytest.raises(RuntimeError, match=r"^odd: step 'x': text outside a turn"):
            s += bosquet.gen("x")
        with s.assistant(), pytest.raises(RuntimeError, match=r"^odd: the assistant turn is still open"):
            s.user("inside")
        with pytest.raises(TypeError, match=r"^odd: a turn with content is complete"), s.user("whole"):
            pass
        with pytest.raises(TypeError, match=r"^odd: a state takes text"):
            s.user(3)  # type: ignore[arg-type]
        with pytest.raises(Unsupported, match=r"^odd: step 'y': FakeBackend cannot do 'regex'"):
            s.assistant(bosquet.gen("y", regex="a"))
        branches = s.fork(2)
        with pytest.raises(RuntimeError, match=r"^odd: branch 1: text outside a turn"):
            branches[1].append("loose")
        with pytest.raises(Unsupported, match=r"^odd: step 'z' in branch 1: FakeBackend cannot do 'regex'"):
            branches[1].assistant(bosquet.gen("z", regex="a"))
        with pytest.raises(ValueError, match="forked from this state"):
            branches[0].join([branches[1]])
        s.join(branches)
        with pytest.raises(RuntimeError, match="has been joined already"):
            s.join(branches)
        with pytest.raises(RuntimeError, match="branch 0 has been joined; write to the state"):
            branches[0].user("late")
        with pytest.raises(ValueError, match="at least one branch"):
            s.fork(0)
        kept.append(s)

    @bosquet.program
    def plain(s: bosquet.State) -> None:
        s += "text"
        with pytest.raises(RuntimeError, match="a user turn cannot follow plain text"):
            s.user("Go.")

    kept: list[bosquet.State] = []
    odd.run(backend=FakeBackend(capabilities=bosquet.TOKEN_CAPABILITIES - {"regex"}))
    plain.run(backend=FakeBackend())
    with pytest.raises(RuntimeError, match="the run of odd is over"):
        kept[0].user("late")
