"""What a chat template may make: limits, and operations that keep to them.

Every value that a template builds passes through here. Operations that make much out of little are predicted before
they run. The rendering under way has an account of what it has used so far.

Knows nothing of Jinja's syntax or of sandboxes.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, Set, ValuesView
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2 import filters
from jinja2.utils import Namespace, pass_environment

MAX_SECONDS = 2.0
"""Processor time of the rendering thread; not wall time, since a busy machine is not the template's fault."""
MAX_CHARACTERS = 8 << 20
"""The longest text that a template may make."""
MAX_ITEMS = 200_000
"""The most items that a value may hold, all its levels counted."""
_MAX_WRITTEN = 4 * MAX_CHARACTERS  # all outputs together; a macro's output counts again where it is printed
_MAX_BUILT = 1 << 28  # bytes, roughly, of all values built, dropped or not
MAX_INT_BITS = 4_096
MEASURED_LENGTH = 1_000  # sums of lists up to this length are not measured deep, so that appending stays cheap


class TemplateStopped(Exception):
    """The template wants too much time or memory."""


class Account:
    """What one rendering may still use."""

    __slots__ = ("built", "deadline", "rewrite_json", "written")

    def __init__(self, rewrite_json: Callable[[str, bool], str]) -> None:
        self.deadline = time.thread_time() + MAX_SECONDS
        self.written = 0
        self.built = 0
        self.rewrite_json = rewrite_json

    def write(self, characters: int) -> None:
        self.written += characters
        if self.written > _MAX_WRITTEN:
            raise TemplateStopped(f"it writes more than {_MAX_WRITTEN:,} characters")

    def build(self, size: int) -> None:
        self.built += size
        if self.built > _MAX_BUILT:
            raise TemplateStopped("it builds too many values")


account: ContextVar[Account] = ContextVar("account")


def turn(value: Any) -> Any:
    """Called before each turn of a loop and each call of a macro."""
    if time.thread_time() > account.get().deadline:
        raise TemplateStopped(f"it runs for more than {MAX_SECONDS:g} s")
    return value


def check_length(characters: int) -> None:
    """Raises `TemplateStopped` for a text that would be too long."""
    if characters > MAX_CHARACTERS:
        raise TemplateStopped(f"it makes a text of more than {MAX_CHARACTERS:,} characters")


def check_items(items: int) -> None:
    """Raises `TemplateStopped` for a value that would hold too many items."""
    if items > MAX_ITEMS:
        raise TemplateStopped(f"it makes a value of more than {MAX_ITEMS:,} items")


def built(value: Any) -> Any:
    """Called with every new value; its first level is counted."""
    if isinstance(value, str):
        check_length(len(value))
        account.get().build(len(value))
    elif isinstance(value, (list, tuple, dict)):
        check_items(len(value))
        account.get().build(8 * len(value))
    elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise TemplateStopped("it makes a number that is too large")
    return value


def measured(value: Any) -> Any:
    """`built`, and a count of all that the value holds.

    What it holds twice counts twice: a list that holds one list twice, which holds one list twice, and so on, takes no
    memory, but for ever to be written or compared.
    """
    _size(value)
    return built(value)


def text(value: Any) -> str:
    """A value as it is printed."""
    if not isinstance(value, str):
        printable(value)
        value = str(value)
    built(value)
    return value  # type: ignore[no-any-return]


def printable(value: Any) -> None:
    """Raises `TemplateStopped` for a value whose text would be too long."""
    if not isinstance(value, str):
        check_length(_size(value))


def listable(value: Any) -> None:
    """Raises `TemplateStopped` for a text that has too many characters to be a list."""
    if isinstance(value, str):
        check_items(len(value))


def guarded(function: Callable[..., Any], prepare: Callable[[Any], None]) -> Callable[..., Any]:
    """A filter whose input is checked before, and whose result is checked after."""
    place = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        prepare(args[place])
        return built(function(*args, **kwargs))

    return checked


def concat(parts: Iterable[Any]) -> str:
    """The operator `~`."""
    return join_texts("", parts)


def join_texts(separator: str, items: Iterable[Any]) -> str:
    """`str.join`, of anything."""
    texts = [text(item) for item in items]
    check_length(sum(map(len, texts)) + len(separator) * len(texts))
    return text(separator.join(texts))


@pass_environment
def join(environment: jinja2.Environment, value: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
    """The filter."""
    items = value if attribute is None else map(filters.make_attrgetter(environment, attribute), value)
    return join_texts(text(d), items)


def replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    """The filter and the method."""
    whole, old, new = text(value), text(old), text(new)
    times = whole.count(old)
    if count is not None and count >= 0:
        times = min(times, count)
    check_length(len(whole) + times * (len(new) - len(old)))
    return text(whole.replace(old, new, times))


def indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """The filter."""
    whole = text(value)
    wide = width if isinstance(width, int) else len(width)
    check_length(len(whole) + wide * (whole.count("\n") + 1))
    return text(filters.do_indent(whole, width, first, blank))


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter, as transformers has it: no escapes for HTML, keys in their own order."""
    wide = 0 if indent is None else indent if isinstance(indent, int) else len(indent)
    check_length(_size(value, max(wide, 0) + sum(map(len, separators or ()))))
    written = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return text(account.get().rewrite_json(written, ensure_ascii))


class ChatNamespace(Namespace):
    """`namespace(...)`. Names that begin with an underscore could stand in for Python's own, and are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that even `self` can be a name
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _size(value: Any, indent: int = 0) -> int:
    """Characters that the value takes as text, roughly; every level is indented by `indent`."""
    waiting = [(value, 1)]
    items = characters = 0
    while waiting:
        part, depth = waiting.pop()
        items += 1
        characters += indent * depth + 4
        if isinstance(part, str):
            characters += len(part)
            continue
        if isinstance(part, (int, float)):
            continue
        below = _children(part)
        check_items(items + len(waiting) + len(below))
        waiting += [(child, depth + 1) for child in below]
    return characters


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, Set, KeysView, ValuesView, ItemsView)):
        return list(value)
    if isinstance(value, ChatNamespace):
        return list(value._Namespace__attrs.values())  # every other name is the template's
    return []
