"""`bosquet draft train`: ask the target, learn from its answers, write the draft, say what it is worth.

Whatever is done is on the disk: each wave of answers when it is over, the learner every half minute. A run that was
ended in any way goes on with `resume`. Under OUT: config.json and model.safetensors, which an engine reads;
report.json; training/, which may be deleted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from safetensors.torch import save_file
from torch import Tensor

from ...errors import ConfigError, RequestRejected
from ...speculative.speculator import CONFIG, FORMAT, WEIGHTS, Speculator, Target
from ..models.disk_cache import read_json, replace_text
from ..runner import TorchRunner
from ..templates import ChatTemplate
from .learner import Learner, Network, Recipe, start
from .lessons import Ints, Lessons, frequent_tokens
from .prompts import Prompt, default_prompts, read_prompts
from .report import Worth, judge, show
from .rows import RowStore
from .teacher import WAVE, Loaded, Task, Teacher, load_target

TEMPERATURES = (0.0, 0.7, 1.0)
"""Of answers, in turn. A prompt is asked once at each, if there is time."""

MOST_ROWS = 1_000_000
"""Tokens of answers that are kept: 1.3 GB for a width of 576."""

ASKING = 0.5
"""The share of the time in which answers are collected."""

_SAVED_S = 30.0
_COORDINATES = 64  # of the hidden state that the head is asked for at once
_RUN, _CHECKPOINT = "run.json", "checkpoint.safetensors"

Shown = Callable[[float, str], None]
"""Told how far a part is, from 0 to 1, and what to say of it."""


class Bounds(NamedTuple):
    """What a run may take."""

    seconds: float
    rows: int = MOST_ROWS


def train(
    model: str, prompts: Path | None, out: Path, *, minutes: float, threads: int = 0, resume: bool = False
) -> None:
    """What the command does. Raises `ConfigError` and `ModelLoadError`."""
    console = Console()
    asked = None if prompts is None else read_prompts(prompts)
    prepare(out, resume)
    loaded = load_target(model, threads)
    if asked is None:
        asked = own_prompts(loaded.template, console)
    worth = make_draft(loaded, asked, out, Recipe(), Bounds(60 * minutes), console)
    show(worth, console)
    console.print(f"Wrote {out}", highlight=False, soft_wrap=True)


def own_prompts(template: ChatTemplate, console: Console) -> list[Prompt]:
    """Those that a model can be asked: one without a chat template has no conversations."""
    prompts = default_prompts(0)
    if template.source is None:
        console.print("This model has no chat template: it is given texts to go on with.", highlight=False)
        return [prompt for prompt in prompts if prompt.text]
    return prompts


def prepare(out: Path, resume: bool) -> None:
    """Refuse to write over anything, or where nothing can be written."""
    begun = (out / "training" / _RUN).is_file()
    if resume and not begun:
        raise ConfigError(f"out is {out}; --resume goes on with a run, and there is none")
    if not resume and out.is_dir() and any(out.iterdir()):
        said = "it holds a run, and --resume goes on with it" if begun else "it must be empty, or not exist"
        raise ConfigError(f"out is {out}; {said}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise ConfigError(f"out is {out}, where nothing can be written: {error.strerror}") from None


def make_draft(
    loaded: Loaded, prompts: Sequence[Prompt], out: Path, recipe: Recipe, bounds: Bounds, console: Console
) -> Worth:
    """Everything that is not done yet, then the report."""
    folder, runner = out / "training", loaded.teacher.runner
    shape = runner.model.shape
    target = Target.of(loaded.tokenizer.token_bytes, shape.hidden)
    tasks = _tasks(loaded, prompts, recipe.seed, console)
    digest = hashlib.sha256(repr(tasks).encode()).hexdigest()
    _same_run(folder / _RUN, {"target": target._asdict(), "prompts": digest, "recipe": recipe._asdict()})
    store = RowStore(folder, shape.hidden)
    native = runner.model.ops.name == "native"  # which has threads of its own
    torch.set_num_threads(1 if native else loaded.threads)
    if not (folder / _CHECKPOINT).is_file():
        with _bar(console, "asking") as shown:
            _ask(loaded.teacher, tasks, store, bounds, shown)
    console.print(f"{len(store):,} tokens of {len(store.prompts):,} answers", highlight=False)
    frequent = frequent_tokens(store, shape.vocab_size, recipe.tokens)
    lessons = Lessons(store, frequent, shape.vocab_size)
    if not len(lessons.learnt) or not len(lessons.held):
        raise ConfigError(f"{len(store)} tokens of answers are too few to learn from and to judge by")
    torch.set_num_threads(loaded.threads)
    with _bar(console, "learning") as shown:
        learner = _learner(loaded, lessons, frequent, folder / _CHECKPOINT, recipe)
        seconds = bounds.seconds - min(store.seconds, ASKING * bounds.seconds)
        _learn(learner, folder / _CHECKPOINT, seconds, shown)
    write(learner.network, frequent, out, loaded.name, target)
    torch.set_num_threads(1 if native else loaded.threads)
    worth = judge(Speculator.load(out, target, runner.model.ops), lessons, loaded.pass_seconds)
    replace_text(out / "report.json", json.dumps(worth.document(), indent=1) + "\n")
    return worth


def _tasks(loaded: Loaded, prompts: Sequence[Prompt], seed: int, console: Console) -> list[Task]:
    """All that may be asked, in order: every prompt once at each temperature."""
    ids: dict[int, list[int]] = {}
    known: set[tuple[int, ...]] = set()  # a prompt that is held out must not be learnt from under another number
    for number, prompt in enumerate(prompts):
        try:
            tokens = loaded.tokens(prompt)
        except RequestRejected as error:
            raise ConfigError(f"prompt {number + 1}: {error}") from None
        if 0 < len(tokens) <= loaded.teacher.longest_prompt and tuple(tokens) not in known:
            ids[number] = tokens
            known.add(tuple(tokens))
    if left_out := len(prompts) - len(ids):
        most = loaded.teacher.longest_prompt
        console.print(
            f"Left out: {left_out:,} prompts that come again, or are longer than {most} tokens.", highlight=False
        )
    return [
        Task(number, tokens, TEMPERATURES[(number + time) % len(TEMPERATURES)], seed + number)
        for time in range(len(TEMPERATURES))
        for number, tokens in ids.items()
    ]


def _ask(teacher: Teacher, tasks: Sequence[Task], store: RowStore, bounds: Bounds, shown: Shown) -> None:
    """Collect answers until the time, the room or the tasks are used up."""
    limit = ASKING * bounds.seconds
    while (done := len(store.prompts)) < len(tasks) and len(store) < bounds.rows and store.seconds < limit:
        began = time.perf_counter()
        answers = teacher.answer(tasks[done : done + WAVE])
        store.add(answers, store.seconds + time.perf_counter() - began)
        far = max(len(store.prompts) / len(tasks), len(store) / bounds.rows, store.seconds / limit)
        shown(min(far, 1.0), f"{len(store):,} tokens, {len(store) / store.seconds:,.0f} a second")


def _learner(loaded: Loaded, lessons: Lessons, frequent: Ints, checkpoint: Path, recipe: Recipe) -> Learner:
    """As it was left, or new; from then on nothing more is asked."""
    if checkpoint.is_file():
        return Learner.restore(checkpoint, lessons, recipe)
    learner = Learner(start(lessons, head_rows(loaded.teacher.runner, frequent), recipe), lessons, recipe)
    learner.save(checkpoint)
    return learner


def _learn(learner: Learner, checkpoint: Path, seconds: float, shown: Shown) -> None:
    """Until the batches of the recipe, or the seconds, are used up."""
    saved, loss = time.perf_counter(), math.nan
    while (far := max(learner.step / learner.steps, learner.seconds / seconds)) < 1:
        began = time.perf_counter()
        now = learner.learn(far)
        loss = now if math.isnan(loss) else 0.95 * loss + 0.05 * now
        ended = time.perf_counter()
        learner.seconds += ended - began
        shown(far, f"loss {loss:.3f}")
        if ended - saved > _SAVED_S:
            learner.save(checkpoint)
            saved = ended
    learner.save(checkpoint)


def head_rows(runner: TorchRunner, frequent: Ints) -> Tensor:
    """The rows of the target's head for these tokens, and below them the mean of all rows: [F + 1, D] float32.

    Asked of the head itself, which is linear, with one coordinate at a time: it may be packed in any way.
    """
    columns, mean = [], []
    with torch.inference_mode():
        for some in torch.split(torch.eye(runner.model.shape.hidden), _COORDINATES):
            logits = runner.logits(some.to(runner.model.dtype), None)
            columns.append(logits[:, torch.from_numpy(frequent)].float())
            mean.append(logits.float().mean(1, keepdim=True))
    return torch.cat((torch.cat(columns), torch.cat(mean)), 1).T.contiguous().clone()


def write(network: Network, frequent: Ints, out: Path, name: str, target: Target) -> None:
    """The artefact, in bfloat16."""
    weights = {key: tensor.detach().to(torch.bfloat16).contiguous() for key, tensor in network.weights.items()}
    weights["scale"] = network.weights["scale"].detach()
    fresh = out / f".{WEIGHTS}.new"
    save_file({"ids": torch.from_numpy(frequent), **weights}, fresh)
    os.replace(fresh, out / WEIGHTS)
    config = {
        "format": FORMAT,
        "target": {"name": name, **target._asdict()},
        "tokens": len(frequent),
        "inner": weights["down"].shape[1],
    }
    replace_text(out / CONFIG, json.dumps(config, indent=1) + "\n")


def _same_run(path: Path, run: dict[str, Any]) -> None:
    """What is there was begun with the same model, prompts and recipe."""
    known = read_json(path)
    if path.exists() and not isinstance(known, dict):
        raise ConfigError(f"out is {path.parent.parent}; what the run there is of cannot be read from {path.name}")
    if known is None:
        replace_text(path, json.dumps(run, indent=1) + "\n")
    elif other := [name for name in run if known.get(name) != json.loads(json.dumps(run[name]))]:
        raise ConfigError(f"out is {path.parent.parent}; the run there has another {' and another '.join(other)}")


@contextmanager
def _bar(console: Console, what: str) -> Iterator[Shown]:
    """Drawn where somebody watches; elsewhere a line at every tenth."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.fields[said]}"), console=console, refresh_per_second=2) as bars:
            task = bars.add_task(what, total=1.0, said="")
            yield lambda far, said: bars.update(task, completed=far, said=said)
        return
    told = 0

    def tell(far: float, said: str) -> None:
        nonlocal told
        if int(10 * far) > told:
            told = int(10 * far)
            console.print(f"{what}: {far:.0%}, {said}", highlight=False)

    yield tell
