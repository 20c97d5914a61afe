"""Puts an engine together from its configuration: model, kernels, cache, scheduler.

The only module that knows all the parts; everything else gets them passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..grammar.vocabulary import Vocabulary as GrammarVocabulary
from ..kernels.cpu.library import processors
from ..kernels.registry import load_ops
from ..radix_cache.ghosts import Ghosts
from ..radix_cache.policy import EvictionPolicy, Lfu, Lru
from ..radix_cache.pool import PagePool
from ..radix_cache.tree import RadixCache
from ..types import PAGE, ModelInfo
from .disk_setup import use_disk
from .draft_setup import Draft, load_draft, make_drafter
from .engine import Bounds, Engine
from .env import cache_dir
from .gpu.choose import choose_device
from .kv_events import KvEvents
from .limits import Limits, Vocabulary
from .models.base import Model, ModelShape
from .models.registry import load_model
from .models.source import ModelFolder
from .models.source import resolve as resolve_model
from .precision import Precision, resolve_precision
from .progress import loading_bar
from .runner import TorchRunner
from .settings import EngineConfig, resolve
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..grammar.compiler import GrammarCompiler


def assemble(
    config: EngineConfig, found: Callable[[Path], None]
) -> tuple[Engine, ModelInfo, EngineConfig, Callable[[], GrammarCompiler]]:
    """Load the model and build its engine; `found` is told the model's folder first. Returns the engine, what there is
    to say of it, the configuration with every "auto" resolved, and a function that builds the grammar compiler (a
    second with its imports: for another thread).

    Raises `ModelLoadError` and `ConfigError`.
    """
    precision = resolve_precision(config, choose_device(config.device))
    folder, tokenizer, model, draft = _load(config, precision, found)
    shape = model.shape
    runner, config = _runner(model, draft, config, precision)
    pages = config.cache_tokens // PAGE
    policy: EvictionPolicy = Lru() if config.eviction == "lru" else Lfu()
    engine = Engine(
        runner,
        RadixCache(PagePool(pages), policy, ghosts=Ghosts()),
        Limits(config.step_tokens, config.max_running, config.ageing_s),
        Bounds(shape.vocab_size, config.context_length, config.max_waiting),
        Vocabulary(tokenizer.token_bytes, tokenizer.special_ids, shape.end_ids),
        lag=int(precision.kernels == "triton" and not config.disk_mb),  # pages are read while no pass is under way
        reuse=config.prefix_cache,
    )
    if config.speculation:
        engine.scheduler.drafter = make_drafter(runner, tokenizer, engine.scheduler.cache.pool, shape.end_ids, draft)
    _tell_routers(engine, config)
    use_disk(engine, runner, folder, str(precision.kv), config.disk_mb, cache_dir())
    info = ModelInfo(
        name=folder.name,
        folder=str(folder.path),
        vocab_size=shape.vocab_size,
        context_length=config.context_length,
        dtype="as stored" if precision.weights == "stored" else precision.weights,
        device=str(precision.device),
        kernels=precision.kernels,
        pages=pages,
        max_waiting=config.max_waiting,
        end_ids=shape.end_ids,
    )
    vocabulary = GrammarVocabulary(tokenizer.token_bytes, shape.vocab_size, shape.end_ids, tokenizer.special_ids)

    def make_compiler() -> GrammarCompiler:
        from ..grammar.compiler import GrammarCompiler  # brings xgrammar and transformers

        return GrammarCompiler(vocabulary)

    return engine, info, config, make_compiler


class _Loaded(NamedTuple):
    folder: ModelFolder
    tokenizer: Tokenizer
    model: Model
    draft: Draft


def _load(config: EngineConfig, precision: Precision, found: Callable[[Path], None]) -> _Loaded:
    """The model with its tokenizer, and the draft model if there is one."""
    ops = load_ops(
        precision.kernels,
        threads=config.threads,
        storage=precision.weights,
        cpus=processors(config.cpus) or (),
        device=precision.device,
        invariant=config.batch_invariant,
    )
    with loading_bar() as progress:
        folder = resolve_model(config.model, dtype=precision.files, progress=progress)
        found(folder.path)
        with ThreadPoolExecutor(1) as beside:  # torch lets other threads run while it copies
            reading = beside.submit(Tokenizer.from_folder, folder.path)
            model = load_model(folder, precision.compute, ops, progress, precision.weights == "stored")
            tokenizer = reading.result()
        return _Loaded(folder, tokenizer, model, load_draft(config, precision, model, tokenizer, progress))


def _runner(model: Model, draft: Draft, config: EngineConfig, precision: Precision) -> tuple[TorchRunner, EngineConfig]:
    """The model's runner, and the configuration with as many tokens of cache as there is room for."""
    kv_bytes = sum(_kv_bytes(one.shape, precision.kv) for one in (model, draft.model) if one is not None)
    sizes = {"model_context": model.shape.context_length, "kv_bytes_per_token": kv_bytes}
    if precision.kernels == "triton":
        from .gpu.setup import device_tokens, gpu_runner, open_port  # brings the compiler of the kernels

        port = open_port(precision.device)
        config = resolve(config, **sizes, device_tokens=device_tokens(model, config, precision, port, kv_bytes))
        torch.set_num_threads(config.threads)
        return gpu_runner(model, config, precision, port), config
    config = resolve(config, **sizes)
    # Native kernels have threads of their own.
    torch.set_num_threads(1 if precision.kernels == "native" else config.threads)
    return TorchRunner(model, config.cache_tokens // PAGE, precision.kv), config


def _tell_routers(engine: Engine, config: EngineConfig) -> None:
    if config.kv_events:
        engine.listeners.add(KvEvents(config.kv_events))


def _kv_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize
