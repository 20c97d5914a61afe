"""The engine on Triton's kernels and the runner for GPUs, with kernels in the interpreter: the same answers as torch's
operations give, planned ahead and replayed from recordings (I1, I2, I3, I5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from torch import Tensor

from bosquet.errors import OutOfDeviceMemory
from bosquet.kernels.registry import interpreted, load_ops
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.gpu.port import Array, HostPort
from bosquet.runtime.gpu.runner import GpuRunner
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.models.base import Model
from bosquet.runtime.plan import Plan, SampleRow
from bosquet.runtime.runner import TorchRunner
from bosquet.types import Output, Request, Row, SamplingParams

pytestmark = [
    pytest.mark.skipif(not interpreted(), reason="a GPU is here: tests/device runs these kernels on it"),
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),  # infinities that kernels mean
]

PIECES = [bytes([32 + i % 90]) for i in range(tiny_models.VOCABULARY)]
CONTEXT, PAGES = 128, 40


class LatePort(HostPort):
    """A device that is never done before it is waited for: a download holds garbage until then, and an array that is
    uploaded must not change what was queued. Keeps a log of what is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.fails = 0  # so many of the next replays find no memory

    def upload(self, array: Array) -> Tensor:
        self.log.append("upload")
        return super().upload(array)

    def fill(self, target: Tensor, array: Array) -> None:
        self.log.append("fill")
        super().fill(target, array)

    def download(self, tensor: Tensor) -> Any:
        self.log.append("download")
        return _Late(self, tensor)

    def capture(self, work: Callable[[], Tensor]) -> Any:
        self.log.append("capture")
        return _Replayed(self, super().capture(work))


class _Late:
    def __init__(self, port: LatePort, tensor: Tensor) -> None:
        self._port, self._values = port, tensor.numpy().copy()  # as of this place in the queue

    def wait(self) -> Array:
        self._port.log.append("wait")
        return self._values


class _Replayed:
    def __init__(self, port: LatePort, graph: Any) -> None:
        self._port, self._graph, self.output = port, graph, graph.output

    def replay(self) -> None:
        if self._port.fails:
            self._port.fails -= 1
            raise torch.OutOfMemoryError("planted")
        self._port.log.append("replay")
        self._graph.replay()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_models.make_config(
        "llama", num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=CONTEXT
    )
    return tiny_models.save(tiny_models.make_model(config), tmp_path_factory.mktemp("model"))


def loaded(folder: Path, kernels: str) -> Model:
    ops = load_ops(kernels, storage="float32")
    return tiny_models.open_model(folder, ops=ops)


def engine_of(runner: Any, lag: int, pages: int = PAGES, chunk: int = 24) -> Engine:
    return Engine(
        runner,
        RadixCache(PagePool(pages)),
        Limits(chunk, 8, ageing_s=10.0),
        Bounds(tiny_models.VOCABULARY, min(CONTEXT, 16 * pages), max_waiting=50),
        Vocabulary(PIECES, frozenset(), (2,)),
        lag=lag,
    )


def on_gpu(folder: Path, port: LatePort, *, graph_bytes: int = 1 << 30, pages: int = PAGES) -> GpuRunner:
    return GpuRunner(loaded(folder, "triton"), pages, port, CONTEXT, graph_bytes=graph_bytes)


def requests() -> list[Request]:
    rng = np.random.default_rng(3)
    shared = rng.integers(3, 96, 35).tolist()
    asked = [
        SamplingParams(max_tokens=6, temperature=0, ignore_eos=True),
        SamplingParams(max_tokens=5, temperature=0.8, top_p=0.9, seed=7, ignore_eos=True, n=2),
        SamplingParams(max_tokens=4, temperature=1.1, top_k=9, min_p=0.05, seed=8, logprobs=3, ignore_eos=True),
        SamplingParams(
            max_tokens=4, temperature=0.7, seed=9, repetition_penalty=1.3, logit_bias={5: 2.0}, ignore_eos=True
        ),
        SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=2, prompt_logprobs_from=30, ignore_eos=True),
    ]
    return [
        Request(id=str(i), ids=shared + rng.integers(3, 96, 1 + 4 * i).tolist(), sampling=sampling)
        for i, sampling in enumerate(asked)
    ]


def said(engine: Engine) -> dict[tuple[str, int], list[Output]]:
    """All answers; each request comes a step after the one before it."""
    outputs: dict[tuple[str, int], list[Output]] = {}
    waiting = requests()
    while waiting or not engine.idle:
        if waiting:
            engine.add(waiting.pop(0))
        for output in engine.step():
            outputs.setdefault((output.request, output.choice), []).append(output)
        engine.check_integrity()
    assert engine.stats().pages_running == 0
    return outputs


def facts(outputs: dict[tuple[str, int], list[Output]]) -> dict[tuple[str, int], Any]:
    return {
        who: ([t for o in each for t in o.tokens], each[-1].finish, each[-1].error) for who, each in outputs.items()
    }


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[tuple[str, int], list[Output]]:
    return said(engine_of(TorchRunner(loaded(folder, "reference"), PAGES), lag=0))


def same_scores(got: list[Output], want: list[Output]) -> None:
    for kind in ("logprobs", "prompt_logprobs"):
        ours = [score for output in got for score in getattr(output, kind) or []]
        theirs = [score for output in want for score in getattr(output, kind) or []]
        assert [score.token for score in ours] == [score.token for score in theirs]
        for our, their in zip(ours, theirs, strict=True):
            assert our.logprob == pytest.approx(their.logprob, abs=2e-4)
            assert [t for t, _ in our.top or []] == [t for t, _ in their.top or []]
            assert [v for _, v in our.top or []] == pytest.approx([v for _, v in their.top or []], abs=2e-4)


def test_answers_are_those_of_torch_and_the_host_runs_ahead(
    folder: Path, wanted: dict[Any, list[Output]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = LatePort()
    runner = on_gpu(folder, port)
    submit = runner.submit
    monkeypatch.setattr(runner, "submit", lambda plan: (port.log.append("pass"), submit(plan))[1])
    got = said(engine_of(runner, lag=1))
    assert facts(got) == facts(wanted)
    for who, outputs in wanted.items():
        same_scores(got[who], outputs)
    assert port.log.count("replay") > port.log.count("capture") > 0
    # Nothing waits for a pass before the next one is queued, but for the last one.
    events = [event for event in port.log if event in ("pass", "wait")]
    passes = waited = 0
    for event in events:
        passes += event == "pass"
        if event == "wait":
            waited += 1
            assert passes >= 2
    assert waited
    assert events[-1] == "wait"


def test_a_pass_without_room_is_computed_in_another_way(folder: Path) -> None:
    """Memory runs out at a replay: the sequences go back to the queue, and what they say is what they would have."""
    port = LatePort()
    engine = engine_of(on_gpu(folder, port), lag=1)
    alone = engine_of(TorchRunner(loaded(folder, "reference"), PAGES), lag=0)
    ids = list(range(3, 30))
    texts = []
    for one in (engine, alone):
        one.add(Request(id="a", ids=ids, sampling=SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)))
        tokens: list[int] = []
        while not one.idle:
            tokens += [token for output in one.step() for token in output.tokens]
            if one is engine and len(tokens) == 2 and not engine.scheduler.preemptions:
                port.fails = 1
        one.check_integrity()
        texts.append(tokens)
    assert engine.scheduler.preemptions == 1
    assert texts[0] == texts[1]


def test_a_runner_reports_what_it_had_no_room_for(folder: Path) -> None:
    port = LatePort()
    runner = on_gpu(folder, port)
    plan = Plan([Row((5,), 0, (0,), (0,))], draws=[0])
    runner.submit(plan).sample([SampleRow(0, SamplingParams(temperature=0), 0, 0, 1)], [])
    port.fails = 1
    with pytest.raises(OutOfDeviceMemory, match="planted"):
        runner.submit(plan)


def test_recordings_stop_at_their_bound_and_larger_ones_serve(folder: Path) -> None:
    """With no more memory for recordings, a pass runs in a larger shape there is, or unrecorded."""
    port = LatePort()
    runner = on_gpu(folder, port)
    free = iter(range(1 << 40, 0, -(1 << 30)))  # each look finds a gigabyte less
    port.free_bytes = lambda: next(free)  # type: ignore[method-assign]
    three = Plan([Row((5 + i,), 0, (i,), (0,)) for i in range(3)])
    one = Plan([Row((6,), 0, (1,), (0,))])
    many = Plan([Row((7,), 0, (i,), (0,)) for i in range(6)])
    first = runner.submit(three).hidden.clone()
    assert len(runner.graphs) == 1
    again = runner.submit(one).hidden.clone()
    assert len(runner.graphs) == 1
    assert port.log.count("replay") == 2
    torch.testing.assert_close(again[0], first[1], rtol=0, atol=0)
    runner.submit(many)
    assert len(runner.graphs) == 1
    assert port.log.count("replay") == 2
