"""What is noted of a sequence while it runs. Costs a microsecond a pass.

Knows nothing of sequences, plans, tensors or sockets; `tracing` makes the record of it.
"""

from __future__ import annotations

from .trace import Miss, Prefill

MOST_PREFILLS = 64
"""Passes of a prompt that a record lists."""


class Notes:
    """Times are the engine clock's. `miss` is filled by whoever knows why the cache had no more."""

    __slots__ = (
        "admitted", "computed", "decode_seconds", "decodes", "drafts", "ended", "first_token", "mask_seconds",
        "match_seconds", "miss", "preemptions", "prefill_cost", "prefill_seconds", "prefills",
    )  # fmt: skip

    def __init__(self) -> None:
        self.admitted: float | None = None  # for the first time
        self.first_token: float | None = None
        self.ended = 0.0
        self.match_seconds = 0.0
        self.computed = 0
        self.prefills: list[Prefill] = []
        self.prefill_seconds = 0.0
        self.prefill_cost = 0.0
        self.decodes = 0
        self.decode_seconds = 0.0
        self.mask_seconds = 0.0
        self.preemptions = 0
        self.drafts: dict[str, tuple[int, int]] = {}
        self.miss: Miss | None = None

    def passed(self, tokens: int, began: float, seconds: float, share: float) -> None:
        """A pass has computed so many of its known tokens; they are this `share` of all that it computed."""
        if tokens == 1 and self.first_token is not None:
            self.decodes += 1
            self.decode_seconds += seconds
            return
        self.computed += tokens
        self.prefill_seconds += seconds
        self.prefill_cost += seconds * share
        if len(self.prefills) < MOST_PREFILLS:
            self.prefills.append(Prefill(tokens, began, seconds))

    def drew(self, now: float) -> None:
        """Tokens were drawn, or found that none may come."""
        if self.first_token is None:
            self.first_token = now

    def drafted(self, source: str, *, right: bool) -> None:
        """A draft token was reached."""
        reached, accepted = self.drafts.get(source, (0, 0))
        self.drafts[source] = (reached + 1, accepted + right)
