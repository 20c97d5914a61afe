"""The dashboard's pure functions against second implementations: the server's own sums, Prometheus' parser, numpy."""

from __future__ import annotations

import itertools
import random
import sys
import unicodedata
from typing import Any

import msgspec
import numpy as np
import pytest
from javascript import each
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bosquet.runtime.server.explain_report import CacheReport
from bosquet.runtime.server.trace_records import Part, RequestRecord, origins, times
from bosquet.runtime.trace import ChoiceTrace, Prefill, Trace

JOINS_OR_SHOWN = {0x9, 0xA, 0x200C, 0x200D}
"""Line breaks, tabs, and the joiners that scripts and emoji need."""
PREPENDED = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}
NOTATION = {*range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B)}
"""Marks that are seen, or stand in shorthand and music alone."""


def test_no_control_character_reaches_the_page():
    hidden = [c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) in ("Cc", "Cf", "Zl", "Zp")]
    hidden = [c for c in hidden if c not in JOINS_OR_SHOWN | PREPENDED | NOTATION]
    assert len(hidden) > 150
    shown = each("dom.js", "it.visible(x)", [f"a{chr(c)}b" for c in hidden])
    for code, text in zip(hidden, shown, strict=True):
        assert chr(code) not in text, hex(code)
        assert text[0] == "a"
        assert text[-1] == "b"
        assert len(text) > 2
    assert len(set(shown)) == len(shown), "and each is told from the others"
    plain = ["<b>&amp;\"'`${x}", "line\n\ttab", "é 漢字 🌳 👩\u200d👧", ""]
    assert each("dom.js", "it.visible(x)", plain) == plain
    assert each("dom.js", "it.visible(x)", ["\x1b[31mred\x07"]) == ["␛[31mred␇"]


def test_numbers_read_as_people_write_them():
    durations = [0, 2.5e-6, 0.00045, 0.0123, 0.9994, 0.9996, 4, 3.9999, 59.96, 119.9, 121, 7300, None]
    said = "0 s|2.50 µs|450 µs|12.3 ms|999 ms|1.00 s|4 s|4.00 s|60.0 s|120 s|2.02 min|2.03 h|–"
    assert "|".join(each("format.js", "it.duration(x)", durations)) == said
    shares = [[1, 3], [0, 5], [5, 5], [1, 100000], [3, 0]]
    assert each("format.js", "it.percent(...x)", shares) == ["33.3 %", "0 %", "100 %", "0.001 %", "–"]
    assert each("format.js", "it.short(x)", [0, 7, 999, 1234, 45_600_000]) == ["0", "7", "999", "1.23k", "45.6M"]
    assert each("format.js", "it.count(x)", [0, 1234567, None]) == ["0", "1,234,567", "–"]
    assert each("format.js", "it.money(x)", [0, 0.0012, 3.456]) == ["$0", "$0.0012", "$3.46"]
    for most, marks in zip((97, 1, 0.3), each("format.js", "it.ticks(x)", [97, 1, 0.3]), strict=True):
        assert marks[0] == 0
        assert most * 0.5 < marks[-1] <= most * 1.0001
        assert 3 <= len(marks) <= 12


def exposed(seed: int) -> tuple[str, CollectorRegistry]:
    draw = random.Random(seed)
    registry = CollectorRegistry()
    counter = Counter("some", "Some.", ("kind", "who"), registry=registry)
    for who in ("plain", 'quo"te', "back\\slash", "line\nbreak", "comma,{brace}", ""):
        counter.labels(draw.choice("ab"), who).inc(draw.randrange(1000))
    Gauge("level", "A level.", registry=registry).set(draw.uniform(-5, 5))
    histogram = Histogram("wait_seconds", "Waits.", buckets=(0.1, 0.5, 1, 5), registry=registry)
    for _ in range(draw.randrange(1, 60)):
        histogram.observe(draw.expovariate(1))
    return generate_latest(registry).decode(), registry


def test_metrics_are_read_as_the_official_parser_reads_them():
    texts = [exposed(seed)[0] for seed in range(5)]
    for text, found in zip(texts, each("metrics.js", "[...it.parse(x)]", texts), strict=True):
        ours = [(name, tuple(sorted(m["labels"].items())), m["value"]) for name, lines in found for m in lines]
        theirs = [
            (s.name, tuple(sorted(s.labels.items())), s.value)
            for family in text_string_to_metric_families(text)
            for s in family.samples
        ]
        assert sorted(ours) == sorted(theirs)
    sums = each("metrics.js", "it.by(it.parse(x), 'some_total', 'kind')", texts[:1])[0]
    assert sum(sums.values()) == each("metrics.js", "it.total(it.parse(x), 'some_total')", texts[:1])[0] > 0


def test_quantiles_are_straight_within_a_bucket():
    draw = random.Random(3)
    ends = [0.1, 0.5, 1.0, 5.0]
    cases = []
    for _ in range(40):
        counts = list(itertools.accumulate(draw.randrange(1, 9) for _ in ends))
        cases.append((draw.uniform(0.01, 0.99), counts))
    given = [[q, [*zip(ends, counts, strict=True)]] for q, counts in cases]
    for (q, counts), found in zip(cases, each("metrics.js", "it.quantile(...x)", given), strict=True):
        assert found == pytest.approx(np.interp(q * counts[-1], [0, *counts], [0, *ends]))
    assert each("metrics.js", "it.quantile(...x)", [[0.5, []], [0.5, [[1, 0]]]]) == [None, None]
    over = each(
        "metrics.js", "it.quantile(0.9, it.buckets(it.parse(x), 'h'))", ['h_bucket{le="1"} 1\nh_bucket{le="+Inf"} 9\n']
    )
    assert over == [1], "beyond the last bucket its end is all that is known"


def test_a_rate_counts_from_zero_after_a_restart():
    pair = "{at: 10, metrics: it.parse('c_total 50')}, {at: 12, metrics: it.parse(x)}"
    assert each("metrics.js", f"it.rate({pair}, 'c_total')", ["c_total 70", "c_total 6"]) == [10, 3]


def records(seed: int, count: int) -> list[RequestRecord]:
    """Records like those that the server keeps, of all kinds."""
    draw = random.Random(seed)
    return [record(draw) for _ in range(count)]


def record(draw: random.Random) -> RequestRecord:
    prompt = draw.randrange(1, 200)
    cached = draw.randrange(prompt)
    copied, disk = draw.randrange(cached // 3 + 1), draw.randrange(cached // 3 + 1)
    ends = sorted({0, prompt, *(draw.randrange(prompt + 1) for _ in range(draw.randrange(4)))})
    parts = [Part(i, draw.choice(("system", "user")), a, b) for i, (a, b) in enumerate(itertools.pairwise(ends))]
    choices = [choice(draw, i, prompt, cached) for i in range(draw.choice((1, 1, 2)))]
    engine = Trace(request="r", arrival=100.25, prompt_tokens=prompt, choices=choices)
    report = CacheReport(
        id="r", prompt_tokens=prompt, cached_tokens=cached, position=cached, cause="cold", lost_tokens=0, hint="",
        memory_tokens=cached - copied - disk, copied_tokens=copied, disk_tokens=disk,
    )  # fmt: skip
    return RequestRecord(
        id="r", arrival=100.0, seconds=0.25 + max(c.ended for c in choices) + 0.125, prompt_tokens=prompt,
        cached_tokens=cached, parts=draw.choice((parts, [])), engine=draw.choice((engine, engine, engine, None)),
        cache=draw.choice((report, report, None)),
    )  # fmt: skip


def choice(draw: random.Random, number: int, prompt: int, cached: int) -> ChoiceTrace:
    if draw.random() < 0.15:
        return ChoiceTrace(choice=number, ended=draw.random(), finish="abort")
    admitted, first = draw.random(), 1 + draw.random()
    generated = draw.randrange(1, 30)
    right = [draw.randrange(generated // 4 + 1) for _ in range(3)]
    return ChoiceTrace(
        choice=number, admitted=admitted, first_token=draw.choice((first, first, None)), ended=first + draw.random(),
        cached=cached, computed=prompt - cached + draw.choice((0, 0, 50)), generated=generated, match_seconds=1e-5,
        prefills=[Prefill(prompt - cached, admitted + 0.01, first - admitted - 0.02)], finish="stop",
        drafts={name: (n + 3, n) for name, n in zip(("forced", "text", "suffix"), right, strict=True)},
    )  # fmt: skip


def told(of: list[RequestRecord]) -> list[Any]:
    return [msgspec.json.decode(msgspec.json.encode(one)) for one in of]


def test_origins_are_the_servers_own():
    some = records(1, 200)
    theirs = [msgspec.to_builtins(origins(one)) for one in some]
    assert each("record.js", "it.origins(x)", told(some)) == theirs


def test_a_prompt_is_cut_whole_and_by_messages():
    some = records(2, 200)
    found = each("record.js", "[it.promptRuns(x), it.byMessage(x)]", told(some))
    for one, (runs, messages) in zip(some, found, strict=True):
        kinds: list[str] = []
        for run in runs:
            assert run["from"] == len(kinds)
            kinds += [run["kind"]] * (run["to"] - run["from"])
        assert len(kinds) == one.prompt_tokens
        choice = one.engine.choices[0] if one.engine else None
        cached = choice.cached if choice else one.cached_tokens
        assert len(kinds) - kinds.count("computed") == cached
        if one.cache and cached:
            assert kinds.count("disk") == one.cache.disk_tokens
            assert kinds[: one.cache.memory_tokens] == ["cached"] * one.cache.memory_tokens
        again = [run["kind"] for m in messages for run in m["runs"] for _ in range(run["from"], run["to"])]
        assert again == kinds
        assert [(m["index"], m["from"], m["to"]) for m in messages if m["index"] is not None] == [
            (part.index, part.start, part.end) for part in one.parts
        ]


def test_a_waterfall_adds_up_to_the_servers_times():
    some = records(4, 200)
    for one, rows in zip(some, each("record.js", "it.waterfall(x)", told(some)), strict=True):
        for row in rows:
            for _, begin, end, _ in row["spans"]:
                assert -1e-9 <= begin <= end <= one.seconds + 1e-9
        if one.engine is None or len(one.engine.choices) > 1:
            continue
        spent = times(one)
        named = {row["name"]: sum(end - begin for _, begin, end, _ in row["spans"]) for row in rows}
        assert named["queue"] == pytest.approx(spent.queue)
        assert named.get("decode") == (None if spent.decode is None else pytest.approx(spent.decode))
        assert named["server"] == pytest.approx(0.25 + 0.125)


def forest(draw: random.Random) -> list[dict[str, Any]]:
    """A tree as `/v1/cache/tree` tells it."""
    nodes: list[dict[str, Any]] = [{"parent": None, "start": 0, "tokens": 0} for _ in range(draw.choice((1, 3)))]
    for _ in range(draw.randrange(60)):
        parent = draw.randrange(len(nodes))
        start = nodes[parent]["start"] + nodes[parent]["tokens"]
        nodes.append({"parent": parent, "start": start, "tokens": draw.randrange(1, 90)})
    return nodes


def test_boxes_of_the_tree_lie_side_by_side_within_their_parents():
    draw = random.Random(5)
    trees = [forest(draw) for _ in range(40)]
    for nodes, map_ in zip(trees, each("layout.js", "it.layout(x, 1000)", trees), strict=True):
        boxes = map_["boxes"]
        children = [[i for i, node in enumerate(nodes) if node["parent"] == n] for n in range(len(nodes))]
        assert [sorted(c) for c in map_["children"]] == children
        end = max(1, *(node["start"] + node["tokens"] for node in nodes))
        for i, (node, box) in enumerate(zip(nodes, boxes, strict=True)):
            assert box["x"] == pytest.approx(1000 * node["start"] / end)
            assert box["w"] == pytest.approx(1000 * node["tokens"] / end)
            rows = [row for c in children[i] for row in range(boxes[c]["y"], boxes[c]["y"] + boxes[c]["h"])]
            assert sorted(rows) == list(range(box["y"], box["y"] + box["h"])) or not children[i]
            assert children[i] or box["h"] == 1
        assert map_["leaves"] == sum(not c for c in children)


def test_arrow_keys_reach_every_node_and_lead_back():
    draw = random.Random(6)
    trees = [tree for tree in (forest(draw) for _ in range(30)) if len(tree) > 1]
    step = "((i, key) => it.neighbour(x, it.layout(x, 100), i, key))"
    keys = ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"]
    moves = each("layout.js", f"x.map((_, i) => {keys}.map((key) => {step}(i, key)))", trees)
    for nodes, move in zip(trees, moves, strict=True):
        for root in (i for i, node in enumerate(nodes) if node["parent"] is None):
            below = {i for i in range(len(nodes)) if line(nodes, i)[-1] == root and i != root}
            begin = move[root][0]
            seen, to_see = set(), [begin] if begin != root else []
            while to_see:
                i = to_see.pop()
                if i not in seen:
                    seen.add(i)
                    to_see += [j for j in (move[i][0], move[i][2], move[i][3]) if nodes[j]["parent"] is not None]
            assert seen == below
            for i in below:
                if nodes[nodes[i]["parent"]]["parent"] is not None:
                    assert move[i][1] == nodes[i]["parent"]


def line(nodes: list[dict[str, Any]], i: int) -> list[int]:
    """A node and those above it."""
    found = [i]
    while nodes[found[-1]]["parent"] is not None:
        found.append(nodes[found[-1]]["parent"])
    return found


def test_a_difference_leaves_out_nothing_of_either_side():
    draw = random.Random(7)
    words = ["a", "b", "<b>", "12", ":", " ", "  ", "é", "🌳", "\n", "keep"]
    pairs = [["".join(draw.choices(words, k=draw.randrange(12))) for _ in range(2)] for _ in range(150)]
    pairs += [["same text", "same text"], ["", "x"], ["08:22:12. Rule 0", "08:21:11. Rule 0"]]
    found = each("record.js", "it.differ(...x)", pairs)
    for (a, b), (ours, theirs) in zip(pairs, found, strict=True):
        assert "".join(part["text"] for part in ours) == a
        assert "".join(part["text"] for part in theirs) == b
        assert "".join(p["text"] for p in ours if p["same"]) == "".join(p["text"] for p in theirs if p["same"])
    assert [[p["text"] for p in side if not p["same"]] for side in found[-1]] == [["2", "12"], ["1", "11"]]
    assert all(p["same"] for p in found[-3][0] + found[-3][1])


def test_money_is_what_a_provider_would_ask():
    line = {"prompt_tokens": 3_000_000, "cached_tokens": 2_000_000, "completion_tokens": 500_000}
    price = {"input": 3.0, "cached": 0.3, "output": 15.0}
    found = each("programs.js", "it.cost(...x)", [[line, price]])[0]
    assert found["paid"] == pytest.approx(2 * 0.3 + 1 * 3.0 + 0.5 * 15.0)
    assert found["paid"] + found["saved"] == pytest.approx(3 * 3.0 + 0.5 * 15.0)


def test_what_if_reads_the_curve_between_its_points():
    draw = random.Random(8)
    pages = sorted(draw.sample(range(1, 500), 20))
    rates = sorted(draw.random() for _ in pages)
    points = [{"pages": p, "hit_rate": r} for p, r in zip(pages, rates, strict=True)]
    asked = [1, 17, 250, *pages, 1000]
    found = each("whatif.js", "it.at(x[0], x[1])", [[points, n] for n in asked])
    assert found == pytest.approx(list(np.interp(asked, [0, *pages], [0, *rates])))
    enough = each("whatif.js", "it.enough(x)", [points])[0]
    assert enough == next(p for p, r in zip(pages, rates, strict=True) if r >= 0.99 * rates[-1])
