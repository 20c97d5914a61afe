"""Distilling: a network with a speculator's weights learns what the target held likely, a few tokens deep.

Each step is given the token that the target took (teacher forcing), so step i learns p(x_i | …, x_{i-1}) from what the
steps before it left in the state. Loss of a step: cross-entropy against the target's `TOP` probabilities, which differs
from the Kullback-Leibler divergence by a constant, mixed with that against the token itself.

The head is computed for some columns only: those that the batch asks for and a random sample of the rest, whose
logits are raised by the log of how many others each stands for (sampled softmax, Bengio and Senécal 2008).

Everything random depends on the seed and the number of the step, so a learner that is restored goes on as if it had
never stopped. Knows batches; nothing of text.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from ...speculative.speculator import EPS
from .lessons import Batch, Lessons

_FIRST = 60_000
"""Starts from which the linear part is fitted before anything is learnt."""


class Recipe(NamedTuple):
    """How a draft is made. `tokens` have a column in the head; `inner` and `depth` are the layer's width over that of
    the hidden state, and how many tokens are guessed from one start."""

    tokens: int = 8_000
    inner: float = 1.5
    depth: int = 3
    batch: int = 256
    epochs: float = 4.0
    rate: float = 1e-3
    head_rate: float = 2e-4
    fading: float = 0.8  # weight of a step over that of the step before
    hard: float = 0.2  # share of the token itself in the loss
    sampled: int = 1024  # columns beside those that a batch asks for
    seed: int = 0

    def width(self, hidden: int) -> int:
        """Of the layer: a multiple of what kernels take at once."""
        return max(32, round(self.inner * hidden / 32) * 32)


class Network:
    """The weights that `speculative.speculator` runs, in float32: `scale` and `embedding` stay as they are."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.learnt = [weights[name].requires_grad_() for name in ("mix", "down", "head")]
        self._embedding = weights["embedding"]
        self._mix, self._down, self._head = self.learnt
        self._inner = self._down.shape[1]

    def begin(self, hidden: Tensor) -> Tensor:
        return hidden / self.weights["scale"]

    def advance(self, r: Tensor, columns: Tensor) -> Tensor:
        """States [n, D] after the tokens [n]."""
        mixed = torch.cat((r, self._embedding[columns]), 1) @ self._mix.T
        a, b, c = torch.split(mixed, [self._inner, self._inner, r.shape[1]], 1)
        y: Tensor = c + (functional.silu(a) * b) @ self._down.T
        return y * torch.rsqrt(y.square().mean(1, keepdim=True) + EPS)

    def logits(self, r: Tensor, columns: Tensor) -> Tensor:
        return r @ self._head[columns].T


def start(lessons: Lessons, head: Tensor, recipe: Recipe) -> Network:
    """`head` [F + 1, D] are rows of the target's, see `command.head_rows`: the first embeddings, and the first head.
    The linear part begins as the ridge regression from state and token to the next state, the gated one as nothing."""
    hidden = head.shape[1]
    random = np.random.default_rng((recipe.seed, 1))
    starts = np.sort(random.permutation(lessons.learnt)[:_FIRST])
    batch = lessons.batch(starts, 0)
    scale = batch.hidden.square().mean(0).sqrt().clamp(min=1e-6)
    embedding = head / head.square().mean(1, keepdim=True).add(EPS).sqrt()
    linear = _ridge(
        torch.cat((batch.hidden / scale, embedding[batch.tokens[:, 0]]), 1), lessons.next_states(starts) / scale
    )
    inner = recipe.width(hidden)
    generator = torch.Generator().manual_seed(recipe.seed)
    gates = torch.randn(2 * inner, 2 * hidden, generator=generator) * (2 * hidden) ** -0.5
    return Network(
        {
            "scale": scale,
            "embedding": embedding,
            "mix": torch.cat((gates, linear)),
            "down": torch.zeros(hidden, inner),
            "head": head[:-1] * scale,
        }
    )


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    """W [out, in] of the least |x·Wᵀ - y|² + λ|W|²."""
    squares = (x.T @ x).double()
    squares += 1e-2 * squares.diagonal().mean() * torch.eye(len(squares), dtype=torch.float64)
    solved: Tensor = torch.linalg.solve(squares, (x.T @ y).double())
    return solved.float().T.contiguous()


class Learner:
    """`step` batches have been learnt from, in `seconds`."""

    def __init__(self, network: Network, lessons: Lessons, recipe: Recipe) -> None:
        self.network, self.step, self.seconds = network, 0, 0.0
        self.steps = max(1, math.ceil(recipe.epochs * len(lessons.learnt) / recipe.batch))
        self._lessons, self._recipe = lessons, recipe
        *layer, head = network.learnt
        groups = [{"params": layer, "lr": recipe.rate}, {"params": [head], "lr": recipe.head_rate}]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)

    def learn(self, progress: float) -> float:
        """One batch; the rate follows how far everything is, from 0 to 1. Returns the loss."""
        recipe = self._recipe
        warm = min(1.0, (self.step + 1) / 50)
        rate = warm * max(0.02, 0.5 * (1 + math.cos(math.pi * progress)))
        for group, full in zip(self._optimizer.param_groups, (recipe.rate, recipe.head_rate), strict=True):
            group["lr"] = rate * full
        batch = self._lessons.draw(recipe.seed, self.step, recipe.batch, recipe.depth)
        loss = distil(self.network, batch, recipe, torch.Generator().manual_seed(recipe.seed * 1_000_003 + self.step))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.learnt, 1.0)
        self._optimizer.step()
        self.step += 1
        return float(loss.detach())

    def save(self, path: Path) -> None:
        """Either this or what was there before is on the disk, whatever happens."""
        tensors = {f"weights.{name}": tensor.detach() for name, tensor in self.network.weights.items()}
        for i, parameter in enumerate(self.network.learnt):
            for name, value in self._optimizer.state[parameter].items():
                tensors[f"optimizer.{i}.{name}"] = value
        fresh = path.with_suffix(".new")
        save_file(tensors, fresh, {"step": str(self.step), "seconds": repr(self.seconds)})
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)

    @classmethod
    def restore(cls, path: Path, lessons: Lessons, recipe: Recipe) -> Learner:
        """What `save` wrote."""
        with safe_open(path, "pt") as file:
            said = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights = {name.removeprefix("weights."): t for name, t in tensors.items() if name.startswith("weights.")}
        learner = cls(Network(weights), lessons, recipe)
        learner.step, learner.seconds = int(said["step"]), float(said["seconds"])
        for i, parameter in enumerate(learner.network.learnt):
            at = f"optimizer.{i}."
            state = {name.removeprefix(at): t for name, t in tensors.items() if name.startswith(at)}
            if state:
                learner._optimizer.state[parameter] = state
        return learner


def distil(network: Network, batch: Batch, recipe: Recipe, random: torch.Generator) -> Tensor:
    """The mean loss of a token, summed over steps, each weighing less than the one before it."""
    rare = len(network.weights["head"])
    r = network.begin(batch.hidden)
    total = torch.zeros(())
    for i in range(batch.there.shape[1]):
        r = network.advance(r, batch.tokens[:, i])
        there = batch.there[:, i]
        ids, odds, tokens = batch.ids[there, i], batch.odds[there, i], batch.tokens[there, i + 1]
        columns, stand_for = _columns(torch.cat((ids.flatten(), tokens)), rare, recipe.sampled, random)
        place = torch.full((rare + 1,), len(columns))
        place[columns] = torch.arange(len(columns))
        logs = functional.log_softmax(network.logits(r[there], columns) + stand_for, 1)
        logs = functional.pad(logs, (0, 1))  # a rare token has no column and no part in the loss
        soft = -(odds * logs.gather(1, place[ids])).sum(1)
        hard = -logs.gather(1, place[tokens][:, None])[:, 0]
        loss = (1 - recipe.hard) * soft + recipe.hard * hard
        total = total + recipe.fading**i * loss.sum() / max(1, len(loss))
    return total


def _columns(asked: Tensor, rare: int, sampled: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Columns [n] to compute, and what to add to the logits of each: 0 for those asked for."""
    wanted = torch.zeros(rare + 1, dtype=torch.bool)
    wanted[asked] = True
    wanted = wanted[:rare]
    others = (~wanted).nonzero()[:, 0]
    if len(others) > sampled:
        taken = others[torch.randperm(len(others), generator=random)[:sampled]]
    else:
        taken = others
    hot = wanted.nonzero()[:, 0]
    stand_for = torch.full((len(taken),), math.log(len(others) / len(taken)) if len(taken) else 0.0)
    return torch.cat((hot, taken)), torch.cat((torch.zeros(len(hot)), stand_for))
