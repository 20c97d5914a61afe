"""From a request body to SamplingParams: defaults, and the checks that need the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ...errors import InvalidParameter, NotPermitted
from ...types import DRAFT_SOURCES, ModelInfo, SamplingParams
from .keys import Caller
from .schemas import GenerationBody


class Wanted(NamedTuple):
    """What differs between the protocols: token limit, and log-probabilities."""

    max_tokens: int | None
    logprobs: int | None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 1


def sampling_params(body: GenerationBody, wanted: Wanted, room: int, info: ModelInfo) -> SamplingParams:
    """`room`: tokens that still fit the context; a larger max_tokens is clamped to it, unless no prompt at all could
    leave so much room. Raises InvalidParameter."""
    for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
        value = getattr(body, name, None)
        if value is not None and value > info.context_length:
            raise InvalidParameter(f"{name}: {value} is more than the model's context of {info.context_length}", name)
    min_tokens = body.min_tokens or 0
    if wanted.max_tokens is not None and min_tokens > wanted.max_tokens:
        raise InvalidParameter("min_tokens: must not be larger than max_tokens", "min_tokens")
    max_tokens = room if wanted.max_tokens is None else min(wanted.max_tokens, room)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    for index, token in enumerate(body.stop_token_ids or ()):
        if token >= info.vocab_size:
            raise InvalidParameter(
                f"stop_token_ids[{index}]: the vocabulary has {info.vocab_size} tokens", f"stop_token_ids[{index}]"
            )
    return SamplingParams(
        temperature=_or(body.temperature, 1.0),
        top_k=max(0, body.top_k or 0),
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logit_bias=_logit_bias(body.logit_bias, info.vocab_size),
        seed=None if body.seed is None else body.seed % 2**63,
        stop=tuple(dict.fromkeys(text.encode() for text in stop)),
        stop_token_ids=tuple(dict.fromkeys(body.stop_token_ids or ())),
        min_tokens=min(min_tokens, max_tokens),
        max_tokens=max_tokens,
        ignore_eos=bool(body.ignore_eos),
        n=body.n or 1,
        logprobs=wanted.logprobs,
        prompt_logprobs=wanted.prompt_logprobs,
        prompt_logprobs_from=wanted.prompt_logprobs_from,
    )


def with_stops(sampling: SamplingParams, tokens: Sequence[int]) -> SamplingParams:
    """The same with more tokens that end the output."""
    return replace(sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *tokens))))


def check_queue(prompts: int, n: int, info: ModelInfo) -> None:
    """Refuse what the queue could not hold even if it were empty; it would be told to try again for ever."""
    if prompts * n > info.max_waiting:
        field = "prompt" if n == 1 else "n"
        asked = f"{prompts} prompts" if n == 1 else f"{n} choices for each of {prompts} prompts"
        raise InvalidParameter(f"{field}: {asked} are more than the {info.max_waiting} that the queue holds", field)


def check_stream_options(body: GenerationBody) -> None:
    """Options of a stream make no sense without one."""
    if body.stream_options is not None and not body.stream:
        raise InvalidParameter("stream_options: only with stream", "stream_options")


def check_priority(body: GenerationBody, caller: Caller) -> int:
    """Only an operator may put a request before those of others; anybody may put it behind."""
    priority = body.priority or 0
    if priority > 0 and caller.role != "operator":
        raise NotPermitted("priority: above 0 needs a key with the role 'operator'", "priority")
    return priority


def draft_sources(body: GenerationBody) -> tuple[str, ...]:
    """Where drafts for this request may come from."""
    if body.speculation is None:
        return DRAFT_SOURCES
    return () if body.speculation == "off" else tuple(dict.fromkeys(body.speculation))


def _logit_bias(given: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (given or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
            raise InvalidParameter(f"logit_bias: {key[:32]!r} is no token id below {vocab_size}", "logit_bias")
        bias[int(key)] = value
    return bias


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
