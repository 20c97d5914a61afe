"""A runner for a model that is loaded on a GPU, with as many pages as there is room for."""

from __future__ import annotations

import torch

from ...kernels.registry import interpreted
from ...types import PAGE, Row, SamplingParams
from ..models.base import Model
from ..plan import Plan, SampleRow
from ..precision import Precision
from ..settings import EngineConfig
from .memory import tokens_that_fit
from .port import CudaPort, HostPort, Port
from .runner import GpuRunner


def open_port(device: torch.device) -> Port:
    """The device itself; on a processor, where kernels are interpreted, a stand-in."""
    if device.type == "cuda":
        return CudaPort(device)
    assert interpreted(), device
    return HostPort()


def device_tokens(model: Model, config: EngineConfig, precision: Precision, port: Port, bytes_per_token: int) -> int:
    """Tokens of cache that the device has room for beside the largest pass. Raises `ConfigError` for none."""
    context = min(config.step_tokens, model.shape.context_length)
    peak = _peak_of_a_pass(model, context, config.max_running, precision, port)
    port.reclaim()
    return tokens_that_fit(port.free_bytes(), peak, config.graph_mb << 20, bytes_per_token)


def _peak_of_a_pass(model: Model, tokens: int, rows: int, precision: Precision, port: Port) -> int:
    trial = GpuRunner(model, -(-tokens // PAGE), port, tokens, kv_dtype=precision.kv, graph_bytes=0)
    return port.peak_bytes(lambda: _largest_pass(trial, tokens, rows))


def _largest_pass(runner: GpuRunner, tokens: int, rows: int) -> None:
    """A prefill as long as a pass may be, and as many draws as rows may want."""
    wanted = range(min(tokens, rows))
    handle = runner.submit(Plan([Row([0] * tokens, 0, range(-(-tokens // PAGE)), wanted)], draws=[0] * len(wanted)))
    sampling = SamplingParams(temperature=1.0, top_p=0.9)
    handle.sample([SampleRow(i, sampling, 0, 0, i + 1) for i in wanted], [])
    handle.result()


def gpu_runner(model: Model, config: EngineConfig, precision: Precision, port: Port) -> GpuRunner:
    """For a configuration in which nothing is "auto" any more."""
    pages = config.cache_tokens // PAGE
    longest = config.context_length
    return GpuRunner(model, pages, port, longest, kv_dtype=precision.kv, graph_bytes=config.graph_mb << 20)
