"""The engine's settings: what "auto" becomes, and what is refused with one line."""

from __future__ import annotations

import pytest

from bosquet.errors import ConfigError
from bosquet.runtime.settings import EngineConfig, resolve


def resolved(**given: object) -> EngineConfig:
    return resolve(EngineConfig(**given), model_context=8192, kv_bytes_per_token=46_080)  # type: ignore[arg-type]


def test_auto_becomes_values() -> None:
    config = resolved()
    assert config.threads >= 1
    assert 0 < config.cache_tokens <= 65_536
    assert config.cache_tokens % 16 == 0
    assert config.context_length == min(8192, config.cache_tokens)


def test_a_step_holds_at_least_a_token_of_each_running_sequence() -> None:
    assert resolved(step_tokens=8, max_running=32).step_tokens == 32


def test_the_context_is_no_longer_than_the_cache() -> None:
    assert resolved(cache_tokens=1000).context_length == 992


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"threads": -1}, "threads is -1"),
        ({"context_length": -5}, "context_length is -5"),
        ({"context_length": 9000}, "more than the model's 8192"),
        ({"cache_tokens": -16}, "cache_tokens is -16"),
        ({"cache_tokens": 5}, "cache_tokens 5 is less than two pages"),
        ({"max_running": 0}, "max_running is 0"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"step_tokens": 0}, "step_tokens is 0"),
        ({"ageing_s": 0.0}, "ageing_s is 0.0"),
        ({"grammar_timeout_s": float("nan")}, "grammar_timeout_s is nan"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolved(**given)
