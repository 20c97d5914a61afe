"""What the server counts of requests that are over, from their records. Knows nothing of HTTP.

Counters of tokens, not rates, so that a rate over any time can be asked for: the hit rate of the last five minutes is
`rate(bosquet_prefix_cache_hits_total[5m]) / rate(bosquet_prefix_cache_queries_total[5m])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ..trace import ChoiceTrace
from .tallies import Spread, Tally, families
from .trace_book import Complete
from .trace_records import RequestRecord, origins, times

LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)

TENANTS = 50
"""Tenants that have lines of their own; those that come later are counted under "other"."""


class RequestMetrics(Collector):
    """Filled with every record. `dropped` says how many records could not be kept."""

    def __init__(self) -> None:
        self.dropped: Callable[[], int] = lambda: 0
        self._all: list[Tally | Spread] = []
        self._tenants: set[str] = set()
        self._queries = self._tally("prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache.")
        self._hits = self._tally("prefix_cache_hits", "Prompt tokens that were found in it.")
        self._misses = self._tally("prefix_cache_misses", "Choices, by why the cache had no more.", "cause")
        self._lost = self._tally("prefix_cache_lost_tokens", "Tokens computed that need not have been.", "cause")
        self._finished = self._tally("request_success", "Choices that ended, by why.", "finished_reason")
        self._failed = self._tally("requests_failed", "Requests that were answered by an error.", "code")
        self._tokens = self._tally("tokens", "Tokens of prompts and outputs, by where they came from.", "origin")
        self._grammars = self._tally("grammar_requests", "Requests whose output had to fit a grammar.", "kind")
        self._masks = self._tally("grammar_mask_seconds", "Time that grammars took to make masks.")
        self._drafts = self._tally("draft_requests", "Choices that took draft tokens, by source.", "source")
        self._queue = self._spread("request_queue_time_seconds", "From arrival to being admitted.", LATENCY)
        self._prefill = self._spread("request_prefill_time_seconds", "From there to the first token.", LATENCY)
        self._decode = self._spread("request_decode_time_seconds", "From the first token to the last.", LATENCY)
        self._prompt = self._spread("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self._generation = self._spread("request_generation_tokens", "Tokens of an answer.", TOKENS)
        self._by_tenant = [
            self._tally(f"tenant_{name}", text, "tenant")
            for name, text in (
                ("requests", "Requests of a tenant."),
                ("prompt_tokens", "Prompt tokens of a tenant."),
                ("cached_tokens", "Prompt tokens of a tenant that came from the cache."),
                ("generation_tokens", "Tokens generated for a tenant."),
            )
        ]

    def see(self, record: RequestRecord, complete: Complete) -> None:
        """Count a request that is over."""
        self._queries.add(record.prompt_tokens)
        self._hits.add(record.cached_tokens)
        self._prompt.add(record.prompt_tokens)
        self._generation.add(record.completion_tokens)
        if record.error is not None:
            self._failed.add(1, record.error)
        tenant = self._known(record.tenant)
        amounts = (1, record.prompt_tokens, record.cached_tokens, record.completion_tokens)
        for tally, amount in zip(self._by_tenant, amounts, strict=True):
            tally.add(amount, tenant)
        if record.engine is None:
            return
        if record.engine.grammar is not None:
            self._grammars.add(1, record.engine.grammar)
        tokens = origins(record)
        for name in tokens.__struct_fields__:
            self._tokens.add(getattr(tokens, name), name)
        spent = times(record)
        phases = ((self._queue, spent.queue), (self._prefill, spent.prefill), (self._decode, spent.decode))
        for spread, seconds in phases:
            if seconds is not None:
                spread.add(seconds)
        for choice in record.engine.choices:
            self._count_choice(choice)

    def collect(self) -> Iterator[Metric]:
        yield from families(self._all)
        text = "Records of requests that were not kept: too many at once, or a full disk."
        yield CounterMetricFamily("bosquet_records_dropped", text, value=self.dropped())

    def _count_choice(self, choice: ChoiceTrace) -> None:
        self._finished.add(1, choice.finish or "unknown")
        self._masks.add(choice.mask_seconds)
        for source, (_, right) in choice.drafts.items():
            if right:
                self._drafts.add(1, source)
        if choice.miss is not None:
            cause = choice.miss.cause or "none"
            self._misses.add(1, cause)
            self._lost.add(choice.miss.lost, cause)

    def _known(self, tenant: str) -> str:
        if tenant not in self._tenants:
            if len(self._tenants) >= TENANTS:
                return "other"
            self._tenants.add(tenant)
        return tenant

    def _tally(self, name: str, text: str, label: str | None = None) -> Tally:
        made = Tally(f"bosquet_{name}", text, label)
        self._all.append(made)
        return made

    def _spread(self, name: str, text: str, ends: tuple[float, ...]) -> Spread:
        made = Spread(f"bosquet_{name}", text, ends)
        self._all.append(made)
        return made
