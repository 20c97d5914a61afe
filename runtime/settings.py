"""The engine's knobs, and the one place where "auto" becomes a value."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import ConfigError
from ..types import PAGE
from .config import knob


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine process runs. 0 means "auto" where the help says so."""

    model: str = knob("embedded", "Model: 'embedded', a folder, a .gguf file or a Hugging Face id.", basic=True)
    dtype: Literal["auto", "float32", "bfloat16", "int8", "int4"] = knob(
        "auto", "Precision of weights; auto: the file's own, or with reference kernels bfloat16 where the CPU has it."
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "int8"] = knob(
        "auto", "Precision of the key-value cache; auto: bfloat16, or with reference kernels that of the weights."
    )
    kernels: Literal["auto", "native", "reference"] = knob(
        "auto", "Which implementation of the op table; auto: native where it was built for this processor."
    )
    threads: int = knob(0, "Threads that compute; 0: one a core.", basic=True)
    context_length: int = knob(0, "Longest prompt plus answer, in tokens; 0: the model's own.", basic=True)
    cache_tokens: int = knob(0, "Tokens in the key-value cache; 0: a fifth of free memory, at most 65,536.", basic=True)
    max_running: int = knob(64, "Sequences computed at once.", basic=True)
    max_waiting: int = knob(1024, "Sequences that may queue before requests are turned away.", basic=True)
    step_tokens: int = knob(512, "Tokens computed in one pass: the chunk of a prefill.")
    prefix_cache: bool = knob(True, "Reuse computed prefixes.")
    eviction: Literal["lru", "lfu"] = knob("lru", "Which prefix goes first when room is needed.")
    ageing_s: float = knob(10.0, "Seconds of waiting that raise a request's priority by one.")
    grammar_timeout_s: float = knob(10.0, "Seconds that compiling a schema or grammar may take.")


def resolve(config: EngineConfig, *, model_context: int, kv_bytes_per_token: int) -> EngineConfig:
    """Turn every "auto" into a value. Raises `ConfigError` where settings contradict each other or the model."""
    for name in ("threads", "context_length", "cache_tokens"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be 0 (auto) or more")
    for name in ("max_running", "max_waiting", "step_tokens"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be at least 1")
    for name in ("ageing_s", "grammar_timeout_s"):
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be more than 0")
    context = config.context_length or model_context
    if context > model_context:
        raise ConfigError(f"context_length {context} is more than the model's {model_context}")
    tokens = config.cache_tokens or min(65_536, free_memory() // 5 // kv_bytes_per_token)
    if tokens < 2 * PAGE:
        raise ConfigError(f"cache_tokens {tokens} is less than two pages of {PAGE}")
    tokens = tokens // PAGE * PAGE
    return replace(
        config,
        threads=config.threads or len(os.sched_getaffinity(0)),
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
