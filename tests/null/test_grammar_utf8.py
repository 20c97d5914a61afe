"""The UTF-8 automaton against Python's strict decoder."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bosquet.grammar.utf8 import INVALID, STATES, advance, mask_rows, transitions

pieces = st.one_of(
    st.binary(max_size=5),
    st.text(max_size=3).map(str.encode),
    st.lists(st.sampled_from(list(b"\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\x80\x8f\x90\x9f\xa0\xbfA")), max_size=6).map(
        bytes
    ),
)


TAILS = [bytes(tail) for length in range(4) for tail in itertools.product((0x80, 0x90, 0xA0), repeat=length)]


def is_text(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def decoder_state(text):
    """(some text begins like this, this is a whole text), by the strict decoder of the standard library."""
    return any(is_text(text + tail) for tail in TAILS), is_text(text)


@settings(max_examples=200, deadline=None)
@given(pieces)
@example("\ud7ff\ue000\U0010ffff".encode())
@example(b"\xed\xa0\x80")
@example(b"\xf0\x8f\xbf\xbf")
@example(b"\xf4\x90")
@example(b"\xe0\x9f")
def test_the_automaton_is_pythons_decoder(text):
    state = advance(0, text)
    valid, between = decoder_state(text)
    assert (state != INVALID) == valid
    assert (state == 0) == (valid and between)


def test_every_single_byte_from_every_state():
    prefixes = {0: b"", 1: b"\xc3", 2: b"\xe1", 3: b"\xf1", 4: b"\xe0", 5: b"\xed", 6: b"\xf0", 7: b"\xf4"}
    assert len(prefixes) == STATES
    for state, prefix in prefixes.items():
        assert advance(0, prefix) == state
        for byte in range(256):
            assert (advance(state, bytes([byte])) != INVALID) == decoder_state(prefix + bytes([byte]))[0]


@settings(deadline=None)
@given(st.lists(pieces, min_size=1, max_size=40))
def test_tables_and_masks_say_the_same(tokens):
    table = transitions(tokens)
    for state in range(STATES):
        expected = [INVALID if text == b"" else advance(state, text) for text in tokens]
        assert table[state].tolist() == expected
    rows = mask_rows(table)
    for state, row in enumerate(rows):
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        assert bits[: len(tokens)].tolist() == (table[state] != INVALID).astype(int).tolist()
        assert not bits[len(tokens) :].any()
