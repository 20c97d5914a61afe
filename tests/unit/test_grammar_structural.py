"""Structural formats on both engines against `format_oracle`, which writes their meaning down a second time."""

from __future__ import annotations

import json
import random

import pytest
from format_oracle import matches
from grammar_vocabulary import BYTE, TOOL, choose, mask_of, spell, text_of, tokens_in, vocabulary

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.engines import Engines
from bosquet.grammar.format_lark import as_lark
from bosquet.grammar.formats import check_format, parts
from bosquet.types import GrammarSpec

A = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
     "additionalProperties": False}  # fmt: skip
JSON, BOOL = {"type": "json_schema", "json_schema": A}, {"type": "json_schema", "json_schema": {"type": "boolean"}}
ANY = {"type": "any_text"}


def const(value):
    return {"type": "const_string", "value": value}


def regex(pattern):
    return {"type": "regex", "pattern": pattern}


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def several(kind, *elements):
    return {"type": kind, "elements": [*elements]}


def triggered(triggers, *tags, **flags):
    return {"type": "triggered_tags", "triggers": triggers, "tags": [*tags], **flags}


def separated(separator, *tags, **flags):
    return {"type": "tags_with_separator", "tags": [*tags], "separator": separator, **flags}


T1, T2 = tag("<t1>", JSON, "</t>"), tag("<t2>", BOOL, "</t>")
FREE = tag("<ta>", ANY, ["</a>", "</b>"])
CASES = [
    const("ab"), JSON, BOOL, ANY, regex("a|ab"), T1, FREE, tag("<r>", regex("[a-z]+"), "b"),
    several("sequence", const("x"), several("or", JSON, const("y"), regex("[yz]{2}"))),
    several("sequence", const("x"), ANY),
    several("sequence", tag("<o>", ANY, "</o>"), const("\n"), triggered(["<t"], T1)),
    several("or", tag("<o>", ANY, "</o>"), const("x")),
    triggered(["<t"], T1, T2), triggered(["<t"], T1, T2, FREE), triggered(["<t1>"], T1),
    triggered(["<t"], T1, T2, at_least_one=True), triggered(["<t"], T1, FREE, stop_after_first=True),
    triggered(["<t"], T1, T2, at_least_one=True, stop_after_first=True),
    triggered(["<a", "<b"], tag("<a>", JSON, "</a>"), tag("<b>", BOOL, "</b>"), tag("<bb>", ANY, "</b>")),
    triggered(["<call>"], tag('<call>{"name":"f","args":', JSON, "}</call>"),
              tag('<call>{"name":"fg","args":', BOOL, "}</call>")),
    tag("<o>", triggered(["<t"], T1, T2), "</o>"),
    tag("<o>", triggered(["<t"], T1, T2, stop_after_first=True), ["</o>", "!!"]),
    tag("<o>", triggered(["<t"], T1, at_least_one=True), "</o>"),
    separated(", ", T1, T2), separated("", T1, FREE, at_least_one=True),
    separated(";", T1, T2, at_least_one=True, stop_after_first=True), separated(";", T1, stop_after_first=True),
    tag("[", separated(",", tag('{"n":', JSON, "}"), tag('{"m":', BOOL, "}")), "]"),
    tag("{", {"type": "json_schema", "json_schema": {"type": "integer"}}, ["}", "!"]),
    tag("<s>", {"type": "json_schema", "json_schema": {"type": "string"}}, ["</s>", ""]),
    # Texts that begin alike on several levels, as the channels of one model family do.
    several("sequence",
            separated("", tag("<c>", several("or", tag("one<m>", ANY, "</e>"), tag("two<m>", ANY, "</e>")), "<s>")),
            several("or", tag("<c>two to=f", JSON, ""), tag("<c>two to=fg", BOOL, ""), const("<c>t"))),
    several("or", const("abc"), const("abd"), const("ab"), const("b")),
]  # fmt: skip
FILLERS = ['{"a":1}', '{"a":123}', "true", '"ab"', '"', "a", "b", "x", "<", "</", " ", "5", "<t", "\n", "é"]


@pytest.fixture(scope="module")
def engines():
    return Engines(vocabulary(), 1)


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(vocabulary())


def markers(node):
    for _, inner in parts(node):
        for name in ("value", "begin", "separator"):
            yield inner.get(name, "")
        yield from [*inner.get("end", ()), *inner.get("triggers", ())]


SAMPLES = {
    "object": ['{"a":1}', '{"a": 42}'],
    "boolean": ["true", "false"],
    "integer": ["7", "-12"],
    "string": ['"ab"'],
}


def sample(node, rng):
    """A text of the format, mostly."""
    kind = node["type"]
    if kind == "const_string":
        return node["value"]
    if kind == "json_schema":
        return rng.choice(SAMPLES[node["json_schema"]["type"]])
    if kind == "regex":
        return rng.choice(["a", "ab", "yz", "abb"])
    if kind == "any_text":
        return rng.choice(["", "a", "x <b", "é\n"])
    if kind == "or":
        return sample(rng.choice(node["elements"]), rng)
    if kind == "sequence":
        return "".join(sample(inner, rng) for inner in node["elements"])
    if kind == "tag":
        return node["begin"] + sample(node["content"], rng) + rng.choice(node["end"])
    tags = [sample(rng.choice(node["tags"]), rng) for _ in range(rng.randint(0, 3))]
    if kind == "tags_with_separator":
        return node["separator"].join(tags)
    return rng.choice(["", "a", "x "]) + rng.choice(["", " ", "y"]).join(tags)


def texts_for(node, compiled, rng):
    """Texts near the format: made for it, some with a character too few, glued from its markers, and walks of the
    engine that is tested."""
    pieces = [*dict.fromkeys(filter(None, markers(node))), *FILLERS]
    texts = {"".join(rng.choices(pieces, k=rng.randint(0, 6))) for _ in range(300)}
    for _ in range(60):
        text = sample(node, rng)
        at = rng.randrange(len(text) + 1)
        texts |= {text, text[:at] + text[at + 1 :], text + rng.choice(pieces)}
    for _ in range(30):
        matcher, ids = compiled.matcher(), []
        for step in range(40):
            allowed = tokens_in(mask_of(matcher))
            assert allowed, text_of(ids)
            token = choose(rng, allowed, step)
            matcher.try_accept([token])
            if matcher.terminated:
                break
            ids.append(token)
        if matcher.completed:
            texts.add(text_of(ids).decode())
    # Other white space than blanks and line feeds is xgrammar's alone; escapes are not the same on the two.
    return [text for text in texts if len(text) < 80 and not {"\t", "\r", "\\"} & set(text)]


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("value", CASES, ids=lambda value: json.dumps(value)[:70])
def test_what_an_engine_accepts_is_what_the_format_means(engines, engine, value):
    node = check_format(json.dumps(value))
    compiled = engines.xgrammar.structural(node) if engine == "xgrammar" else engines.llguidance.lark(as_lark(node))
    wrong, good = [], 0
    for text in texts_for(node, compiled, random.Random(json.dumps(value))):
        if not text.isascii() and "é" not in text:
            continue
        ids = spell(text)
        matcher = compiled.matcher()
        accepted = matcher.try_accept(ids) == len(ids) and matcher.completed
        wanted = matches(node, text)
        good += accepted
        if accepted != wanted:
            wrong.append((text, accepted))
    assert wrong == []
    assert good


def test_llguidance_never_gives_back_what_a_pattern_has_taken(engines):
    """What follows JSON or a pattern is not looked at by its lexer: fewer texts than the format's, never more."""
    node = check_format(json.dumps(several("sequence", regex("[a-z]+"), BOOL)))
    compiled = engines.llguidance.lark(as_lark(node))
    assert compiled.matcher().try_accept(spell("abtrue")) == len("abtrue")
    found = [text for text in ("true", "abtrue", "ab1") if _fits(compiled, text) and not matches(node, text)]
    assert found == []


def _fits(compiled, text):
    matcher = compiled.matcher()
    return matcher.try_accept(spell(text)) == len(spell(text)) and matcher.completed


CALL = tag('<tool>{"args":', JSON, "}</tool>")


def test_special_tokens_are_text_for_the_spec_that_declares_them(compiler):
    value = json.dumps(triggered(["<tool>"], CALL))
    plain = compiler.compile(GrammarSpec("structural_tag", value)).matcher()
    assert TOOL not in tokens_in(mask_of(plain))
    assert plain.try_accept([TOOL]) == 0
    declared = compiler.compile(GrammarSpec("structural_tag", value, specials=(TOOL,))).matcher()
    assert TOOL in tokens_in(mask_of(declared))
    assert declared.try_accept([BYTE[b"x"], TOOL, BYTE[b"x"]]) == 2  # after the trigger, only the tag
    assert declared.try_accept(spell('{"args":{"a":1}}</tool>')) == len('{"args":{"a":1}}</tool>')
    assert declared.completed
    assert TOOL not in tokens_in(mask_of(compiler.compile(GrammarSpec("structural_tag", value)).matcher()))
    assert TOOL not in tokens_in(mask_of(compiler.compile(GrammarSpec("regex", "[^a]+")).matcher()))


def test_a_schema_inside_may_need_the_other_engine(compiler):
    """`multipleOf` of a number is llguidance's alone; tags around it stay the same."""
    step = {"type": "json_schema", "json_schema": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 9}}
    value = json.dumps(triggered(["<n>"], tag("<n>", step, "</n>")))
    compiled = compiler.compile(GrammarSpec("structural_tag", value, strict=True))
    assert _fits(compiled, "so <n>2.5</n> and")
    assert not _fits(compiled, "so <n>2.4</n>")
    assert not _fits(compiled, "so <n>2.5 and")


def test_what_no_engine_enforces_is_refused_with_its_place_or_reported_with_it(compiler):
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    value = json.dumps(several("sequence", const("x"), {"type": "json_schema", "json_schema": schema}))
    with pytest.raises(GrammarInvalid, match=r"#/elements/1/json_schema.*uniqueItems"):
        compiler.compile(GrammarSpec("structural_tag", value, strict=True))
    relaxed = compiler.compile(GrammarSpec("structural_tag", value)).relaxed
    assert [(item.path, item.keyword) for item in relaxed] == [("#/elements/1/json_schema", "uniqueItems")]


@pytest.mark.parametrize("pattern", ["[", "(?=a)a", "(a)\\1", "[^\\s\\S]"])
def test_bad_patterns_inside_are_refused_with_their_place(compiler, pattern):
    with pytest.raises(GrammarInvalid, match="#/content/pattern"):
        compiler.compile(GrammarSpec("structural_tag", json.dumps(tag("<", regex(pattern), ">"))))


def test_raw_control_characters_never_stand_in_bounded_strings(compiler):
    bounded = {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 5}}
    compiled = compiler.compile(GrammarSpec("structural_tag", json.dumps(tag("<s>", bounded, "</s>"))))
    assert _fits(compiled, '<s>"ab"</s>')
    assert not _fits(compiled, '<s>"a\tb"</s>')
    free = compiler.compile(GrammarSpec("structural_tag", json.dumps(ANY)))
    assert _fits(free, "a\tb")
