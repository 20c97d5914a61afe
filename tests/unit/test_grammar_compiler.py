"""The compiler: bad specs, the cache, concurrency, silence on stderr."""

from __future__ import annotations

import json
import threading
import time

import pytest
from grammar_vocabulary import EMPTY, HEAD, IM_END, TOOL, fits, vocabulary

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.llguidance_engine import LlguidanceCore
from bosquet.grammar.outlines_engine import OutlinesCore
from bosquet.grammar.vocabulary import Vocabulary
from bosquet.grammar.xgrammar_engine import XgrammarCore
from bosquet.types import GrammarSpec


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(vocabulary())


def schema(value, strict=False):
    return GrammarSpec("json_schema", json.dumps(value), strict)


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("json_schema", "{"),
        schema("bar"),
        schema({"type": "object", "properties": {"a": "bar"}}),
        schema({"type": "string", "pattern": "["}),
        schema({"$ref": "https://example.com/schema.json"}, strict=True),
        schema({"description": "x" * 300_000}),
        GrammarSpec("json_schema", "[" * 200_000),
        GrammarSpec("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000),
        GrammarSpec("json_schema", json.dumps({"enum": ["\ud800"]})),
        GrammarSpec("regex", "["),
        GrammarSpec("regex", "(?=a)a"),
        GrammarSpec("regex", "(a)\\1"),
        GrammarSpec("regex", "[^\\s\\S]"),
        GrammarSpec("regex", "a{99999}"),
        GrammarSpec("choice", "[]"),
        GrammarSpec("choice", "yes"),
        GrammarSpec("choice", '"yes"'),
        GrammarSpec("choice", "[1]"),
        GrammarSpec("choice", '[""]'),
        GrammarSpec("ebnf", ""),
        GrammarSpec("ebnf", 'foo ::= "a"'),
        GrammarSpec("ebnf", "root ::= missing"),
        GrammarSpec("ebnf", 'root ::= "a'),
        GrammarSpec("ebnf", "root ::= root"),
        GrammarSpec("ebnf", "root ::= \ud800"),
    ],
    ids=lambda value: f"{value.kind}:{value.value[:40]}" if isinstance(value, GrammarSpec) else None,
)
def test_bad_specs_are_refused(compiler, spec, capfd):
    with pytest.raises(GrammarInvalid) as caught:
        compiler.compile(spec)
    assert caught.value.field is None  # which field of a message it came from is known to whoever asks
    assert len(str(caught.value)) < 400
    assert "/project/" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_good_specs_are_silent_too(compiler, capfd):
    for value in (
        {},
        {"type": "string", "pattern": "a$|^b"},
        {"type": "integer", "multipleOf": 3},
        {"oneOf": [{"type": "null"}, {"const": 1}]},
    ):
        matcher = compiler.compile(schema(value)).matcher()
        matcher.try_accept([0, -1, 2**40, 5])
    assert capfd.readouterr().err == ""


def test_the_same_spec_is_compiled_once_and_kept(compiler):
    spec = GrammarSpec("regex", "kept[0-9]")
    assert compiler.compile(spec) is compiler.compile(GrammarSpec("regex", "kept[0-9]")) is compiler.find(spec)


@pytest.mark.parametrize(
    "other",
    [
        GrammarSpec("regex", "yes|no", strict=True),
        GrammarSpec("regex", "yes|no", specials=(TOOL,)),
        GrammarSpec("lark", "yes|no"),
        GrammarSpec("regex", "yes|no "),
    ],
)
def test_all_that_matters_is_in_the_key(compiler, other):
    compiler.compile(GrammarSpec("regex", "yes|no"))
    assert compiler.find(other) is None


def test_the_cache_is_bounded_by_size_and_drops_the_least_recent():
    size = GrammarCompiler(vocabulary()).compile(GrammarSpec("regex", "x0y")).size_bytes
    compiler = GrammarCompiler(vocabulary(), cache_bytes=size * 3 + size // 2)
    specs = [GrammarSpec("regex", f"x{digit}y") for digit in range(5)]
    first = [compiler.compile(spec) for spec in specs[:3]]
    assert compiler.compile(specs[0]) is first[0]
    compiler.compile(specs[3])  # pushes out 1, not 0
    assert compiler.cached_bytes <= size * 3 + size // 2
    assert compiler.compile(specs[0]) is first[0]
    assert compiler.compile(specs[1]) is not first[1]
    kept = compiler.cached_bytes
    large = compiler.compile(schema({"enum": [f"value {n}" for n in range(5000)]}))
    assert large.size_bytes > compiler.cached_bytes == kept
    assert fits(large.matcher(), '"value 7"')


def test_concurrent_requests_share_one_compile(monkeypatch):
    compiler = GrammarCompiler(vocabulary())
    calls, gate = [], threading.Event()
    original = GrammarCompiler._compile

    def slow(self, key):
        calls.append(key.value)
        assert gate.wait(10)
        return original(self, key)

    monkeypatch.setattr(GrammarCompiler, "_compile", slow)
    good, bad = GrammarSpec("regex", "shared"), GrammarSpec("regex", "[")
    results = []

    def ask(spec):
        try:
            results.append(compiler.compile(spec))
        except GrammarInvalid as error:
            results.append(str(error))

    threads = [threading.Thread(target=ask, args=(spec,)) for spec in [good, bad] * 4]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10
    while len(calls) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    gate.set()
    for thread in threads:
        thread.join(10)
    assert sorted(calls) == ["[", "shared"]
    assert len(results) == 8
    assert len({id(result) for result in results if not isinstance(result, str)}) == 1
    assert sum(isinstance(result, str) for result in results) == 4


def test_a_refusal_is_remembered_for_a_while_and_not_for_ever(monkeypatch):
    now = [0.0]
    compiler = GrammarCompiler(vocabulary(), clock=lambda: now[0])
    calls = []
    original = GrammarCompiler._compile
    monkeypatch.setattr(GrammarCompiler, "_compile", lambda self, key: calls.append(key.value) or original(self, key))
    bad = GrammarSpec("regex", "[")
    for seconds, compiled in ((0, 1), (1, 1), (59, 1), (61, 2), (62, 2)):
        now[0] = float(seconds)
        with pytest.raises(GrammarInvalid, match="not closed"):
            compiler.compile(bad)
        assert len(calls) == compiled
    for number in range(300):  # many others push it out
        with pytest.raises(GrammarInvalid):
            compiler.compile(GrammarSpec("regex", f"[{number}"))
    with pytest.raises(GrammarInvalid):
        compiler.compile(bad)
    assert len(calls) == 303


@pytest.mark.parametrize("specials", [(IM_END,), (0,), (HEAD + 5,), (-1,), (EMPTY,)])
def test_only_special_tokens_with_a_text_can_be_declared(compiler, specials):
    with pytest.raises(GrammarInvalid, match="specials"):
        compiler.compile(GrammarSpec("regex", "a", specials=specials))


@pytest.mark.parametrize(
    ("spec", "core"),
    [
        (schema({"type": "boolean"}), XgrammarCore),
        (schema({"type": "number", "multipleOf": 0.5}), LlguidanceCore),
        (schema({"type": "string", "pattern": "^([a-z]+ ?)+$"}, strict=True), LlguidanceCore),
        (schema({"type": "object", "properties": {"a": {}}}), LlguidanceCore),
        (schema({"anyOf": [{"const": f"a value {n}"} for n in range(200)]}, strict=True), LlguidanceCore),
        (GrammarSpec("regex", "yes|no"), LlguidanceCore),
        (GrammarSpec("regex", "[0-9]{3}"), OutlinesCore),  # wide in this small vocabulary
        (GrammarSpec("regex", "[a-z ]{1,200}"), LlguidanceCore),
        (GrammarSpec("choice", '["a"]'), XgrammarCore),
    ],
)
def test_routes(compiler, spec, core):
    assert type(compiler.compile(spec)._core) is core


def test_compiles_of_different_specs_run_side_by_side(compiler):
    specs = [schema({"type": "object", "properties": {f"p{n}": {"type": "integer"}}}) for n in range(24)]
    results = {}

    def work(part):
        for n in part:
            results[n] = fits(compiler.compile(specs[n]).matcher(), json.dumps({f"p{n}": n}))

    threads = [threading.Thread(target=work, args=(range(start, 24, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == dict.fromkeys(range(24), True)


def test_vocabularies_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="fit a head"):
        Vocabulary([b"a", b"b"], 1, (0,))
    with pytest.raises(ValueError, match="end tokens"):
        Vocabulary([b"a", b"b"], 2, ())
    with pytest.raises(ValueError, match="end tokens"):
        Vocabulary([b"a", b"b"], 2, (2,))


def test_an_end_token_may_be_padding_or_the_only_special():
    for vocab, end in (
        (Vocabulary([b"a", b"b"], 40, (39,)), 39),
        (Vocabulary([b"a", b"b", b"</s>"], 3, (2,), (2,)), 2),
    ):
        matcher = GrammarCompiler(vocab).compile(GrammarSpec("regex", "ab")).matcher()
        assert matcher.try_accept([0, 1, end, 0]) == 3
        assert matcher.terminated
