"""Puts an engine together from its configuration: model, kernels, cache, scheduler.

The only module that knows all the parts; everything else gets them passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..grammar.vocabulary import Vocabulary as GrammarVocabulary
from ..kernels.cpu.library import processors
from ..kernels.registry import load_ops
from ..radix_cache.policy import EvictionPolicy, Lfu, Lru
from ..radix_cache.pool import PagePool
from ..radix_cache.tree import RadixCache
from ..speculative.arbiter import Arbiter, Costs
from ..types import PAGE, ModelInfo
from .disk_setup import use_disk
from .drafting import Drafter
from .engine import Bounds, Engine
from .env import cache_dir
from .models.base import ModelShape
from .models.registry import load_model
from .models.source import resolve as resolve_model
from .pass_costs import measure
from .precision import resolve_precision
from .progress import loading_bar
from .runner import TorchRunner
from .scheduler import Limits, Vocabulary
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
    precision = resolve_precision(config)
    native, stored = precision.kernels == "native", precision.weights == "stored"
    cpus = processors(config.cpus) or ()
    ops = load_ops(precision.kernels, threads=config.threads, storage=precision.weights, cpus=cpus)
    with loading_bar() as progress:
        folder = resolve_model(config.model, dtype="stored" if native else precision.weights, progress=progress)
        found(folder.path)
        with ThreadPoolExecutor(1) as beside:  # torch lets other threads run while it copies
            reading = beside.submit(Tokenizer.from_folder, folder.path)
            model = load_model(folder, precision.compute, ops, progress, stored)
            tokenizer = reading.result()
    shape = model.shape
    config = resolve(config, model_context=shape.context_length, kv_bytes_per_token=_kv_bytes(shape, precision.kv))
    torch.set_num_threads(1 if native else config.threads)  # native kernels have threads of their own
    pages = config.cache_tokens // PAGE
    policy: EvictionPolicy = Lru() if config.eviction == "lru" else Lfu()
    runner = TorchRunner(model, pages, precision.kv)
    engine = Engine(
        runner,
        RadixCache(PagePool(pages), policy),
        Limits(config.step_tokens, config.max_running, config.ageing_s),
        Bounds(shape.vocab_size, config.context_length, config.max_waiting),
        Vocabulary(tokenizer.token_bytes, tokenizer.special_ids, shape.end_ids),
        reuse=config.prefix_cache,
        drafter=_drafter(runner, tokenizer) if config.speculation else None,
    )
    use_disk(engine, runner, folder, str(precision.kv), config.disk_mb, cache_dir())
    info = ModelInfo(
        name=folder.name,
        folder=str(folder.path),
        vocab_size=shape.vocab_size,
        context_length=config.context_length,
        dtype="as stored" if stored else precision.weights,
        device="cpu",
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


def _drafter(runner: TorchRunner, tokenizer: Tokenizer) -> Drafter:
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, specials=False)

    return Drafter(runner.model.shape.vocab_size, Arbiter(Costs(measure(runner))), encode)


def _kv_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize
