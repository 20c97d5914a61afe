"""Small random models made with transformers, and a hand-made page table to run ours on the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from bosquet.kernels.registry import load_ops
from bosquet.kernels.table import AttentionRow, Ops
from bosquet.runtime.models.base import Batch, Model
from bosquet.runtime.models.registry import load_model
from bosquet.runtime.models.source import ModelFolder, open_folder
from bosquet.types import PAGE

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_CONFIGS: dict[str, type[Any]] = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "gemma3_text": transformers.Gemma3TextConfig,
}


def make_config(family: str, **changes: Any) -> Any:
    return _CONFIGS[family](**{**SIZES, **changes})


def make_model(config: Any, seed: int = 0) -> Any:
    """A transformers model in float32 whose logits are of order one, so that a tolerance of 1e-4 means something.

    Its usual start, weights of 0.02 and norms of exactly one, would hide most faults.
    """
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                noise = 0.3 * torch.randn_like(parameter)
                parameter.copy_(noise if "bias" in name or "gemma" in config.model_type else 1 + noise)
            elif "embed" in name:
                parameter.normal_()
            else:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    return model


def shake(model: Any, amount: float, seed: int = 0) -> Any:
    """The model with noise on its weights, `amount` of their spread, in place."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += amount * parameter.std() * torch.randn_like(parameter)
    return model


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def load(folder: ModelFolder, dtype: torch.dtype = torch.float32, ops: Ops | None = None) -> Model:
    return load_model(folder, dtype, ops or load_ops("reference"))


def open_model(folder: Path, dtype: torch.dtype = torch.float32, ops: Ops | None = None) -> Model:
    return load(open_folder(folder, folder.name), dtype, ops)


def expected_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """What transformers says for one sequence, without a cache: [T, V]."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([list(ids)]), use_cache=False).logits[0].float()
    return logits


class Piece(NamedTuple):
    """Some tokens of the sequence number `sequence`, which follow those that were run before."""

    sequence: int
    tokens: Sequence[int]


class PagedRun:
    """Runs pieces of sequences through a model. Pages are dealt out shuffled, as in a pool that has been in use."""

    def __init__(self, model: Model, sequences: int, longest: int) -> None:
        self.model = model
        each = -(-longest // PAGE)
        shape = model.shape
        order = torch.randperm(sequences * each, generator=torch.Generator().manual_seed(7)).tolist()
        self.pages = [order[i * each : (i + 1) * each] for i in range(sequences)]
        self.lengths = [0] * sequences
        self.kv = model.ops.make_kv(shape.layers, shape.kv_heads, len(order), shape.head_dim, model.dtype)

    def run(self, pieces: Sequence[Piece], last_only: bool = False) -> list[torch.Tensor]:
        """The logits of each piece's tokens: one [tokens, V] a piece, or [1, V] with `last_only`."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[AttentionRow] = []
        for sequence, part in pieces:
            start, pages = self.lengths[sequence], self.pages[sequence]
            span = range(start, start + len(part))
            tokens += part
            positions += span
            slots += [pages[p // PAGE] * PAGE + p % PAGE for p in span]
            rows.append(AttentionRow(start, len(part), pages[: (span[-1] // PAGE) + 1]))
            self.lengths[sequence] += len(part)
        plan = self.model.ops.plan_attention(rows, torch.device("cpu"))
        with torch.inference_mode():
            batch = Batch(torch.tensor(tokens), torch.tensor(positions), torch.tensor(slots), plan)
            hidden = self.model.forward(batch, self.kv)
            sizes = [len(part) for _, part in pieces]
            if last_only:
                hidden = hidden[torch.tensor(sizes).cumsum(0) - 1]
                sizes = [1] * len(pieces)
            return list(self.model.logits(hidden).clone().split(sizes))  # logits hold until the next call only
