"""Draft trees that hold what comes next, hidden among tokens that do not."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bosquet.speculative.draft import Draft


def tree_around(want: Sequence[int], size: int, vocabulary: int, rng: random.Random) -> Draft:
    """`size` tokens; those of `want` follow each other from the root, as far as they are in it. Siblings differ."""
    tokens: list[int] = []
    parents: list[int] = []
    path, depth = -1, 0  # the node up to which `want` is in the tree
    while len(tokens) < size:
        right = depth < len(want) and rng.random() < 0.4
        parent, token = (path, want[depth]) if right else (rng.randrange(-1, len(tokens)), rng.randrange(vocabulary))
        if any(tokens[at] == token for at in range(len(tokens)) if parents[at] == parent):
            continue
        tokens.append(token)
        parents.append(parent)
        if right:
            path, depth = len(tokens) - 1, depth + 1
    return Draft(tokens, ["suffix"] * len(tokens), None, parents=parents)
