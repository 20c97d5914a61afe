"""The target, made to answer prompts in waves: a batch of them until each is answered.

Runs passes of the engine's own runner, so that hidden states are those that a draft will be given. A token's random
number depends on its answer's seed and its position alone, so a wave gives the same whenever it is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.cpu.library import default_threads, processors
from ...kernels.registry import load_ops
from ...types import PAGE, Row, SamplingParams, Segment
from ..distributions import best, log_norm
from ..models.registry import load_model
from ..models.source import resolve as resolve_model
from ..pass_costs import measure
from ..plan import Plan, SampleRow
from ..precision import resolve_precision
from ..progress import loading_bar
from ..runner import TorchRunner
from ..settings import EngineConfig
from ..templates import ChatTemplate
from ..tokenizer import Tokenizer
from .prompts import Prompt
from .rows import TOP, Spoken, row_type
from .rows import Row as Answer

WAVE = 32
"""Prompts that are answered at once."""

PROMPT, ANSWER = 512, 256
"""Tokens of the longest prompt that is taken, and of the longest answer."""


class Task(NamedTuple):
    """Prompt number `prompt`, the tokens `ids`; `temperature` and `seed` are for its answer."""

    prompt: int
    ids: Sequence[int]
    temperature: float
    seed: int


class Teacher:
    """A loaded model that answers `WAVE` prompts at a time."""

    def __init__(self, runner: TorchRunner, end_ids: Sequence[int], longest: int = PROMPT + ANSWER) -> None:
        """`runner` has pages for `WAVE` sequences of `longest` tokens, and nobody else uses them."""
        self.runner = runner
        self._ends = frozenset(end_ids)
        self._longest = longest
        self._each = -(-longest // PAGE)

    @property
    def longest_prompt(self) -> int:
        """What leaves room for some of an answer."""
        return min(PROMPT, self._longest - 2)

    @staticmethod
    def pages(longest: int) -> int:
        """That a runner needs."""
        return WAVE * -(-longest // PAGE)

    def answer(self, tasks: Sequence[Task]) -> list[Spoken]:
        """At most `WAVE` prompts, each shorter than `longest`."""
        assert len(tasks) <= WAVE
        model = self.runner.model
        answers = [np.empty(min(ANSWER, self._longest - len(task.ids)), row_type(model.shape.hidden)) for task in tasks]
        lengths = [0] * len(tasks)
        with torch.inference_mode():
            going, hidden = list(range(len(tasks))), self._read(tasks)
            while going:
                tokens = self._write(tasks, answers, lengths, going, hidden)
                pairs = zip(going, tokens, strict=True)
                rest = [(i, t) for i, t in pairs if t not in self._ends and lengths[i] < len(answers[i])]
                going = [i for i, _ in rest]
                if rest:
                    hidden = self._pass([self._row(tasks[i], i, lengths[i], token) for i, token in rest])
        return [Spoken(t.prompt, rows[:n]) for t, rows, n in zip(tasks, answers, lengths, strict=True)]

    def _read(self, tasks: Sequence[Task]) -> Tensor:
        """The hidden states [n, D] at the ends of the prompts."""
        rows = [Row(task.ids, 0, self._pages(i), (len(task.ids) - 1,)) for i, task in enumerate(tasks)]
        return torch.cat([self._pass([row]).clone() for row in rows])

    def _row(self, task: Task, i: int, written: int, token: int) -> Row:
        return Row((token,), len(task.ids) + written - 1, self._pages(i), (0,))

    def _pages(self, i: int) -> range:
        return range(i * self._each, (i + 1) * self._each)

    def _pass(self, rows: list[Row]) -> Tensor:
        return self.runner.submit(Plan(rows)).hidden

    def _write(
        self, tasks: Sequence[Task], answers: list[Answer], lengths: list[int], going: list[int], hidden: Tensor
    ) -> list[int]:
        """One row more of each answer in `going`; returns the tokens drawn."""
        runner = self.runner
        logits = runner.logits(hidden, None)
        values, ids = best(logits, TOP)
        logs = values - log_norm(logits)[:, None]
        draws = [
            SampleRow(at, SamplingParams(temperature=tasks[i].temperature), tasks[i].seed, 0, lengths[i])
            for at, i in enumerate(going)
        ]
        tokens = [drawn.token for drawn in runner.sampler.sample(logits, draws, runner.model.ops.apply_mask)]
        states = hidden.float().numpy()
        for at, i in enumerate(going):
            row = answers[i][lengths[i]]
            row["token"], row["ids"], row["logs"] = tokens[at], ids[at].numpy(), logs[at].numpy()
            row["hidden"] = states[at]
            lengths[i] += 1
        return tokens


class Loaded(NamedTuple):
    """A target, ready to be asked."""

    teacher: Teacher
    tokenizer: Tokenizer
    template: ChatTemplate
    name: str
    pass_seconds: dict[int, float]  # by tokens of one row
    threads: int

    def tokens(self, prompt: Prompt) -> list[int]:
        """Raises `InvalidParameter` or `TemplateFailed`."""
        if prompt.messages:
            return self.tokenizer.encode_segments(self.template.render(prompt.messages))
        return self.tokenizer.encode_segments([Segment(prompt.text, False)], bos=self.tokenizer.add_bos)


def load_target(name: str, threads: int) -> Loaded:
    """`threads` 0 is one a core. Raises `ModelLoadError` and `ConfigError`."""
    config = EngineConfig(model=name, threads=threads)
    precision = resolve_precision(config)
    native, stored = precision.kernels == "native", precision.weights == "stored"
    cpus = processors(config.cpus) or ()
    ops = load_ops(precision.kernels, threads=threads, storage=precision.weights, cpus=cpus)
    with loading_bar() as progress:
        folder = resolve_model(name, dtype="stored" if native else precision.weights, progress=progress)
        model = load_model(folder, precision.compute, ops, progress, stored)
    longest = min(PROMPT + ANSWER, model.shape.context_length)
    runner = TorchRunner(model, Teacher.pages(longest), precision.kv)
    path = Path(folder.path)
    return Loaded(
        Teacher(runner, model.shape.end_ids, longest),
        Tokenizer.from_folder(path),
        ChatTemplate.from_folder(path),
        folder.name,
        measure(runner),
        threads or default_threads(),
    )
