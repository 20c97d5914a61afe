"""Where an engine's drafts come from: loads the draft model, if there is one, and measures what passes cost.

Raises `ModelLoadError` for a draft model that does not speak the target's tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError, ModelLoadError
from ..radix_cache.pool import PagePool
from ..speculative.arbiter import Arbiter, Costs
from ..speculative.speculator import Speculator, Target, is_speculator
from .draft_head import DraftHead
from .draft_model import DraftModel
from .drafting import Drafter
from .guessing import DraftSource, Guesser
from .models.base import Model
from .models.registry import load_model
from .models.source import Progress
from .models.source import resolve as resolve_model
from .pass_costs import measure
from .precision import Precision
from .runner import TorchRunner
from .settings import EngineConfig
from .tokenizer import Tokenizer


def check_vocabulary(target: Tokenizer, draft: Tokenizer, folder: Path) -> None:
    """Every id has to mean the same to both; heads may be padded differently."""
    fault = None
    if target.size != draft.size:
        fault = f"it has {draft.size} tokens, the target {target.size}"
    elif target.special_ids != draft.special_ids:
        token = min(target.special_ids ^ draft.special_ids)
        fault = f"token {token} is special to one of the two only"
    elif differing := [i for i in range(target.size) if target.token_bytes[i] != draft.token_bytes[i]]:
        token = differing[0]
        said = f"{draft.token_bytes[token]!r}, to the target {target.token_bytes[token]!r}"
        fault = f"{len(differing)} tokens mean something else: token {token} is {said}"
    if fault is not None:
        raise ModelLoadError(f"{folder}: cannot draft for this target: {fault}")


class Draft(NamedTuple):
    """What was loaded: one of the two."""

    model: Model | None = None
    head: Speculator | None = None


def load_draft(
    config: EngineConfig, precision: Precision, target: Model, tokenizer: Tokenizer, progress: Progress
) -> Draft:
    """The draft model that the configuration names, if any."""
    if not config.draft_model or not config.speculation:
        return Draft()
    named = Path(config.draft_model)
    if is_speculator(named):
        if precision.kernels == "triton":
            raise ConfigError(f"draft_model is {named}, which drafts on a processor only; a GPU takes a smaller model")
        made_for = Target.of(tokenizer.token_bytes, target.shape.hidden)
        head = Speculator.load(named, made_for, target.ops)
        if int(head.ids[-1]) >= target.shape.vocab_size:
            raise ModelLoadError(f"{named}: it drafts token {int(head.ids[-1])}, which the target does not have")
        return Draft(head=head)
    folder = resolve_model(config.draft_model, dtype=precision.files, progress=progress)
    check_vocabulary(tokenizer, Tokenizer.from_folder(folder.path), folder.path)
    return Draft(load_model(folder, precision.compute, target.ops, progress, precision.weights == "stored"))


def make_drafter(
    runner: TorchRunner, tokenizer: Tokenizer, pool: PagePool, end_ids: tuple[int, ...], draft: Draft
) -> Drafter:
    """For an engine that has not run a pass yet."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, specials=False)

    source: DraftSource | None = None
    if draft.model is not None:
        drafting = runner.beside(draft.model)
        source = DraftModel(drafting, pool, runner.model.shape.vocab_size, Costs(measure(drafting)))
    elif draft.head is not None:
        source = DraftHead(draft.head, runner)
    guesser = None
    if source is not None:
        guesser = Guesser(source, runner.sampler, runner.model.ops.apply_mask, end_ids)
    return Drafter(runner.model.shape.vocab_size, Arbiter(Costs(measure(runner))), encode, guesser)
