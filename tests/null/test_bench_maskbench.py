"""The data of `bench structured`: the form of the file, the order of instances, verdicts and percentiles."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bosquet.errors import GrammarInvalid
from bosquet.runtime.bench.instance_order import texts
from bosquet.runtime.bench.maskbench import judge, read_cases, run, subset_of, summarise
from bosquet.types import Relaxed


def ordered(schema, value):
    return json.loads(texts(schema, value)[0], object_pairs_hook=lambda pairs: [list(pair) for pair in pairs])


def test_instances_follow_the_order_of_the_schema():
    base = {"properties": {"z": {}, "y": {"properties": {"q": {}, "p": {}}}}}
    schema = {
        "$defs": {"base": base},
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"a": {"items": {"$ref": "#/$defs/base"}}},
        "required": ["m"],
    }
    value = {"x": 1, "m": 1, "a": [{"y": 1, "z": 1}], "y": {"p": 1, "q": 2}, "z": 3}
    assert ordered(schema, value) == [
        ["z", 3],
        ["y", [["q", 2], ["p", 1]]],
        ["a", [[["z", 1], ["y", 1]]]],
        ["m", 1],
        ["x", 1],
    ]


def test_own_order_is_a_second_spelling_and_numbers_are_canonical():
    assert texts({"properties": {"b": {}, "a": {}}}, {"a": 2.0, "b": 0.5}) == [b'{"b":0.5,"a":2}', b'{"a":2,"b":0.5}']
    assert texts({}, {"a": 1}) == [b'{"a":1}']
    assert texts({"$ref": "#"}, [1e300]) == [b"[1e+300]"]


def test_recursive_and_broken_schemas_do_no_harm():
    tree = {"properties": {"v": {}, "next": {"$ref": "#"}}, "patternProperties": {"[": {}}}
    assert texts(tree, {"next": {"next": {}, "v": 1}, "v": 1})[0] == b'{"v":1,"next":{"v":1,"next":{}}}'
    for schema in (True, 3, {"$ref": "#/nowhere"}, {"properties": 3, "required": 3, "items": 3, "allOf": 3}):
        assert texts(schema, {"a": [1]}) == [b'{"a":[1]}']


class Text:
    """A grammar of one text."""

    size_bytes = 0

    def __init__(self, accepted, relaxed=()):
        self.accepted, self.relaxed, self.at = accepted, relaxed, 0

    def matcher(self):
        return Text(self.accepted, self.relaxed)

    def try_accept(self, ids):
        for count, byte in enumerate(ids):
            if self.at >= len(self.accepted) or self.accepted[self.at] != byte:
                return count
            self.at += 1
        return len(ids)

    @property
    def completed(self):
        return self.at == len(self.accepted)

    def fill_mask(self, row):
        row.fill(0)


class Compiler:
    """Knows the answers: a schema is its own grammar."""

    def compile(self, spec):
        schema = json.loads(spec.value)
        if "refuse" in schema:
            raise GrammarInvalid("schema: #: `x` cannot be enforced")
        return Text(schema["only"].encode(), tuple(Relaxed("#", "x", "y") for _ in range(schema.get("relaxed", 0))))


@pytest.fixture
def cases(tmp_path):
    def line(name, schema, *tests):
        return json.dumps(
            {"id": name, "schema": schema, "tests": [{"data": d, "valid": v, "description": str(d)} for d, v in tests]}
        )

    path = tmp_path / "cases.jsonl"
    lines = [
        line("A---1", {"only": "1"}, (1, True), (2, False)),
        line("A---2", {"only": "1"}, (2, True)),
        line("B_x_3", {"only": "1"}, (1, False)),
        line("B_x_4", {"only": "1", "relaxed": 1}, (1, False)),
        line("B_x_5", {"refuse": 1}, (1, True)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return list(read_cases(path))


def test_verdicts(cases):
    done = list(run(cases, Compiler(), strict=True))
    assert [one.result for one in done] == ["pass", "rejects valid", "accepts invalid", "accepts invalid", "refused"]
    assert [one.silent for one in done] == [False, False, True, False, False]
    assert done[4].refusal == "schema: #: `x` cannot be enforced"
    assert (done[2].wrong_accepts, done[1].wrong_rejects) == (["1"], ["2"])
    assert done[0].mask_us == []
    assert done[0].first_mask_ms is None


def test_masks_are_timed_before_every_token_of_valid_instances(cases):
    done = judge(cases[0], Compiler(), strict=True, mask_words=9)
    assert len(done.mask_us) == 2
    assert done.compile_ms is not None
    assert done.first_mask_ms is not None
    assert done.first_mask_ms >= done.compile_ms >= 0


def test_summaries(cases):
    rows = summarise(list(run(cases, Compiler(), strict=False, mask_words=1)))
    assert [
        (row.subset, row.schemas, row.passed, row.refused, row.rejects, row.accepts, row.silent) for row in rows
    ] == [
        ("A", 2, 1, 0, 1, 0, 0),
        ("B_x", 3, 0, 1, 0, 2, 1),
        ("all", 5, 1, 1, 1, 2, 1),
    ]
    assert rows[1].mask_us is None
    assert rows[0].compile_ms is not None
    assert rows[0].compile_ms[0] <= rows[0].compile_ms[1]
    assert np.isfinite(rows[2].first_mask_ms).all()
    assert (subset_of("Github_easy---o1"), subset_of("BFCL_sql_3"), subset_of("x")) == ("Github_easy", "BFCL_sql", "x")
