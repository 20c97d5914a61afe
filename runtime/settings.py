"""The engine's knobs, and the one place where "auto" becomes a value."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import ConfigError
from ..kernels.cpu.library import default_threads, processors
from ..types import PAGE
from .config import Allowed, between, check_knobs, knob, plain_text, seconds

LEAST_TOKENS = 2 * PAGE
"""What can serve at all: a page for the prompt, and a page for the answer."""

_ADDRESSES = Allowed(
    lambda text: (
        isinstance(text, str) and re.fullmatch(r"((tcp|ipc)://[^\s,]+(,(tcp|ipc)://[^\s,]+)?)?", text) is not None
    ),
    "an address such as tcp://127.0.0.1:5557, or two of them",
)
_CPUS = Allowed(
    lambda text: isinstance(text, str) and processors(text) is not None,
    "processors that this process may run on, each once, such as 0-3,8",
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine process runs. 0 means "auto" where the help says so. Raises `ConfigError` for what cannot be."""

    model: str = knob(
        "embedded",
        "Model: 'embedded', a folder, a .gguf file or a Hugging Face id.",
        allowed=plain_text(empty=False),
        basic=True,
    )
    device: Literal["auto", "cpu", "cuda"] = knob(
        "auto", "Where the model runs; auto: a GPU where one can be used, else the processor.", basic=True
    )
    dtype: Literal["auto", "float32", "bfloat16", "int8", "int4", "fp8"] = knob(
        "auto", "Precision of weights; auto: the file's own; bfloat16 on a GPU, or where reference kernels have it."
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "int8", "fp8"] = knob(
        "auto", "Precision of the key-value cache; auto: bfloat16, or with reference kernels that of the weights."
    )
    kernels: Literal["auto", "native", "reference", "triton"] = knob(
        "auto", "Which implementation of the op table; auto: triton on a GPU, native where it was built for this CPU."
    )
    graph_mb: int = knob(
        1024,
        "Megabytes of a GPU for recorded passes, which start with one call each; 0: none are recorded.",
        allowed=between(0, 2**20),
    )
    batch_invariant: bool = knob(
        False, "On a GPU: a row's bits do not depend on what else is computed with it. Slower."
    )
    threads: int = knob(0, "Threads that compute; 0: one a core.", allowed=between(1, 256, auto=True), basic=True)
    cpus: str = knob(
        "", "Processors to pin native kernels' threads to, such as 0-3,8; empty: not pinned.", allowed=_CPUS
    )
    context_length: int = knob(
        0,
        "Longest prompt plus answer, in tokens; 0: the model's own.",
        allowed=between(LEAST_TOKENS, 2**24, auto=True),
        basic=True,
    )
    cache_tokens: int = knob(
        0,
        "Tokens in the key-value cache; 0: a fifth of free memory, at most 65,536; on a GPU all that fits.",
        allowed=between(LEAST_TOKENS, 2**30, auto=True),
        basic=True,
    )
    max_running: int = knob(64, "Sequences computed at once.", allowed=between(1, 4096), basic=True)
    max_waiting: int = knob(
        1024, "Sequences that may queue before requests are turned away.", allowed=between(1, 2**20), basic=True
    )
    step_tokens: int = knob(512, "Tokens computed in one pass: the chunk of a prefill.", allowed=between(1, 2**16))
    prefix_cache: bool = knob(True, "Reuse computed prefixes.")
    speculation: bool = knob(True, "Draft tokens where that saves time; answers are the same.")
    draft_model: str = knob(
        "",
        "Model that drafts tokens: a smaller one with the same vocabulary, or what 'bosquet draft train' made.",
        allowed=plain_text(empty=True),
    )
    eviction: Literal["lru", "lfu"] = knob("lru", "Which prefix goes first when room is needed.")
    disk_mb: int = knob(
        0,
        "Megabytes on disk for prefixes that the cache has no room for; 0: none, since this keeps what users said.",
        allowed=between(0, 2**24),
    )
    kv_events: str = knob(
        "",
        "Address to tell routers what is cached, such as tcp://127.0.0.1:5557; after a comma, one for old events.",
        allowed=_ADDRESSES,
    )
    ageing_s: float = knob(10.0, "Seconds of waiting that raise a request's priority by one.", allowed=seconds(86_400))
    grammar_timeout_s: float = knob(
        10.0, "Seconds that compiling a schema or grammar may take.", allowed=seconds(86_400)
    )

    def __post_init__(self) -> None:
        check_knobs(self)


def resolve(
    config: EngineConfig, *, model_context: int, kv_bytes_per_token: int, device_tokens: int | None = None
) -> EngineConfig:
    """Turn every "auto" into a value. `device_tokens` is what a device of its own has room for. Raises `ConfigError`
    where settings contradict the model or the machine."""
    cpus = processors(config.cpus) or ()
    if cpus and config.threads > len(cpus):
        raise ConfigError(f"threads is {config.threads}; it must be at most {len(cpus)}, as many as cpus names")
    context = config.context_length or model_context
    if context > model_context:
        raise ConfigError(f"context_length is {context}; this model's is {model_context}, and it must not be more")
    free = free_memory() // kv_bytes_per_token if device_tokens is None else device_tokens
    tokens = config.cache_tokens or (min(65_536, free // 5) if device_tokens is None else free)
    if not LEAST_TOKENS <= tokens <= free:
        said = f"it must be from {LEAST_TOKENS} to {free}, for which memory is free"
        raise ConfigError(f"cache_tokens is {tokens}; {said}")
    tokens = tokens // PAGE * PAGE
    return replace(
        config,
        threads=config.threads or len(cpus) or default_threads(),
        context_length=min(context, tokens),
        cache_tokens=tokens,
        step_tokens=max(config.step_tokens, config.max_running),
    )


def free_memory() -> int:
    """Bytes that the system could give without swapping."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise ConfigError("cannot read how much memory is free; give cache_tokens")
