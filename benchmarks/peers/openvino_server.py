"""A server for OpenVINO GenAI, which has none: continuous batching with prefix caching, on a GGUF file.

peers/openvino/bin/python benchmarks/peers/openvino_server.py MODEL.gguf --port 8200 --threads 2
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from collections.abc import Iterator

import openvino_genai as genai  # type: ignore[import-not-found]
from openai_http import Piece, Request, Tokens, pieces, serve


class OpenVino:
    """One thread steps the pipeline while there is work; the others add requests and wait for their tokens."""

    name = "openvino"
    version = genai.__version__.split("-")[0]

    def __init__(self, model: str, threads: int, cache_gib: int, batch_tokens: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = cache_gib
        scheduler.max_num_batched_tokens = batch_tokens
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self._tokenizer = self._pipeline.get_tokenizer()
        self._ids = iter(range(2**62))
        self._added: queue.SimpleQueue[tuple[genai.GenerationHandle, Tokens]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def answer(self, request: Request, streamed: bool) -> Iterator[Piece]:
        prompt = self._tokenizer.encode(self._prompt(request), add_special_tokens=False).input_ids
        config = self._config(request)
        tokens: Tokens = queue.SimpleQueue()
        self._added.put((self._pipeline.add_request(next(self._ids), prompt, config), tokens))
        return pieces(tokens, self._tokenizer.decode, prompt.shape[1], request.max_tokens, streamed)

    def _prompt(self, request: Request) -> str:
        if isinstance(request.said, str):
            return request.said
        return str(self._tokenizer.apply_chat_template(request.said, add_generation_prompt=True))

    def _config(self, request: Request) -> genai.GenerationConfig:
        config = self._pipeline.get_config()
        config.do_sample = False
        config.max_new_tokens = request.max_tokens
        config.ignore_eos = request.ignore_eos
        if request.schema is not None:
            config.structured_output_config = genai.StructuredOutputConfig(json_schema=json.dumps(request.schema))
        return config

    def _run(self) -> None:
        running: list[tuple[genai.GenerationHandle, Tokens]] = []
        while True:
            if not running:
                running.append(self._added.get())  # sleeps while there is nothing to do
            while not self._added.empty():
                running.append(self._added.get())
            try:
                self._pipeline.step()
            except RuntimeError as error:
                for _, tokens in running:
                    tokens.put(error)
                running.clear()
                continue
            running = [(handle, tokens) for handle, tokens in running if self._goes_on(handle, tokens)]

    def _goes_on(self, handle: genai.GenerationHandle, tokens: Tokens) -> bool:
        while handle.can_read():
            (output,) = handle.read().values()
            tokens.put(list(output.generated_ids))
        status = handle.get_status()
        if status == genai.GenerationStatus.RUNNING:
            return True
        tokens.put(None if status == genai.GenerationStatus.FINISHED else RuntimeError(str(status)))
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=0, help="0: as OpenVINO likes")
    parser.add_argument("--cache", type=int, default=2, help="GiB of key-value cache")
    parser.add_argument("--batch-tokens", type=int, default=256, help="most tokens of a step")
    given = parser.parse_args()
    serve(OpenVino(given.model, given.threads, given.cache, given.batch_tokens), given.port)


if __name__ == "__main__":
    main()
