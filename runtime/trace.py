"""What is noted of a request: the record that the engine makes, and what crosses to the API process.

Structs only; `tracing` fills them when the request is over. Never any text.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct, field

from ..types import FinishReason, GrammarKind, Origin


class Prefill(NamedTuple):
    """A part of a prompt that one pass computed. `at` and `seconds` are those of the whole pass."""

    tokens: int
    at: float
    seconds: float


MissCause = Literal["", "cold", "diverged", "evicted", "namespace", "disabled", "in_flight", "limit"]


class Miss(Struct, frozen=True, omit_defaults=True):
    """Why the cache did not have more of a prompt. `cause` is that of the token at position `at`, the first that was
    not reused; empty: there was none. `reason` says more of it, such as why and when something was evicted.

    `matched` tokens were reused: from memory, of these `copied` from the part of a page, and `disk` from disk. `lost`
    tokens had to be computed that need not have been. `ours` and `theirs` are ids on both sides of the divergence.
    `idle_s` is how long an evicted page had not been used when it went, `age_s` how long ago that was. `elsewhere`
    tokens are cached in another namespace: for operators only.
    """

    matched: int = 0
    copied: int = 0
    disk: int = 0
    at: int = 0
    cause: MissCause = ""
    reason: str = ""
    age_s: float | None = None
    idle_s: float | None = None
    lost: int = 0
    ours: tuple[int, ...] = ()
    theirs: tuple[int, ...] = ()
    elsewhere: int = 0


class ChoiceTrace(Struct, kw_only=True, omit_defaults=True):
    """What became of one choice. Times are seconds after the request's arrival; None: it did not come to that.

    The prompt is `cached` plus computed tokens; of `generated` tokens, those accepted of `drafts` were drafted or
    forced, and the rest sampled. `computed` counts tokens that went through the model before there was a token to
    draw, those computed again after a preemption included; `prefills` are the first of their passes.
    """

    choice: int = 0
    admitted: float | None = None
    first_token: float | None = None
    ended: float = 0.0
    finish: FinishReason | None = None
    match_seconds: float = 0.0  # looking in the prefix cache
    cached: int = 0
    computed: int = 0
    generated: int = 0
    prefills: list[Prefill] = field(default_factory=list)
    prefill_seconds: float = 0.0  # of passes that computed some of its prompt
    prefill_cost: float = 0.0  # its own part of these, by tokens
    decodes: int = 0  # passes that drew a token after its first
    decode_seconds: float = 0.0
    mask_seconds: float = 0.0
    preemptions: int = 0
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)  # source → draft tokens reached, accepted
    miss: Miss | None = None


class Trace(Struct, kw_only=True, omit_defaults=True):
    """What the engine noted of one request, told once all its choices have ended. `pace` is how many seconds a token of
    a long prompt takes at that time: what one costs that is not cached."""

    request: str
    origin: Origin = Origin()
    arrival: float = 0.0  # Unix time
    prompt_tokens: int = 0
    grammar: GrammarKind | None = None
    priority: int = 0
    pace: float = 0.0
    choices: list[ChoiceTrace] = field(default_factory=list)
