"""A run's state in a file: gone on from, made again from its ids, and refused when it is not what was saved."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from fakes_lang import SPECIAL, FakeBackend, chatml, echo, encode_segments, encode_text, rewriting, written
from hypothesis import given, settings
from hypothesis import strategies as st

import bosquet.lang as bosquet
from bosquet.errors import Overloaded, ProgramError, StateInvalid
from bosquet.lang.saved import SavedState
from bosquet.types import Segment


class Person(pydantic.BaseModel):
    name: str
    age: int


@bosquet.tool
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


@bosquet.program(temperature=0, max_tokens=20)
def first(s: bosquet.State, name: str) -> None:
    s.system("Be kind.")
    s.user(f"I am {name}.")
    s.assistant("Dear " + bosquet.gen("greeting", stop="!"))
    branches = s.fork(2)
    for branch in branches:
        branch.assistant(bosquet.gen("idea"))
    s.join(branches)
    s["seen"] = {"name": name, "list": [1, 2.5, None]}
    s.user("And?")


@bosquet.program(temperature=0, max_tokens=20)
def answer(s: bosquet.State, question: str) -> Any:
    s.user(question)
    s.assistant(bosquet.gen("reply"))
    return s["greeting"]


@bosquet.program(temperature=0, max_tokens=20)
def whole(s: bosquet.State, name: str, question: str) -> None:
    first(s, name)
    answer(s, question)


def test_a_state_that_was_saved_is_gone_on_from_as_if_nothing_had_been(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    backend = FakeBackend()
    before = first.run("Ada", backend=backend)
    before.save(path)
    saved = bosquet.load_state(path)
    assert (saved.ids, saved.text, saved.messages) == (before.ids, before.text, before.messages)
    assert {name: saved[name] for name in saved} == {name: before[name] for name in before}
    assert saved["seen"] == {"name": "Ada", "list": [1, 2.5, None]}
    assert saved.meta("greeting") == before.meta("greeting")
    assert saved.meta("idea") == before.meta("idea")
    at_once = whole.run("Ada", "Why?", backend=FakeBackend())
    for resume in (saved, before):
        other = FakeBackend()  # of another process, as far as anybody can tell
        after = answer.run("Why?", resume=resume, backend=other)
        assert (after.ids, after.text, after["reply"]) == (at_once.ids, at_once.text, at_once["reply"])
        assert after.value == before["greeting"]
        assert list(after) == [*before, "reply"]
        assert len(other.calls) == 1
        assert tuple(other.calls[0].ids[: len(before.ids)]) == before.ids
    assert before.text == first.run("Ada", backend=FakeBackend()).text, "what was gone on from is as it was"


def test_every_way_of_running_can_go_on(tmp_path: Path) -> None:
    backend = FakeBackend()
    first.run("Ada", backend=backend).save(tmp_path / "s")
    saved = bosquet.load_state(tmp_path / "s")
    wanted = answer.run("Why?", resume=saved, backend=backend)["reply"]
    assert "".join(answer.stream("Why?", resume=saved, backend=backend)) == wanted
    assert answer.start("Why?", resume=saved, backend=backend).result()["reply"] == wanted

    async def main() -> None:
        result = await answer.arun("Why?", resume=saved, backend=backend)
        assert result["reply"] == wanted
        pieces = [piece async for piece in answer.astream("Why?", resume=saved, backend=backend)]
        assert "".join(pieces) == wanted
        with pytest.raises(RuntimeError, match="await asave"):
            result.save(tmp_path / "t")
        await result.asave(tmp_path / "t")
        assert all(call.same for call in await bosquet.areplay(bosquet.load_state(tmp_path / "t"), backend))

    asyncio.run(main())


def test_an_open_turn_and_plain_text_go_on_where_they_were(tmp_path: Path) -> None:
    @bosquet.program(temperature=0)
    def begin(s: bosquet.State) -> None:
        s += "the ab"

    @bosquet.program(temperature=0)
    def go_on(s: bosquet.State) -> None:
        s += "ca" + bosquet.gen("x", max_tokens=4)

    begin.run(backend=FakeBackend(bos=True)).save(tmp_path / "s")
    backend = FakeBackend(bos=True)
    result = go_on.run(resume=bosquet.load_state(tmp_path / "s"), backend=backend)
    assert list(backend.calls[0].ids) == [SPECIAL["<s>"], *encode_text("the abca")], "text side by side is one text"
    assert result.text.startswith("the abca")
    with pytest.raises(RuntimeError, match="a user turn cannot follow plain text"):
        echo.run("hi", resume=result, backend=backend)
    with pytest.raises(RuntimeError, match="text outside a turn"):
        begin.run(resume=echo.run("hi", backend=backend), backend=backend)


@pytest.mark.parametrize("seed", [None, 5])
def test_a_replay_makes_the_same_ids_from_the_same_prompts(tmp_path: Path, seed: int | None) -> None:
    more = {"temperature": 0.0} if seed is None else {"seed": seed}

    @bosquet.program(max_tokens=40)
    def talk(s: bosquet.State) -> None:
        s.user("Go.")
        s.act([double], max_steps=2, **more)  # type: ignore[arg-type]
        s.user("On.")
        s.assistant(bosquet.gen("a", stop="b", **more), bosquet.gen("b", choices=["x", "yy"], **more))  # type: ignore[arg-type]
        s.user("And?")
        s.assistant(bosquet.gen("c", n=2, **more), bosquet.gen("free"), bosquet.select("d", ["p", "q"]))  # type: ignore[arg-type]

    script: dict[str, Any] = {"act": [written("double", number=4), "8."]}
    first_backend = FakeBackend(script={name: list(said) for name, said in script.items()})
    talk.run(backend=first_backend).save(tmp_path / "s")
    again = FakeBackend(script=script)
    saved = bosquet.load_state(tmp_path / "s")
    replayed = bosquet.replay(saved, again)
    assert [call.step for call in replayed] == ["act", "act", "a", "b", "c", "c", "free"]
    assert [call.same for call in replayed] == [True] * 6 + [None]
    assert again.ended == [again.calls[0].origin.run]
    one = {call.origin.step: call.ids for call in first_backend.calls}
    assert {call.origin.step: tuple(call.ids) for call in again.calls} == {
        step: ids for step, ids in one.items() if step != "free"
    }
    other = FakeBackend(script={"act": ["No.", "No."], "a": "zzz"})
    assert [call.same for call in bosquet.replay(saved, other)] == [False, False, False, True, True, True, None]


def test_what_was_encoded_anew_is_not_replayed_from_ids_that_are_gone(tmp_path: Path) -> None:
    @bosquet.program(temperature=0)
    def talk(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("a"))
        s.user("On.")
        s.act([double])

    talk.run(backend=FakeBackend(script={"act": "done"})).save(tmp_path / "s")
    replayed = bosquet.replay(bosquet.load_state(tmp_path / "s"), FakeBackend(script={"act": "done"}))
    assert [(call.step, call.same) for call in replayed] == [("act", True)]


# -- what is refused --------------------------------------------------------------------------------------------------


class OtherWords(FakeBackend):
    """Another vocabulary: every id is one higher."""

    async def encode(self, segments: Any) -> list[int]:
        return [token + 1 for token in encode_segments(segments)]


def test_a_backend_to_which_the_ids_mean_something_else_is_refused(tmp_path: Path) -> None:
    first.run("Ada", backend=FakeBackend()).save(tmp_path / "s")
    saved = bosquet.load_state(tmp_path / "s")
    messages = FakeBackend(capabilities=frozenset({"messages"}))
    for backend, why in (
        (OtherWords(), "the state's token ids are of another vocabulary than that of OtherWords"),
        (FakeBackend(bos=True), "of another vocabulary"),
        (messages, "saved from a backend that carries token ids, and FakeBackend.* carries chat messages"),
    ):
        with pytest.raises(StateInvalid, match=why):
            answer.run("Why?", resume=saved, backend=backend)
        with pytest.raises(StateInvalid, match=why):
            asyncio.run(answer.arun("Why?", resume=saved, backend=backend))
        with pytest.raises(StateInvalid, match=why):
            bosquet.replay(saved, backend)
        assert not backend.calls
    said = echoed(messages, tmp_path)
    assert said.ids == ()
    answer.run("Why?", resume=said, backend=messages)["reply"]
    assert messages.calls[-1].messages[0]["content"] == "Hello."
    with pytest.raises(StateInvalid, match="has no token ids to be replayed"):
        bosquet.replay(said, messages)


def dated(day: str) -> Any:
    """As many templates do, for models that would not know."""

    def template(messages: Any, prompt: bool) -> list[Segment]:
        return [Segment(f"Today: {day}\n", True), *chatml(messages, prompt)]

    return template


def test_another_day_is_no_other_template(tmp_path: Path) -> None:
    first.run("Ada", backend=FakeBackend(template=dated("Sunday, 30 Nov 2025"))).save(tmp_path / "s")
    saved = bosquet.load_state(tmp_path / "s")
    later = FakeBackend(template=dated("Tue, 1 December 2026"))
    result = answer.run("Why?", resume=saved, backend=later)
    assert tuple(later.calls[0].ids[: len(saved.ids)]) == saved.ids
    assert "30 Nov 2025" in result.text
    assert "2026" not in result.text
    with pytest.raises(StateInvalid, match=r"before turn 0 the chat template wrote 'Today: Sunday.*now writes '<"):
        answer.run("Why?", resume=saved, backend=FakeBackend())
    changing = FakeBackend(template=rewriting)
    broken = answer.run("Why?", resume=first.run("Ada", backend=changing), backend=changing)
    assert "not append-only" in str(broken.error), "later turns may still change nothing"


def echoed(backend: FakeBackend, folder: Path) -> SavedState:
    @bosquet.program
    def talk(s: bosquet.State) -> None:
        s.user("Hello.")
        s.assistant(bosquet.gen("greeting"))

    talk.run(backend=backend).save(folder / "m")
    return bosquet.load_state(folder / "m")


def small(folder: Path) -> bytes:
    echoed(FakeBackend(script={"greeting": "hi"}), folder)
    return (folder / "m").read_bytes()


def refusal(folder: Path, raw: bytes) -> str:
    (folder / "bad").write_bytes(raw)
    with pytest.raises(StateInvalid) as caught:
        bosquet.load_state(folder / "bad")
    assert "bad: " in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_file_that_was_cut_or_changed_is_refused(tmp_path: Path) -> None:
    raw = small(tmp_path)
    for length in range(0, len(raw), 7):
        refusal(tmp_path, raw[:length])
    begin = raw.index(b'"state":') + 8
    for at in range(begin, len(raw) - 1, 5):  # each byte of the state, turned into another
        refusal(tmp_path, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])


def test_other_files_and_other_versions_say_what_they_are(tmp_path: Path) -> None:
    file = json.loads(small(tmp_path))
    assert "no saved state, but 'something'" in refusal(tmp_path, json.dumps(file | {"format": "something"}).encode())
    assert "version 2, and this Bosquet reads version 1" in refusal(
        tmp_path, json.dumps(file | {"version": 2}).encode()
    )
    assert "checksum differs" in refusal(tmp_path, json.dumps(file).encode()), "no other spacing either"
    for raw in (b"", b"\x00\xff", b"[]", b"{}", b"[" * 100_000, b'{"format": "bosquet state"}', small(tmp_path) * 2):
        assert "no saved state" in refusal(tmp_path, raw)
    with pytest.raises(FileNotFoundError):
        bosquet.load_state(tmp_path / "nothing")


def test_the_form_of_version_1_does_not_change(tmp_path: Path) -> None:
    """A file of the first days. If this fails, `VERSION` has to go up, or the old form be read."""
    path = Path(__file__).parents[1] / "data" / "state_1.json"
    saved = bosquet.load_state(path)
    assert saved.messages == [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "hi"}]
    assert (saved["person"], saved["greeting"], saved.program) == ({"name": "Ada", "age": 36}, "hi", "talk")
    assert saved.meta("greeting").ids == saved.spans[0].ids
    assert [call.same for call in bosquet.replay(saved, FakeBackend(script={"greeting": "hi"}))] == [True]


def test_values_that_json_cannot_say_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    @bosquet.program
    def odd(s: bosquet.State, value: Any) -> None:
        s["fine"] = 1
        s["odd"] = value

    for value in (object(), float("nan"), {1: {2}, "x": object()}, lambda: 1):
        with pytest.raises((TypeError, ValueError), match="the variable 'odd' cannot be saved as JSON"):
            odd.run(value, backend=FakeBackend()).save(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []
    odd.run(Person(name="Ada", age=36), backend=FakeBackend()).save(tmp_path / "s")
    assert bosquet.load_state(tmp_path / "s")["odd"] == {"name": "Ada", "age": 36}
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_failure_stays_a_failure(tmp_path: Path) -> None:
    @bosquet.program
    def careful(s: bosquet.State) -> None:
        s.user("Go.")
        branches = s.fork(1)
        branches[0].assistant(bosquet.gen("bad"))
        s.join(branches)
        s.assistant(bosquet.gen("good"))

    result = careful.run(backend=FakeBackend(script={"bad": Overloaded("full"), "good": "a"}))
    result.save(tmp_path / "s")
    saved = bosquet.load_state(tmp_path / "s")
    assert saved["good"] == "a"
    with pytest.raises(ProgramError, match="step 'bad' in branch 0: full") as caught:
        saved["bad"]
    assert (caught.value.program, caught.value.step) == ("careful", "bad")

    @bosquet.program
    def broken(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("bad"))

    failed = broken.run(backend=FakeBackend(script={"bad": Overloaded("full")}))
    with pytest.raises(ProgramError):
        failed.save(tmp_path / "t")
    with pytest.raises(ProgramError):
        answer.run("x", resume=failed, backend=FakeBackend())
    with pytest.raises(TypeError, match="answer: resume must be a result, or a state from load_state, not 5"):
        answer.run("x", resume=5, backend=FakeBackend())  # type: ignore[arg-type]


texts = st.text(st.characters(codec="utf-8"), max_size=10)
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(values, texts, st.lists(st.sampled_from("ab <|"), max_size=4))
@settings(max_examples=60, deadline=None)
def test_whatever_json_can_say_comes_back(tmp_path_factory: Any, value: Any, text: str, ends: list[str]) -> None:
    @bosquet.program(temperature=0, max_tokens=5)
    def keep(s: bosquet.State) -> None:
        s.user("Go " + text)
        s.assistant(bosquet.gen("x"))
        s["v"] = value
        with s.user():
            for end in ends:
                s += end

    path = tmp_path_factory.getbasetemp() / "any"
    result = keep.run(backend=FakeBackend())
    result.save(path)
    saved = bosquet.load_state(path)
    assert saved["v"] == value
    assert saved.transcript == result.left()[0]
    assert saved.spans == result.left()[2]
    assert msgspec.json.decode(path.read_bytes())["version"] == 1


def test_special_strings_tell_vocabularies_apart() -> None:
    """Two tokenizers that differ in nothing but their end token would otherwise pass for one."""

    class OtherEnd(FakeBackend):
        async def encode(self, segments: Any) -> list[int]:
            ids = encode_segments(segments)
            return [2000 if token == SPECIAL["<|im_end|>"] else token for token in ids]

    assert asyncio.run(OtherEnd().encode([Segment("ab the", False)])) == encode_text("ab the")
    result = first.run("Ada", backend=FakeBackend())
    with pytest.raises(StateInvalid, match="of another vocabulary"):
        answer.run("Why?", resume=result, backend=OtherEnd())
