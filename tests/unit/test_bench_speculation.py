"""The measurement of drafts, on a model that is a hash: what is dictated is said, both sides start alike, and what is
not the same is noticed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fakes import END, VOCABULARY, HashRunner, continuation
from grammar_vocabulary import BYTE, HEAD, TOKENS, spell, vocabulary
from rich.console import Console
from typer.testing import CliRunner

import bosquet.runtime.bench.speculation
from bosquet.cli import app
from bosquet.errors import ConfigError
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.bench import speculation_report
from bosquet.runtime.bench.speculation import pick
from bosquet.runtime.bench.speculation_bed import Bed, Dictation, Pair, Reading
from bosquet.runtime.bench.speculation_cases import EDITS, Ask, Case, Speech, cases, conversations
from bosquet.runtime.bench.speculation_identity import Group, judge
from bosquet.runtime.bench.speculation_report import Findings, Result
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.speculative.arbiter import Arbiter, Costs
from bosquet.types import GrammarSpec, SamplingParams

PIECES = [bytes([32 + i]) for i in range(VOCABULARY)]
SPEECH = cast(Speech, SimpleNamespace(tokenizer=SimpleNamespace(token_bytes=TOKENS)))


class Steady(Costs):
    """A wider pass costs nothing more."""

    def learn(self, tokens: int, seconds: float) -> None:
        return


@pytest.fixture
def bed() -> Bed:
    dictation = Dictation(HashRunner(400))
    engine = Engine(
        dictation,
        RadixCache(PagePool(400)),
        Limits(256, 8, ageing_s=5.0),
        Bounds(VOCABULARY, 1000, max_waiting=100),
        Vocabulary(PIECES, frozenset({END}), (END,)),
        drafter=Drafter(VOCABULARY, Arbiter(Steady({1: 1.0, 8: 1.0}))),
    )
    return Bed("hash", engine, SPEECH, dictation, -(-HEAD // 32), {1: 0.01, 8: 0.02})


def test_what_is_dictated_is_said_and_what_repeats_in_it_is_drafted(bed: Bed) -> None:
    said = [7, 8, 9, 10, 11, 12, END, 14] * 10
    free = SamplingParams(seed=3, max_tokens=20, ignore_eos=True)
    (pair,) = bed.compare(
        [Ask([1, 2], free, dictated=said), Ask([3, 4], SamplingParams(seed=3, max_tokens=9))], 2, 1, "x"
    )
    assert pair.off.answers == pair.on.answers == [said, continuation([3, 4], 3, 0, 9)]
    assert pair.off.passes == 80
    assert pair.on.passes < 20
    assert sum(pair.off.drafted.values()) == 0
    assert 0 < pair.on.right["suffix"] <= pair.on.drafted["suffix"]
    assert pair.off.tokens == pair.on.tokens
    assert pair.off.cached == pair.on.cached > 0, "prompts are in the cache for both"


def test_no_round_drafts_from_what_an_earlier_one_said(bed: Bed) -> None:
    """Else the second would know all of it."""
    words = list(range(60, 90)) + list(range(20, 50))
    asks = [Ask([1, 2, 3], SamplingParams(), dictated=words), Ask([4, 5, 6], SamplingParams(), dictated=words[10:])]
    first, second = bed.compare(asks, 1, 2, "x")
    assert first.on.passes == second.on.passes < first.off.passes
    (again,) = bed.compare(asks, 1, 1, "x")
    assert again.on.passes < second.on.passes, "a program of the same name would"


def test_forced_tokens_are_those_that_the_grammar_leaves_no_choice_about(bed: Bed) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"enum": [1, 2]}},
        "required": ["age"],
        "additionalProperties": False,
    }
    compiler = GrammarCompiler(vocabulary())
    choice = compiler.compile(GrammarSpec("choice", json.dumps(["abcx1", "abcx2"])))
    assert bed.forced(choice, [*spell("abcx1"), BYTE[b"<|im_end|>"]]) == (4, 5), "all but the digit, and no end token"
    assert bed.forced(choice, [BYTE[b"ab"], *spell("cx2")]) == (3, 4), "however it is cut"
    forced, count = bed.forced(compiler.compile(GrammarSpec("json_schema", json.dumps(schema))), spell('{"age": 2}'))
    assert count == 10
    assert 0 < forced < 10, "white space is free"


def test_an_answer_that_differs_is_noticed(bed: Bed) -> None:
    asks = [Ask([number, 2], SamplingParams(seed=number, max_tokens=12)) for number in range(5)]
    group = Group("any", lambda speech, count: asks[:count], 3)
    usual = bed.engine.scheduler.drafter
    assert usual is not None
    costs = usual.arbiter
    verdict = judge(bed, group, 5)
    assert (verdict.prompts, verdict.same, verdict.differ) == (5, 5, ())
    assert usual.arbiter is costs

    class Careless(Bed):
        def run(self, asks: Any, at_once: int, sources: tuple[str, ...], program: str) -> Reading:
            reading = Bed.run(self, asks, at_once, sources, program)
            if sources:
                reading.answers[3][-1] += 1
            return reading

    careless = Careless(bed.model, bed.engine, bed.speech, bed.dictation, bed.mask_words, bed.pass_seconds)
    verdict = judge(careless, group, 5)
    assert (verdict.same, verdict.differ) == (4, (3,))
    found = Findings("hash", machine(), {1: 0.01, 8: 0.02}, verdicts=[verdict])
    assert found.differing == 1
    assert "prompts 3" in shown(found)


def machine() -> dict[str, Any]:
    return {"cpu": "a <cpu>", "cores": 2, "flags": ["avx2"]}


def shown(found: Findings) -> str:
    out = io.StringIO()
    speculation_report.show(found, Console(file=out))
    return out.getvalue()


def reading(seconds: float, passes: int, computed: int, answers: list[list[int]], right: int = 0) -> Reading:
    return Reading(seconds, passes, computed, 0, 0, {"suffix": 2 * right}, {"suffix": right}, answers)


def result(bound: float | None, forced: float | None, off: list[float], on: list[float]) -> Result:
    case = Case("tool calls", "…", lambda speech, count: [], 1, 1, bound=bound, from_forced=0.5)
    pairs = [
        Pair(reading(a, 100, 100, [[1] * 100]), reading(b, 40, 160, [[1] * 100], right=60))
        for a, b in zip(off, on, strict=True)
    ]
    return Result(case, pairs, forced, (0.003, 0.001))


def test_ratios_are_those_of_rounds_and_a_bound_holds_where_enough_is_forced() -> None:
    three = result(1.8, 0.6, [2.0, 6.0, 2.0], [1.0, 2.0, 2.0])
    assert three.ratio == 2.0, "the median of 2, 3 and 1; the medians have a ratio of 1"
    assert three.per_pass == 2.5
    assert three.modelled == pytest.approx((0.3 + 0.1) / (0.12 + 0.16))
    assert three.met is True
    assert result(1.8, 0.6, [1.7], [1.0]).met is False
    assert result(1.8, 0.4, [1.7], [1.0]).met is None, "too little is forced to ask for it"
    assert result(None, 0.6, [1.7], [1.0]).met is None


def test_tables_and_files_say_what_was_found(tmp_path: Path) -> None:
    found = Findings("hash", machine(), {1: 0.004, 8: 0.011}, (0.003, 0.001), [result(1.8, 0.4, [2.0], [1.0])])
    text = shown(found)
    assert "2.00×" in text
    assert "50% of 120" in text
    assert "less than 50% of the tokens are forced" in text
    path = tmp_path / "drafts.json"
    speculation_report.write(found, {"rounds": 1}, path)
    read = msgspec.json.decode(path.read_bytes())
    assert read["cases"][0]["ratio"] == 2.0
    assert read["cases"][0]["rounds"][0]["on"]["passes"] == 40
    assert "(with drafts is 2.00×)" in (tmp_path / "drafts.svg").read_text()
    assert "What a pass takes" in (tmp_path / "drafts_curves.svg").read_text()


def test_options_reach_the_measurement_and_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(
            bosquet.runtime.bench.speculation, "measure", lambda *args, **named: calls.append((args, named))
        )
        words = (
            "bench speculation -c json -c city --source forced --draft-model d --rounds 2 --quick --no-answers --out f"
        )
        assert CliRunner().invoke(app, words.split()).exit_code == 0
    ((given,), named) = calls[0]
    assert given == ["json", "city"]
    assert named == {
        "sources": ["forced"],
        "model": "embedded",
        "draft_model": "d",
        "transcripts": "",
        "rounds": 2,
        "quick": True,
        "identity": False,
        "out": "f",
    }
    measure = bosquet.runtime.bench.speculation.measure
    for only, sources, message in (([], ["mdl"], "no source 'mdl'"), (["jsn"], [], "no case 'jsn'")):
        with pytest.raises(ConfigError, match=message):
            measure(only, **{**named, "sources": sources, "out": ""})


def test_cases_are_picked_by_name() -> None:
    known = cases(conversations(EDITS))
    assert [case.at_once for case in pick(known, ["json"])] == [1, 8, 32]
    assert pick(known, []) == known
    assert {"code, replayed", "text, replayed", "agents, replayed"} <= {case.name for case in known}
    with pytest.raises(ConfigError, match="no case 'jsn'; there are json, tool calls"):
        pick(known, ["jsn"])


@pytest.mark.parametrize("line", ["{", "[]", '{"messages": [{"role": "user"}]}', '{"messages": []}', "", "null"])
def test_transcripts_of_another_form_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match="--transcripts"):
        conversations(path)
    with pytest.raises(ConfigError, match="No such file"):
        conversations(tmp_path / "none")
