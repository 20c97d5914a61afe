"""Runs chat templates that nobody vouches for: bounded in time, in memory and in what they can reach.

Jinja's immutable sandbox keeps a template away from the interpreter. It does not keep it from looping for ever or from
filling the memory, and a thread in a loop cannot be killed. So the syntax tree is changed before it is compiled: each
turn of a loop and each call of a macro first looks at the clock, and every value that is built is measured. Operations
that make much out of little are predicted (`*`, `replace`, `join`, `tojson`, …) or left out (`format`, `center`,
`groupby`, …). So no single step takes long, and the clock is looked at between any two.

Knows nothing of messages or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from . import template_limits as limits
from .template_limits import TemplateStopped

_TEXT_FILTERS = (
    "capitalize e escape float forceescape int lower safe string title trim truncate upper urlencode wordcount"
)
_LIST_FILTERS = (
    "count dictsort first items last length list map max min reject rejectattr reverse select selectattr sort unique"
)
_OTHER_FILTERS = "abs attr d default round"
_STRING_METHODS = (
    "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower "
    "isnumeric isprintable isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind "
    "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
)
_METHODS = frozenset(_STRING_METHODS.split())


class TemplateRaised(jinja2.TemplateError):
    """The template refuses its input, by `raise_exception`."""


class Sandbox:
    """Compiles one template and renders it. Raises jinja2's `TemplateSyntaxError` for a source that does not parse.

    `tree` is the syntax tree, without the checks.
    """

    def __init__(self, source: str) -> None:
        environment = _Environment()
        self.tree = environment.parse_bare(source)
        self._template = environment.from_string(source)

    def render(self, variables: Mapping[str, Any], rewrite_json: Callable[[str, bool], str]) -> str:
        """The text. `rewrite_json(text, ascii_only)` may change what `tojson` gives.

        Raises `TemplateStopped`, or whatever the template runs into: any exception may come.
        """
        token = limits.account.set(limits.Account(rewrite_json))
        try:
            text = "".join(self._template.generate(variables))
        finally:
            limits.account.reset(token)
        limits.check_length(len(text))
        return text


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # no constant is computed before the clock runs
            finalize=_finalize,
            extensions=[_Generation, loopcontrols],
        )
        known = dict(self.filters)
        self.filters = {
            **{name: limits.guarded(known[name], limits.printable) for name in _TEXT_FILTERS.split()},
            **{name: limits.guarded(known[name], limits.listable) for name in _LIST_FILTERS.split()},
            **{name: known[name] for name in _OTHER_FILTERS.split()},
            "indent": limits.indent,
            "join": limits.join,
            "replace": limits.replace,
            "tojson": limits.tojson,
            "check turn": limits.turn,
            "check built": limits.built,
            "check concat": limits.concat,
            "check literal": limits.measured,
        }
        del self.globals["lipsum"]
        self.globals["namespace"] = limits.ChatNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def parse_bare(self, source: str) -> nodes.Template:
        return super()._parse(source, None, None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Guard().visit(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Jinja's own way to allow `format` is closed; `is_safe_attribute` refuses it."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if operator == "%" and not numbers:
            raise SecurityError("% makes no text in chat templates; use ~")
        if operator == "**" and not (numbers and abs(left) <= 1 << 32 and abs(right) <= limits.MAX_INT_BITS // 32):
            raise TemplateStopped("it makes a number that is too large")
        if operator == "*" and not numbers:
            many, times = (right, left) if isinstance(left, int) else (left, right)
            if hasattr(many, "__len__") and isinstance(times, int):
                limits.check_length(len(many) * times)
        result = self.binop_table[operator](left, right)
        if isinstance(result, (list, tuple)) and (operator == "*" or len(result) > limits.MEASURED_LENGTH):
            return limits.measured(result)
        return limits.built(result)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and __obj.__name__ in ("replace", "join"):
            given = {
                name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")
            }  # Jinja's
            predicted = limits.replace if __obj.__name__ == "replace" else limits.join_texts
            return predicted(owner, *args, **given)
        result = super().call(__context, __obj, *args, **kwargs)
        return limits.measured(result) if __obj in (dict, limits.ChatNamespace) else limits.built(result)


class _Guard(NodeTransformer):
    """Puts the checks into a syntax tree. Their names have a blank, so that no template can call or hide them."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _turn(node))
        if node.test is not None:
            node.test = nodes.And(_turn(node).node, node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _turn(node))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _turn(node))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        # Constants are counted when they are written; template data would not be.
        node.nodes = [
            nodes.Const(part.data, lineno=part.lineno) if isinstance(part, nodes.TemplateData) else part
            for part in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("check concat", nodes.Tuple(node.nodes, "load", lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _filtered("check literal", self.generic_visit(node))

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return _filtered("check literal", self.generic_visit(node))

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("check literal", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("check built", node) if isinstance(node.arg, nodes.Slice) else node


def _filtered(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _turn(node: nodes.Node) -> nodes.ExprStmt:
    return nodes.ExprStmt(_filtered("check turn", nodes.Const(True, lineno=node.lineno)), lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks what the model says, for training. Here its body is just the body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _finalize(context: Context, value: Any) -> str:
    text = limits.text(value)
    limits.account.get().write(len(text))
    return text


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRaised(limits.text(message))


def _strftime_now(pattern: str) -> str:
    limits.check_length(1_000 * len(pattern))
    return datetime.now().strftime(pattern)
