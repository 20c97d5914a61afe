"""What a graph will cost: tokens that prompts have, tokens that are computed, and what reuse saves.

Counted by a backend's own tokenizer and template, where one is at hand; otherwise four characters are taken for a
token, what is left at the end of a text for another, and the template's text is left out. Texts that only a run knows
are taken to be as long as they are likely to be. Knows nothing of caches but that a prefix that was computed once is
not computed again.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import ceil
from typing import Final, NamedTuple

from ..prompts.shared import shared_length
from ..prompts.template import layout_of
from ..prompts.tokens import encode, encode_for_fork
from ..prompts.transcript import Close, Op, Open, Transcript, Write
from ..types import Segment
from .backend import TokenBackend
from .expressions import Gen, Select
from .graph import Graph, Node, Said, Written, tool_specs
from .learnt import Habits
from .passes import constant_prefix, going_on, parallel_groups
from .placeholders import Ref

ARGUMENT: Final = 16
"""Tokens that an argument which is not given is taken for."""
PER_TOKEN: Final = 4
"""Characters of a token, where no tokenizer is at hand."""
_WORDS: Final = ("the", "and", "for", "you", "are", "not", "was", "but", "all", "can", "her", "one", "our", "out")


class Cost(NamedTuple):
    """Of one step: tokens of its prompt (once for each sample), those of them that are there already, and those that it
    generates at most (or scores, if it chooses)."""

    prompt: int
    cached: int
    generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Sums over a graph. `saved` is the part of `prompt` that is not computed: `by_turns` because a branch goes on from
    its own tokens, `by_forks` because branches and samples begin alike. `prefix` are the tokens that every run begins
    with, whatever its arguments. `exact` says that the texts of all prompts are known, and the tokenizer."""

    counted_by: str
    exact: bool
    steps: dict[int, Cost] = field(default_factory=dict)
    by_turns: int = 0
    by_forks: int = 0
    prefix: int = 0

    @property
    def prompt(self) -> int:
        return sum(cost.prompt for cost in self.steps.values())

    @property
    def generated(self) -> int:
        return sum(cost.generated for cost in self.steps.values())

    @property
    def saved(self) -> int:
        return self.by_turns + self.by_forks

    @property
    def computed(self) -> int:
        """Tokens that go through the model as part of a prompt."""
        return self.prompt - self.saved


class _Characters:
    """Some characters at a time are an id: the way to count without a tokenizer."""

    name = f"{PER_TOKEN} characters a token, without the template's text"

    async def encoded(self, transcript: Transcript, fork: bool) -> Transcript:
        text = "".join(op.text for op in transcript.pending if isinstance(op, Write))
        pieces = (text[at : at + PER_TOKEN] for at in range(0, len(text), PER_TOKEN))
        return transcript.encoded([int.from_bytes(piece.encode("utf-8", "surrogatepass")) for piece in pieces], text)

    async def length(self, text: str) -> int:
        return ceil(len(text) / PER_TOKEN)


class _Tokens:
    """The tokenizer and the template of a backend."""

    def __init__(self, backend: TokenBackend, model: str) -> None:
        self.name = f"as {model} counts"
        self._backend, self._layout = backend, layout_of(backend)

    async def encoded(self, transcript: Transcript, fork: bool) -> Transcript:
        return await (encode_for_fork if fork else encode)(transcript, self._backend, self._layout)

    async def length(self, text: str) -> int:
        return len(await self._backend.encode([Segment(text, False)]))


async def estimate(
    graph: Graph,
    backend: TokenBackend | None = None,
    habits: Habits | None = None,
    *,
    opened: Graph | None = None,
    name: str = "",
) -> Estimate:
    """The estimate. With `habits`, outputs are as long as they were before, and otherwise as long as they may be; of an
    `act`, the first request counts. `opened` is the same program with its arguments left open, whose constant prefix is
    counted; `name` says whose tokens these are. Awaited on the language's loop. Raises `TemplateFailed` if the
    backend's template refuses the turns."""
    counter = _Characters() if backend is None else _Tokens(backend, name or type(backend).__name__)
    walk = _Walk(graph, counter, habits)
    for node in graph.nodes:
        await walk.take(node)
    parts = [part for node in graph.nodes for said in _said(node.written) for part in said.parts]
    known = not any(isinstance(part, Ref) for part in parts)
    by_turns, by_forks, steps = walk.reuse()
    return Estimate(
        counted_by=counter.name,
        exact=known and backend is not None,
        steps=steps,
        by_turns=by_turns,
        by_forks=by_forks,
        prefix=await _prefix(opened or graph, counter),
    )


class _Walk:
    """The prompts of all steps, in ids of the counter. What a step generates stands there as one id of its own, for as
    many tokens as it is likely to have."""

    def __init__(self, graph: Graph, counter: _Characters | _Tokens, habits: Habits | None) -> None:
        self._graph, self._counter, self._habits = graph, counter, habits
        self._now: dict[str, Transcript] = {}
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._outputs: dict[int, int] = {}  # step → tokens
        self._further: dict[int, int] = {}  # an output's id → its tokens but one

    async def take(self, node: Node) -> None:
        now = self._now.get(node.branch, Transcript()).write([self._op(part) for part in node.written])
        if node.kind == "fork":
            now = await self._counter.encoded(now, True)
            self._now |= dict.fromkeys(node.branches, now)
        elif node.is_step:
            acts = node.kind == "tool"
            if acts:
                now = now.with_tools(tool_specs(node.piece)).write([Open("assistant")])
            now = await self._counter.encoded(now, False)
            self._prompts[node.id] = now.ids
            self._outputs[node.id] = length = await self._length(node)
            self._further[_output(node)] = length - 1
            now = now.generated(self._filler(Ref("", (node.id,))), (_output(node),))
            now = now.write([Close()]) if acts else now
        self._now[node.branch] = now

    def reuse(self) -> tuple[int, int, dict[int, Cost]]:
        """Tokens saved by turns and by forks, and the cost of each step, in the order in which they may run."""
        before = going_on(self._graph)
        seen: list[tuple[int, ...]] = []  # sorted, so that a prompt's nearest are its neighbours
        saved = [0, 0]
        costs: dict[int, Cost] = {}
        for node in (node for group in parallel_groups(self._graph) for node in group):
            prompt = self._prompts[node.id]
            place = bisect(seen, prompt)
            shared = max((shared_length(prompt, other) for other in seen[max(0, place - 1) : place + 1]), default=0)
            size = self._size(prompt)
            most = max(0, size - 1)  # the last token is always computed
            hit = min(self._size(prompt[:shared]), most)
            samples = (node.piece.n or 1) if isinstance(node.piece, Gen) else 1
            own = before[node.id]
            saved[own is None or self._graph.nodes[own].branch != node.branch] += hit
            saved[1] += (samples - 1) * most
            costs[node.id] = Cost(samples * size, hit + (samples - 1) * most, samples * self._outputs[node.id])
            insort(seen, (*prompt, _output(node)))
        return saved[0], saved[1], costs

    def _size(self, ids: Sequence[int]) -> int:
        """The tokens that they stand for."""
        return len(ids) + sum(map(self._further.get, ids, repeat(0)))

    def _op(self, part: Written) -> Op:
        if not isinstance(part, Said):
            return part
        return Write("".join(piece if isinstance(piece, str) else self._filler(piece) for piece in part.parts))

    def _filler(self, ref: Ref) -> str:
        """A text as long as the value is likely to be, unlike those of its neighbours."""
        lengths = [self._outputs[id] for id in ref.nodes if id in self._outputs]
        word = _WORDS[max(ref.nodes, default=0) % len(_WORDS)]
        return f" {word}" * (sum(lengths) + ARGUMENT * len(ref.arguments))

    async def _length(self, node: Node) -> int:
        if isinstance(node.piece, Select):
            return max([await self._counter.length(choice) for choice in node.piece.choices])
        seen = None if self._habits is None else self._habits.of(node.name)
        assert node.sampling is not None
        return node.sampling.max_tokens if seen is None else max(1, round(seen.tokens))


def _output(node: Node) -> int:
    """The id that stands for what the step generates; no tokenizer has such ids."""
    return -1 - node.id


def _said(written: Sequence[Written]) -> list[Said]:
    return [part for part in written if isinstance(part, Said)]


async def _prefix(graph: Graph, counter: _Characters | _Tokens) -> int:
    ops: list[Op] = [Write(str(part)) if isinstance(part, Said) else part for part in constant_prefix(graph)]
    if not ops:
        return 0
    return len((await counter.encoded(Transcript().write(ops), True)).ids)
