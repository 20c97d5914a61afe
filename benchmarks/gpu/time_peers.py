"""transformers' own `generate` beside our engine, with the same weights: the 1B shape, greedy, batch 1 and 8.

First both compute the logits of one prompt. Right is what transformers computes in float32; what bfloat16 costs is its
own error there, and ours may not be much larger.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor

from bosquet.runtime.gpu.runner import GpuRunner
from bosquet.runtime.plan import Plan
from bosquet.types import Request, Row, SamplingParams

from .bed import Bed
from .check_attention import far
from .floors import SMALL, TINY
from .random_model import config_of, dealt, drawn, model_of, runner_of
from .report import Finding, compared, seconds
from .time_engine import engine_of, no_collection, prompt

LENGTH, NEW = 512, 128
OURS = ("model_type", "architectures")  # of a configuration, what a class of transformers brings itself
LEAST_ERROR = 1e-3  # of logits in bfloat16: below it, twice nothing would be asked for


class Both:
    """One model, twice."""

    def __init__(self, bed: Bed) -> None:
        self.sizes = TINY if bed.tiny else SMALL
        context = bed.pick(4096, 64)
        settings = {name: value for name, value in config_of(self.sizes, context).items() if name not in OURS}
        config = transformers.LlamaConfig(**settings, tie_word_embeddings=False, eos_token_id=None, pad_token_id=0)
        with bed.device:
            self.theirs: Any = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="sdpa"
            ).eval()
        make, weights = drawn(bed), dict(self.theirs.named_parameters())
        with torch.no_grad():
            for name, parameter in weights.items():
                parameter.copy_(make(name, parameter.shape))

        def same(name: str, shape: Sequence[int]) -> Tensor:
            assert weights[name].shape == tuple(shape), name
            return weights[name].detach()

        model = model_of(bed, self.sizes, "bfloat16", same, context)
        self.ours: GpuRunner = runner_of(bed, model, bed.pick(32_768, 300), noisy=False)


def run(bed: Bed) -> None:
    made: list[Both] = []

    def start() -> Finding:
        began = time.perf_counter()
        made.append(Both(bed))
        return Finding(seconds(time.perf_counter() - began), f"transformers {transformers.__version__}")

    bed.case("1B: the same weights twice", start, sets_up=True)
    if made:
        bed.case("1B: logits of a prompt", lambda: _logits(bed, made[0]))
        for rows in bed.pick((1, 8), (2,)):
            bed.case(f"1B: {rows} streams of {NEW} tokens", partial(_generate, bed, made[0], rows))


def _logits(bed: Bed, both: Both) -> Finding:
    length = bed.pick(300, 20)
    ids, runner = prompt(length, both.sizes.vocabulary, 1), both.ours
    with torch.inference_mode():
        given = torch.tensor([ids], device=bed.device)
        half = both.theirs(given, use_cache=False).logits[0]
        # A copy: a model that went to float32 and back would have lost bits of its rotary tables.
        right = copy.deepcopy(both.theirs).float()(given, use_cache=False).logits[0].double()
        wanted = range(length - bed.pick(64, 5), length)
        handle = runner.submit(Plan([Row(ids, 0, dealt(runner, 1, length)[0], wanted)]))
        got = runner.logits(handle.hidden, None)
    at = slice(wanted.start, None)
    theirs, ours = far(half[at], right[at]), far(got, right[at])
    best = float((got.argmax(-1) == right[at].argmax(-1)).float().mean())
    return compared(ours, max(2 * theirs, LEAST_ERROR), theirs=theirs, same_best=best)


def _generate(bed: Bed, both: Both, rows: int) -> Finding:
    length, most = bed.pick((LENGTH, NEW), (8, 3))
    prompts = [prompt(length, both.sizes.vocabulary, i) for i in range(rows)]
    ours = min(_our_seconds(bed, both, prompts, most) for _ in range(2))
    given = torch.tensor(prompts, device=bed.device)
    settings = {"max_new_tokens": most, "min_new_tokens": most, "do_sample": False, "pad_token_id": 0}
    theirs = []
    with torch.inference_mode():
        for _ in range(2):
            began = time.perf_counter()
            out = both.theirs.generate(given, attention_mask=torch.ones_like(given), **settings)
            bed.wait()
            theirs.append(time.perf_counter() - began)
    assert out.shape == (rows, length + most), out.shape
    tokens, taken = rows * most, min(theirs)
    facts = {"ours_s": ours, "theirs_s": taken, "tokens": tokens}
    said, against = f"{tokens / ours:,.0f} tok/s", f"{tokens / taken:,.0f} of transformers"
    return Finding(said, against, f"{taken / ours:.1f}x", "", facts)


def _our_seconds(bed: Bed, both: Both, prompts: list[list[int]], most: int) -> float:
    engine = engine_of(bed, both.ours, lag=1, reuse=False)
    sampling = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
    made = 0
    with no_collection():
        began = time.perf_counter()
        for i, ids in enumerate(prompts):
            engine.add(Request(id=str(i), ids=ids, sampling=sampling, speculation=()))
        while not engine.idle:
            made += sum(len(output.tokens) for output in engine.step())
        taken = time.perf_counter() - began
    assert made == len(prompts) * most
    return taken
