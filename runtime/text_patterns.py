"""Regular expressions for sets of fixed strings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def any_of(texts: Iterable[str]) -> str:
    """A regular expression for the longest of `texts` at a place.

    Common beginnings are shared, so that a model with thousands of control strings costs no more than one with a few.
    """
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _alternatives(tree) if tree else "(?!)"


def _alternatives(tree: dict[str, Any]) -> str:
    branches = []
    for character, below in tree.items():
        if not character:
            continue
        text = re.escape(character)
        while len(below) == 1 and "" not in below:
            (character, below) = next(iter(below.items()))
            text += re.escape(character)
        branches.append(text + (_alternatives(below) if below.keys() != {""} else ""))
    joined = branches[0] if len(branches) == 1 and "" not in tree else f"(?:{'|'.join(branches)})"
    return f"{joined}?" if "" in tree else joined
