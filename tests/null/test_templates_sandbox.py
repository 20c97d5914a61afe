"""Templates that loop, explode or reach out are stopped, in bounded time; ordinary ones work as in plain Jinja."""

import json
import time
from typing import Any

import jinja2
import pytest
from template_samples import CONTROLS, TEMPLATES

from bosquet.errors import TemplateFailed
from bosquet.runtime import template_limits
from bosquet.runtime.templates import ChatTemplate

MESSAGES = [{"role": "user", "content": "x"}]


def run(source: str, **extra: Any) -> str:
    template = ChatTemplate({"default": source}, {}, frozenset(), frozenset())
    return "".join(segment.text for segment in template.render(MESSAGES, extra=extra))


DOUBLING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x }}"

BOMBS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops over nothing": "{% for a in range(9999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "loops over messages": "{% for a in range(99999) %}{% for m in messages * 999 %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "call blocks": (
        "{% macro f(n) %}{% if n %}{% set a %}{% call g(n) %}{% endcall %}{% endset %}{{ a }}{{ g(n) }}{% endif %}"
        "{% endmacro %}{% macro g(n) %}{{ f(n - 1) }}{{ caller() if caller }}{% endmacro %}{{ f(60) }}"
    ),
    "output": "{% for a in range(99999) %}" + "y" * 1000 + "{% endfor %}",
    "output of expressions": "{% for a in range(99999) %}{{ 'y' * 1000 }}{% endfor %}",
    "output into a variable": "{% set x %}{% for a in range(99999) %}" + "y" * 1000 + "{% endfor %}{% endset %}",
    "repeated text": "{{ 'a' * 1000000000 }}",
    "repeated list": "{{ ([1] * 100000000) | length }}",
    "long range": "{{ range(100000000) | list }}",
    "sums of texts": DOUBLING % ("'a'", "ns.x + ns.x"),
    "joined texts": DOUBLING % ("'a'", "ns.x ~ ns.x"),
    "sums of lists": DOUBLING % ("[1]", "ns.x + ns.x"),
    "lists in lists": DOUBLING % ("[1]", "[ns.x, ns.x]"),
    "tuples in tuples": DOUBLING % ("1", "(ns.x, ns.x)"),
    "objects in objects": DOUBLING % ("1", "{'a': ns.x, 'b': ns.x}"),
    "dict in dict": DOUBLING % ("1", "dict(a=ns.x, b=ns.x)"),
    "namespaces in namespaces": DOUBLING % ("1", "namespace(a=ns.x, b=ns.x)"),
    "products": DOUBLING % ("3", "ns.x * ns.x"),
    "power": "{{ 10 ** 10 ** 10 }}",
    "replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "join": "{{ ('a' * 1000000).join('b' * 10000) }}",
    "join filter": "{{ ('b' * 10000) | join('a' * 1000000) }}",
    "indent": "{{ 'a\nb' | indent(1000000000) }}",
    "indent of JSON": "{{ [[1]] | tojson(indent=1000000000) }}",
    "separators of JSON": "{{ (range(1000) | list) | tojson(separators=['a' * 1000000, ':']) }}",
    "characters": "{{ ('a' * 8000000) | list }}",
    "many long texts": (
        "{% set ns = namespace(x=[], s='a' * 8000000) %}"
        "{% for i in range(9999) %}{% set ns.x = ns.x + [ns.s ~ i] %}{% endfor %}"
    ),
    "many slices": (
        "{% set ns = namespace(x=[], s='a' * 8000000) %}"
        "{% for i in range(9999) %}{% set ns.x = ns.x + [ns.s[1:]] %}{% endfor %}"
    ),
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.2)
    start = time.thread_time()
    with pytest.raises(TemplateFailed, match=r"was stopped|RecursionError|Range too big"):
        run(source)
    assert time.thread_time() - start < 2.0


def test_the_clock_is_the_documented_one() -> None:
    start = time.thread_time()
    with pytest.raises(TemplateFailed, match="more than 2 s"):
        run(BOMBS["nested loops"])
    assert 1.9 < time.thread_time() - start < 4.0


def test_a_long_conversation_is_no_bomb() -> None:
    """4,000 messages, 4 MB."""
    named = {"bos_token": CONTROLS["qwen3"][0], "eos_token": CONTROLS["qwen3"][1]}
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " * 200} for i in range(4000)]
    template = ChatTemplate({"default": TEMPLATES["qwen3"]}, named, frozenset(CONTROLS["qwen3"]), frozenset())
    text = "".join(segment.text for segment in template.render(messages))
    assert text.count("<|im_start|>") == 4001


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ '%s' % messages }}",
        "{{ 'x'.center(10) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{% include 'other' %}",
        "{{ lipsum() }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
    ],
)
def test_what_templates_cannot_reach(source: str) -> None:
    with pytest.raises(TemplateFailed, match="failed") as caught:
        run(source)
    assert caught.value.field == "messages"


@pytest.mark.parametrize("name", ["center", "format", "groupby", "batch", "check turn", "pprint", "urlize"])
def test_filters_that_are_left_out(name: str) -> None:
    with pytest.raises(TemplateFailed, match="does not compile"):
        run("{{ 'x' | " + name + " }}")


def test_the_checks_cannot_be_called_or_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.2)
    loop = "{% set check = 1 %}{% set turn = 1 %}" + BOMBS["nested loops"]
    with pytest.raises(TemplateFailed, match="was stopped"):
        run(loop)


_VALUES: dict[str, Any] = {
    "text": "  Two words, <b>ünder</b> & 'quotes' ",
    "numbers": [3, 1, 2],
    "object": {"b": [1, {"c": None}], "a": 1.5, "ü": True},
    "rows": [{"k": "x", "v": 2}, {"k": "y", "v": 1}, {"k": "x"}],
}


@pytest.mark.parametrize(
    "expression",
    [
        "text | trim | upper ~ numbers | join(', ') ~ object.a",
        "text.strip().split(' ')[-1] + '!' * 3",
        "rows | map(attribute='k') | list | join('/')",
        "rows | selectattr('k', 'equalto', 'x') | list | length",
        "rows | rejectattr('v', 'defined') | first | items | list",
        "numbers | sort | reverse | list + [4] + numbers[1:]",
        "object | dictsort",
        "numbers | max - numbers | min ** 2 % 3",
        "text | replace('o', '0') | indent(2, true) | title",
        "text.replace('o', '0', 1) ~ ', '.join(['a', 'b'])",
        "[numbers, (1, 'x'), {'y': none}]",
        "text | length if text is string and not numbers is string else 'no'",
        "namespace(a=1).a + dict(b=2).b",
        "rows | join(',', attribute='k')",
        "missing | default('gone') ~ missing ~ none ~ true",
        "text | e ~ text | urlencode",
        "range(3) | map('string') | list",
    ],
)
def test_expressions_mean_what_they_mean_in_plain_jinja(expression: str) -> None:
    source = "{{ " + expression + " }}"
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source).render(**_VALUES)
    assert run(source, **_VALUES) == plain


@pytest.mark.parametrize(
    "source",
    [
        "{% for row in rows %}{% set k = row.k %}{{ k.replace('x', 'z') ~ ','.join([k, k]) }}{% endfor %}",
        "{% for n in numbers %}{{ loop.index }}/{{ loop.length }}:{{ n }}{{ ',' if not loop.last }}{% endfor %}",
        "{% for n in numbers if n > 1 %}{{ loop.index0 }}{{ n }}{% else %}none{% endfor %}",
        "{% for n in [] %}{{ n }}{% else %}none{% endfor %}",
        "{% for k, v in object.items() %}{{ k }}={{ v }};{% endfor %}",
        "{% for n in numbers %}\n  {{ n }}\n{% endfor %}\n text",
        "{% macro m(a, b='x') %}[{{ a }}{{ b }}{{ caller() if caller }}]{% endmacro %}{{ m(1) }}"
        "{% call m(2) %}in{% endcall %}",
        "{% set ns = namespace(n=0) %}{% for n in numbers %}{% set ns.n = ns.n + n %}{% endfor %}{{ ns.n }}",
        "{% set x %}a{{ numbers }}b{% endset %}{{ x | upper }}",
        "{% filter upper %}a{{ text }}{% endfilter %}",
        "{% for r in [[1, [2]], 3] recursive %}{{ loop(r) if r is iterable else r }};{% endfor %}",
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}{%- if a < b -%} less {%- endif %}",
    ],
)
def test_statements_mean_what_they_mean_in_plain_jinja(source: str) -> None:
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source).render(**_VALUES)
    assert run(source, **_VALUES) == plain


def test_break_continue_and_generation_marks() -> None:
    source = (
        "{% for n in numbers %}{% if n == 1 %}{% continue %}{% endif %}{% generation %}{{ n }}{% endgeneration %}"
        "{% if n == 2 %}{% break %}{% endif %}{% endfor %}"
    )
    assert run(source, numbers=[3, 1, 2, 5]) == "32"


def test_json_is_written_as_it_came() -> None:
    value = {"z": "<b>&'\"é", "a": [1, {"n": None}]}
    assert run("{{ object | tojson }}", object=value) == json.dumps(value, ensure_ascii=False)
    assert run("{{ object | tojson(indent=2) }}", object=value) == json.dumps(value, ensure_ascii=False, indent=2)
    assert run("{{ object | tojson(sort_keys=true, separators=(',', ':')) }}", object=value) == json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":")
    )


def test_the_date_can_be_asked_for() -> None:
    year = int(run("{{ strftime_now('%Y') }}"))
    assert 2024 < year < 2200
