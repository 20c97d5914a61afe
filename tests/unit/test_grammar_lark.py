"""Lark grammars: what they accept, judged by regular expressions written by hand, and what is refused with its line."""

from __future__ import annotations

import json
import re

import pytest
from grammar_vocabulary import fits, mask_of, mismatches, spell, vocabulary

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.types import GrammarSpec


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(vocabulary())


def lark(text, **kind):
    return GrammarSpec("lark", text, **kind)


TEXTS = ["", "a", "ab", "aab", "1+2", "(1 + 2)+3", "1 +", "1  +2", "aa", "aaa", "aaaa", "AB", "ab cd", "ab  cd", "foo",
         "afoob", "abENDx", "abENDcENDx", "12-3", "a/b", 'say "hi"', "n: 5", "日本 é"]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('start: WORD (" " WORD)*\nWORD: /[a-z]+/', r"[a-z]+( [a-z]+)*"),
        ('start: e\ne: N | e "+" e | "(" e ")"\nN: /[0-9]+/\n%ignore " "', r"[0-9]+|1\+2|\(1 \+ 2\)\+3|1  \+2"),
        ("%import common.INT\nstart: INT \"-\" INT", r"[0-9]+-[0-9]+"),
        ('start: "a"~2..3', r"aa|aaa"),
        ('start: "a"{2,3} // two or three', r"aa|aaa"),
        ('start: "Ab"i # in any case', r"(?i:ab)"),
        ("start: A\nA: /[a-zA-Z]*/ & ~/(?s:.*)foo(?s:.*)/", r"(?!.*foo)[a-zA-Z]*"),
        ('start: x "x"\nx[lazy]: /.*END/', r"abENDx"),
        ('start: x "x"\nx[suffix="END"]: /.*/', r"abENDx"),
        ('start: "a" "/" /[b]/', r"a/b"),
        ('start: "say " /".*"/', r'say ".*"'),
        ('start: "a" [start]', r"a+"),
        ("?start: (\"a\" | \"b\")+ -> name", r"[ab]+"),
        ('start: "n: " %json {"type": "integer"}', r"n: -?[0-9]+"),
        ("start: /\\S+/ \" \" /é/", r"日本 é"),
    ],
)  # fmt: skip
def test_it_accepts_what_it_says(compiler, text, same):
    compiled = compiler.compile(lark(text))
    assert mismatches(compiled.matcher(), mask_of(compiled.matcher())) == []
    found = {sample for sample in TEXTS if fits(compiled.matcher(), sample)}
    assert found == {sample for sample in TEXTS if re.fullmatch(same, sample)}
    assert found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("start: missing", r"line 1, column 8: unknown name"),
        ('start: "a', r"line 1"),
        ("foo: \"a\"", r"start"),
        ('start: start "a"', "no text"),
        ("start: /a(?=b)b/", r"line 1.*invalid regex"),
        ("start: /\\bab/", "lookaround"),
        ('start: "a"\nx[max_tokens=3]: /b/', r"line 2: the attribute `max_tokens`"),
        ('start: x\nx[capture, temperature=0.5]: /b/', r"line 2: the attribute `temperature`"),
        ('start: x\nx[stop="z"]: /b/', r"line 2: the attribute `stop`"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', r"line 1: `%llguidance`"),
        ("start: <|im_start|>", "special token"),
        ("start: @other", "unknown grammar"),
        ("start: %json [", r"line 1: a JSON object has to follow"),
        ("start: %json", r"line 1: a JSON object has to follow"),
        ('start: %json {"type": "bar"}', r"line 1.*type"),
        ('start: "a"\n\nx: %json {"type": "string", "pattern": "["}', r"line 3.*pattern"),
        ("start: \ud800", "surrogate"),
        ("", "lark"),
        ("(" * 100_000, "lark"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_to_is_refused(compiler, text, why, capfd):
    with pytest.raises(GrammarInvalid, match=why) as caught:
        compiler.compile(lark(text))
    assert len(str(caught.value)) < 500
    assert capfd.readouterr().err == ""


def test_words_that_only_look_like_attributes_are_left_alone(compiler):
    for text in (
        'start: "x[stop=1]:" | /x\\[stop\\]:/',
        'start: x\nx[suffix="stop"]: /a*/',
        '// x[stop=1]: no\nstart: "a"',
        'start: stop\nstop: "a"',
    ):
        compiler.compile(lark(text))


def test_schemas_inside_are_linted(compiler):
    schema = json.dumps({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    compiled = compiler.compile(lark(f'start: "[x]"\n  | %json {schema}'))
    assert [(item.path, item.keyword) for item in compiled.relaxed] == [("line 2#", "uniqueItems")]
    with pytest.raises(GrammarInvalid, match=r"line 2.*uniqueItems"):
        compiler.compile(lark(f'start: "[x]"\n  | %json {schema}', strict=True))
    assert fits(compiled.matcher(), "[1, 2]")
    assert not fits(compiled.matcher(), "[1,  2]")  # white space is bounded there too
    assert not fits(compiled.matcher(), '["a"]')


def test_bytes_that_are_not_utf8_are_never_accepted(compiler):
    """`~` alone would let them through."""
    compiled = compiler.compile(lark("start: A\nA: ~/a/"))
    assert compiled.matcher().try_accept(spell(b"\xed\xbe\xb1")) < 3
    assert compiled.matcher().try_accept(spell("é")) == 2
