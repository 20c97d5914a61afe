"""A server for transformers' `generate` on a CPU: requests that wait are generated as one batch, padded on the left.

So there is no reuse of prefixes, and who comes while a batch runs waits for its end. The continuous batching that
transformers has too is not used: without flash attention each row is multiplied with the keys of all.

    peers/transformers/bin/python benchmarks/peers/transformers_server.py MODEL --port 8300 --threads 2 --dtype float32
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from openai_http import Piece, Request, Tokens, pieces, serve

GATHER_S = 0.02
"""How long to wait for requests that are sent at the same time."""


@dataclass(frozen=True)
class Waiting:
    ids: list[int]
    max_tokens: int
    tokens: Tokens


class Spread(transformers.generation.streamers.BaseStreamer):
    """Gives each row of a batch its tokens as they come."""

    def __init__(self, batch: list[Waiting]) -> None:
        self._batch = batch
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """value: [rows], but first the prompts: [rows, tokens]."""
        if not self._is_prompt:
            for waiting, token in zip(self._batch, value.tolist(), strict=True):
                waiting.tokens.put([token])
        self._is_prompt = False

    def end(self) -> None:
        for waiting in self._batch:
            waiting.tokens.put(None)


class Transformers:
    """One thread generates; the others add requests and wait for their tokens."""

    name = "transformers"
    version = transformers.__version__

    def __init__(self, model: str, dtype: str, most: int) -> None:
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self._model.eval()
        self._most = most
        self._added: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def answer(self, request: Request, streamed: bool) -> Iterator[Piece]:
        if request.schema is not None or not request.ignore_eos:
            raise ValueError("only answers of max_tokens tokens: no response_format, and ignore_eos")
        ids = self._tokenizer(self._prompt(request), add_special_tokens=False).input_ids
        tokens: Tokens = queue.SimpleQueue()
        self._added.put(Waiting(ids, request.max_tokens, tokens))
        return pieces(tokens, self._tokenizer.decode, len(ids), request.max_tokens, streamed)

    def _prompt(self, request: Request) -> str:
        if isinstance(request.said, str):
            return request.said
        return str(self._tokenizer.apply_chat_template(request.said, add_generation_prompt=True, tokenize=False))

    def _run(self) -> None:
        waiting: list[Waiting] = []
        while True:
            if not waiting:
                waiting.append(self._added.get())
                time.sleep(GATHER_S)
            while not self._added.empty():
                waiting.append(self._added.get())
            alike = [one for one in waiting if one.max_tokens == waiting[0].max_tokens][: self._most]
            waiting = [one for one in waiting if one not in alike]
            try:
                self._generate(alike)
            except RuntimeError as error:
                for one in alike:
                    one.tokens.put(error)

    @torch.inference_mode()
    def _generate(self, batch: list[Waiting]) -> None:
        longest = max(len(one.ids) for one in batch)
        pads = [longest - len(one.ids) for one in batch]
        self._model.generate(
            torch.tensor([[0] * pad + one.ids for pad, one in zip(pads, batch, strict=True)]),
            attention_mask=torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads]),
            streamer=Spread(batch),
            do_sample=False,
            max_new_tokens=batch[0].max_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--most", type=int, default=32, help="requests of a batch")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    serve(Transformers(given.model, given.dtype, given.most), given.port)


if __name__ == "__main__":
    main()
