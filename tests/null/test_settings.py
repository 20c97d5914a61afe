"""The settings: what "auto" becomes, and what is refused with one line that names the option and what it may be."""

from __future__ import annotations

import dataclasses
import os
import sys

import pytest

import bosquet.cli
import bosquet.runtime.launch
from bosquet.errors import ConfigError
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.settings import EngineConfig, resolve

HERE = str(min(os.sched_getaffinity(0)))


def resolved(**given: object) -> EngineConfig:
    return resolve(EngineConfig(**given), model_context=8192, kv_bytes_per_token=46_080)  # type: ignore[arg-type]


def test_auto_becomes_values() -> None:
    config = resolved()
    assert config.threads >= 1
    assert 0 < config.cache_tokens <= 65_536
    assert config.cache_tokens % 16 == 0
    assert config.context_length == min(8192, config.cache_tokens)


def test_there_is_a_thread_for_each_processor_that_is_named() -> None:
    assert resolved(cpus=HERE).threads == 1
    with pytest.raises(ConfigError, match="threads is 2; it must be at most 1"):
        resolved(cpus=HERE, threads=2)


def test_a_step_holds_at_least_a_token_of_each_running_sequence() -> None:
    assert resolved(step_tokens=8, max_running=32).step_tokens == 32


def test_the_context_is_no_longer_than_the_cache() -> None:
    assert resolved(cache_tokens=1000).context_length == 992


def test_what_does_not_go_with_the_model_or_the_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="context_length is 9000; this model's is 8192"):
        resolved(context_length=9000)
    with pytest.raises(ConfigError, match=r"cache_tokens is 1000000000; it must be from 32 to [0-9]+,"):
        resolved(cache_tokens=10**9)


NUMBERS = ["-1", "nan", "inf", "-inf", "1e999", "9" * 30, "many", "", "0x10"]
WORDS = ["", "nope", "AUTO", "auto,auto"]
BAD: dict[str, list[str]] = {
    "model": ["", " ", "a\nb", "\udcff"],
    "dtype": WORDS,
    "kv_dtype": [*WORDS, "int4"],
    "kernels": WORDS,
    "device": [*WORDS, "cuda:0", "gpu"],
    "graph_mb": [*NUMBERS, str(2**20 + 1), "0.5"],
    "threads": [*NUMBERS, "257", "1.5"],
    "cpus": ["all", "0-", "1-0", "0,0", "-1", " ", "999999", "0-999999"],
    "context_length": [*NUMBERS, "1", "31", "2.5"],
    "cache_tokens": [*NUMBERS, "1", "31"],
    "max_running": [*NUMBERS, "0", "4097"],
    "max_waiting": [*NUMBERS, "0", "1e3"],
    "step_tokens": [*NUMBERS, "0", "65537"],
    "draft_model": ["a\nb", "\udcff"],
    "eviction": [*WORDS, "mru"],
    "disk_mb": [*NUMBERS, "16777217", "0.5"],
    "ageing_s": [*NUMBERS, "0", "86401"],
    "grammar_timeout_s": [*NUMBERS, "0", "-0.0", "86401"],
    "host": ["", " ", "a b", "http://a"],
    "port": [*NUMBERS, "65536", "80.5"],
    "served_model_name": ["a\nb", "\x00", "\udcff"],
    "keys_file": ["a\nb", "\udcff"],
    "cors_origins": ["", "a", "https://a.test/path", "https://", "null"],
    "request_timeout_s": [*NUMBERS, "0", "86401"],
    "arrival_timeout_s": [*NUMBERS, "0", "86401"],
    "drain_timeout_s": [*NUMBERS, "-0.1", "86401"],
    "max_body_bytes": [*NUMBERS, "0", "999", str(2**30 + 1)],
    "chat_template": ["a\nb", "\udcff"],
    "tool_format": [*WORDS, "Hermes"],
    "transcripts_mb": [*NUMBERS, str(2**20 + 1), "1.5"],
    "check_share": [*NUMBERS, "1.01", "2"],
    "trace_mb": [*NUMBERS, str(2**20 + 1), "0.5"],
    "trace_file": ["a\nb", "\udcff"],
    "otlp": ["localhost:4318", "ftp://a", "http://", "http://a b", "http://a?b=c"],
    "kv_events": ["5557", "http://a:1", "tcp://a:1,tcp://a:2,tcp://a:3", "tcp:// a"],
}
"""Setting → what nobody can mean by it."""
SWITCHES = {"prefix_cache", "speculation", "batch_invariant", "json_logs", "capture_text"}
GOOD = {
    "threads": [0, 1, 256],
    "cpus": ["", HERE],
    "context_length": [0, 32],
    "cache_tokens": [0, 32],
    "port": [0, 65535],
    "drain_timeout_s": [0, 0.0, 86400],
    "transcripts_mb": [0, 2**20],
    "check_share": [0, 0.0, 1, 1.0],
    "served_model_name": ["", "org/mine é"],
    "cors_origins": [(), ("*",), ("http://a.test:8080", "tauri://localhost")],
    "host": ["::1", "0.0.0.0", "localhost"],
    "ageing_s": [0.001, 1],
    "trace_mb": [0, 2**20],
    "otlp": ["", "http://localhost:4318", "https://collector.test/base/"],
    "kv_events": ["", "tcp://127.0.0.1:5557", "ipc:///tmp/a,tcp://127.0.0.1:5558"],
}
KNOBS = {field.name: config for config in (EngineConfig, ServerConfig) for field in dataclasses.fields(config)}


def test_every_setting_has_absurd_values_here() -> None:
    assert set(BAD) | SWITCHES == set(KNOBS)
    assert len(KNOBS) <= 40


@pytest.mark.parametrize("name", BAD)
def test_an_absurd_value_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(*given: object) -> None:
        pytest.fail(f"served with {given}")

    monkeypatch.setattr(bosquet.runtime.launch, "serve", serve)
    option = f"--{name.replace('_', '-')}"
    for value in BAD[name]:
        monkeypatch.setattr(sys, "argv", ["bosquet", "serve", value if name == "model" else f"{option}={value}"])
        with pytest.raises(SystemExit) as ended:
            bosquet.cli.main()
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, ""), value
        (line,) = err.splitlines()
        assert line.startswith("bosquet: ")
        assert (name if name == "model" else option) in line
        assert "must be" in line or "is not one of" in line, line


@pytest.mark.parametrize("name", KNOBS)
def test_an_absurd_value_is_refused_in_python_too(name: str) -> None:
    for value in (None, [], "\udcff", float("nan"), -1, object()):
        with pytest.raises(ConfigError, match=f"^{name} is .*; it must be .+"):
            KNOBS[name](**{name: value})


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_is_taken(name: str) -> None:
    for value in GOOD[name]:  # type: ignore[attr-defined]
        assert getattr(KNOBS[name](**{name: value}), name) == value
