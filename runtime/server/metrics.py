"""What the server counts, in the Prometheus format. Knows nothing of HTTP routes or of the engine's inside.

The engine's own counters come from its `Stats` at the time of a scrape; they begin again at zero when it restarts.
While it does not answer, its last figures stay, and `engine_stats_age_seconds` says how old they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...types import EVICTION_AGES, EngineState, Stats
from .output_check import KEYWORDS
from .request_metrics import LATENCY, RequestMetrics
from .tallies import histogram

PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)

GAUGES = (
    ("requests_running", "running", "Requests that hold pages and are being computed."),
    ("requests_waiting", "waiting", "Requests in the queue."),
    ("disk_pages", "disk_pages", "Pages of evicted prefixes on disk."),
)
COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens of admitted requests."),
    ("cached_tokens", "cached_tokens", "Prompt tokens that came from the prefix cache."),
    ("computed_tokens", "computed_tokens", "Tokens that went through the model."),
    ("generation_tokens", "generated_tokens", "Tokens generated."),
    ("requests", "requests", "Requests that reached the engine."),
    ("requests_finished", "finished", "Requests that ended by themselves."),
    ("requests_cancelled", "cancelled", "Requests that were cancelled."),
    ("requests_rejected", "rejected", "Requests that the engine refused."),
    ("preemptions", "preemptions", "Times that a running request gave up its pages."),
    ("evicted_pages", "evicted_pages", "Pages evicted from the prefix cache."),
    ("disk_pages_read", "disk_pages_read", "Pages that came back from disk to the prefix cache."),
    ("disk_pages_written", "disk_pages_written", "Evicted pages that were written to disk."),
    ("disk_pages_refused", "disk_pages_refused", "Pages that the disk could not take, or gave back damaged."),
    ("steps", "steps", "Steps of the engine."),
)
STEP_PARTS = ("step", "forward", "schedule", "sample", "mask")
STATES: tuple[EngineState, ...] = ("starting", "ready", "restarting", "draining", "failed")


class Metrics:
    """One registry. The histograms are filled by the routes, the engine's figures by `render`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", LATENCY)
        self.tpot = self._histogram("time_per_output_token_seconds", "Between tokens after the first.", PER_TOKEN)
        self.e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", LATENCY)
        self.http = Counter(
            "bosquet_http_requests", "HTTP requests.", ("route", "method", "status"), registry=self.registry
        )
        self.disconnects = Counter(
            "bosquet_client_disconnects", "Requests whose client left early.", registry=self.registry
        )
        self.relaxed = Counter(
            "bosquet_relaxed_keywords",
            "Keywords of schemas that an output was not held to.",
            ("keyword",),
            registry=self.registry,
        )
        self.checked = Counter(
            "bosquet_outputs_checked",
            "Structured outputs that were held against their schemas.",
            ("kind", "verdict"),
            registry=self.registry,
        )
        self.requests = RequestMetrics()
        self.registry.register(self.requests)
        self._engine = _EngineCollector()
        self.registry.register(self._engine)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"bosquet_{name}", text, buckets=buckets, registry=self.registry)

    def count_relaxed(self, keyword: str) -> None:
        """`keyword` comes from a caller's schema: what is no known one is counted under "other"."""
        self.relaxed.labels(keyword if keyword in KEYWORDS else "other").inc()

    def render(self, state: EngineState, stats: Stats | None) -> bytes:
        """The text of a scrape; `stats` is None when the engine did not answer."""
        self._engine.state = state
        if stats is not None:
            self._engine.stats, self._engine.known = stats, time.monotonic()
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """The engine's last figures."""

    def __init__(self) -> None:
        self.state: EngineState = "starting"
        self.stats: Stats | None = None
        self.known = 0.0

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("bosquet_engine_state", "1 for the state that the engine is in.", labels=["state"])
        for name in STATES:
            state.add_metric([name], float(name == self.state))
        yield state
        if self.stats is not None:
            text = "Time since the engine gave the figures below; more than zero when it does not answer."
            age = max(0.0, time.monotonic() - self.known)
            yield GaugeMetricFamily("bosquet_engine_stats_age_seconds", text, value=age)
            yield from _stats_metrics(self.stats)


def _stats_metrics(stats: Stats) -> Iterator[Metric]:
    for name, attribute, text in GAUGES:
        yield GaugeMetricFamily(f"bosquet_{name}", text, value=getattr(stats, attribute))
    for name, attribute, text in COUNTERS:
        yield CounterMetricFamily(f"bosquet_{name}", text, value=getattr(stats, attribute))
    yield GaugeMetricFamily("bosquet_incarnation", "How often the engine has been started.", value=stats.incarnation)
    pages = GaugeMetricFamily("bosquet_pages", "Pages of the key-value cache by state.", labels=["state"])
    unused = stats.pages_cached - stats.pages_pinned
    for state, count in (
        ("free", stats.pages_free), ("cached", unused), ("pinned", stats.pages_pinned), ("running", stats.pages_running)
    ):  # fmt: skip
        pages.add_metric([state], count)
    yield pages
    yield GaugeMetricFamily("bosquet_pages_capacity", "Pages of the key-value cache in all.", value=stats.pages_total)
    yield from _evictions(stats)
    seconds = CounterMetricFamily("bosquet_engine_seconds", "Time spent in the engine's steps.", labels=["part"])
    for part in STEP_PARTS:
        seconds.add_metric([part], getattr(stats, f"{part}_seconds"))
    yield seconds
    drafted = CounterMetricFamily(
        "bosquet_draft_tokens", "Draft tokens that were verified.", labels=["source", "verdict"]
    )
    for source, count in stats.drafted_tokens.items():
        accepted = stats.accepted_tokens[source]
        drafted.add_metric([source, "accepted"], accepted)
        drafted.add_metric([source, "rejected"], count - accepted)
    yield drafted
    stages = CounterMetricFamily(
        "bosquet_forward_seconds", "Time spent in the forward pass, by stage.", labels=["stage"]
    )
    for stage, spent in stats.stage_seconds.items():
        stages.add_metric([stage], spent)
    yield stages


def _evictions(stats: Stats) -> Iterator[Metric]:
    left = CounterMetricFamily("bosquet_pages_left", "Pages that left the prefix tree, by cause.", labels=["cause"])
    for cause, count in stats.evictions.items():
        left.add_metric([cause], count)
    yield left
    text = "How long an evicted page had not been used."
    name, total = "bosquet_evicted_page_age_seconds", stats.eviction_age_seconds
    yield histogram(name, text, EVICTION_AGES, stats.eviction_ages, total)
