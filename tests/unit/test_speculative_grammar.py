"""What a grammar makes of a draft: every token is allowed where it stands, each mask is that of its place, and the
matcher is left as it was."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from grammar_vocabulary import END_OF_TEXT, HEAD, choose, mask_of, spell, tokens_in, vocabulary

from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.matcher import only_bit
from bosquet.speculative.draft import hold_to
from bosquet.types import GrammarSpec

WORDS = -(-HEAD // 32)
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["red", "green"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
SPECS = [
    GrammarSpec("json_schema", json.dumps(RECORD)),
    GrammarSpec("regex", "(abc|abd)[0-9]{2}xyz"),
    GrammarSpec("choice", json.dumps(["red apple", "red cherry"])),
    GrammarSpec("lark", 'start: "ab" /[0-9]/ "cd"'),
]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(vocabulary())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("seed", range(6))
def test_drafts_on_a_random_walk(compiler: GrammarCompiler, spec: GrammarSpec, seed: int) -> None:
    rng = random.Random(seed)
    matcher = compiler.compile(spec).matcher()
    for step in range(40):
        before = mask_of(matcher)
        offer = [rng.randrange(HEAD) if rng.random() < 0.3 else choose(rng, tokens_in(before), step)]
        offer += [rng.randrange(HEAD) for _ in range(3)]
        limit = rng.randrange(5)
        forced = rng.random() < 0.7
        draft = hold_to(matcher, offer, limit, WORDS, forced=forced, encode=spell, most_text=rng.choice([0, 2, 99]))
        assert np.array_equal(mask_of(matcher), before), "left as it was"
        assert len(draft.tokens) == len(draft.sources) <= limit
        assert draft.masks is not None
        assert len(draft.masks) == 1 + len(draft.tokens)
        fork = matcher.fork()
        for i, token in enumerate(draft.tokens):
            assert np.array_equal(draft.masks[i], mask_of(fork))
            assert fork.try_accept([token]) == 1
            assert not fork.terminated, "an end token is drawn"
            only = only_bit(draft.masks[i])
            assert (draft.sources[i] == "forced") == (forced and only is not None)
            assert not forced or only is None or only == token
        assert np.array_equal(draft.masks[-1], mask_of(fork))
        if matcher.try_accept([choose(rng, tokens_in(before), step)]) != 1 or matcher.terminated:
            break


def test_text_that_must_come_is_offered_but_for_its_last_token(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(SPECS[1]).matcher()
    assert matcher.try_accept(spell("abc12")) == 5
    draft = hold_to(matcher, [], 9, WORDS, forced=True, encode=spell, most_text=9)
    forced = matcher.forced_text()
    assert forced in ("", "xyz"), "as far as the engine can tell"
    if forced:
        assert draft.tokens[:2] == spell("xy")


def test_an_offer_that_the_grammar_forbids_is_cut_where_it_does(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(SPECS[0]).matcher()
    right = spell('{"name": "ab')
    wrong = [*right, *spell('"]')]
    draft = hold_to(matcher, wrong, 99, WORDS, forced=False)
    assert draft.tokens == wrong[:-1]
    assert hold_to(matcher, spell("["), 9, WORDS, forced=False).tokens == []


def test_an_end_token_is_not_drafted(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(GrammarSpec("choice", json.dumps(["a", "ab"]))).matcher()
    assert hold_to(matcher, [*spell("ab"), END_OF_TEXT, *spell("a")], 9, WORDS, forced=False).tokens == spell("ab")
