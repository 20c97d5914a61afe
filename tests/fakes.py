"""Stand-ins for the model, so that scheduler and engine are tested without tensors.

`TokenMemory` is a key-value store that holds, in each slot, the token whose key and value would be there. `HashRunner`
runs plans on it: the next token is a hash of every token that the row's page table leads to. One wrong page, position,
copy or placeholder, and the answer differs from `continuation`, which hashes a plain list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bosquet.runtime.plan import Move, Plan, Sampled, SampleRow, ScoreRow
from bosquet.types import PAGE, TokenLogprob

VOCABULARY = 97
END = 96
EMPTY = -7


def next_token(context: Sequence[int], seed: int, choice: int) -> int:
    """The fake model: a pure function of the whole context, and of what makes a choice differ from its siblings."""
    text = np.asarray([*context, seed % 1009, choice], np.int32).tobytes()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") % VOCABULARY


def continuation(prompt: Sequence[int], seed: int, choice: int, max_tokens: int) -> list[int]:
    """What the fake model says after a prompt, computed alone, one token at a time."""
    ids = list(prompt)
    while len(ids) - len(prompt) < max_tokens:
        ids.append(next_token(ids, seed, choice))
        if ids[-1] == END:
            break
    return ids[len(prompt) :]


class TokenMemory:
    """Slots of a page pool, filled with token ids."""

    def __init__(self, pages: int) -> None:
        self.slots = np.full(pages * PAGE, EMPTY, np.int64)

    def copy(self, src: int, dst: int, length: int) -> None:
        self.slots[dst * PAGE : dst * PAGE + length] = self.slots[src * PAGE : src * PAGE + length]

    def slot(self, pages: Sequence[int], position: int) -> int:
        return pages[position // PAGE] * PAGE + position % PAGE

    @property
    def page_bytes(self) -> int:
        return PAGE * self.slots.itemsize

    def read_pages(self, pages: Sequence[int]) -> npt.NDArray[np.uint8]:
        return self.slots.reshape(-1, PAGE)[list(pages)].view(np.uint8)

    def write_pages(self, pages: Sequence[int], data: npt.NDArray[np.uint8]) -> None:
        assert data.shape == (len(pages), self.page_bytes)
        self.slots.reshape(-1, PAGE)[list(pages)] = data.view(np.int64)

    def read(self, pages: Sequence[int], length: int) -> list[int]:
        return [int(self.slots[self.slot(pages, i)]) for i in range(length)]


def ancestors(parents: Sequence[int], at: int) -> list[int]:
    """Of a token in a tree, from its root to itself."""
    path = [at]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


class HashHandle:
    def __init__(self, runner: HashRunner, contexts: list[list[int]]) -> None:
        self.runner = runner
        self.contexts = contexts
        self.sampled: list[Sampled] = []
        self.scored: list[list[TokenLogprob]] = []

    def sample(self, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> None:
        for draw in draws:
            context = self.contexts[draw.row]
            assert len(context) == draw.position, "a draw's position is the length of what came before it"
            self.sampled.append(Sampled(next_token(context, draw.seed, draw.choice)))
        for score in scores:
            # the "log-probability" of a prompt token tells its position and what stood before it
            self.scored.append(
                [TokenLogprob(token, -float(len(self.contexts[score.row + i]))) for i, token in enumerate(score.tokens)]
            )
        self.runner.last_tokens = [s.token for s in self.sampled]

    def result(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        return self.sampled, self.scored


class HashRunner:
    """A runner whose model is `next_token`. Runs each pass when it is submitted, as a device does: in order."""

    def __init__(self, pages: int) -> None:
        self.memory = TokenMemory(pages)
        self.last_tokens: list[int] = []
        self.computed = 0

    def move(self, moves: Sequence[Move]) -> None:
        read = [self.memory.slots[src] for src, _ in moves]
        for (_, dst), token in zip(moves, read, strict=True):
            self.memory.slots[dst] = token

    def submit(self, plan: Plan) -> HashHandle:
        for copy in plan.copies:
            self.memory.copy(*copy)
        contexts: list[list[int]] = []
        written: set[int] = set()
        for row in plan.rows:
            for offset, token in enumerate(row.tokens):
                slot = self.memory.slot(row.pages, row.start + offset)
                assert slot not in written, "two rows of one plan write to the same slot"
                written.add(slot)
                self.memory.slots[slot] = token if token >= 0 else self.last_tokens[-1 - token]
            self.computed += len(row.tokens)
        for row in plan.rows:
            assert len(row.pages) * PAGE >= row.start + len(row.tokens)
            before = self.memory.read(row.pages, row.start)
            for index in row.logits_at:
                path = range(index + 1) if row.parents is None else ancestors(row.parents, index)
                own = [int(self.memory.slots[self.memory.slot(row.pages, row.start + i)]) for i in path]
                contexts.append(before + own)
        return HashHandle(self, contexts)

    def profile(self) -> dict[str, float]:
        return {}
