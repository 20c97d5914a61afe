"""The engine process dies, and the server ends: nobody waits in vain, and /health tells the truth throughout."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from live_engine import serving

pytestmark = pytest.mark.alone
BODY = {"model": "SmolLM2-135M-Instruct", "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True}


def test_death_restart_and_drain() -> None:
    with serving("--cache-tokens", "8192") as served, concurrent.futures.ThreadPoolExecutor(4) as pool:
        url = f"{served.url}/v1/completions"
        waiting = [pool.submit(httpx.post, url, json=BODY, timeout=60) for _ in range(3)]
        while served.metric("bosquet_requests_running") < 3:
            time.sleep(0.05)
        engine = served.engine_pid()
        os.kill(engine, signal.SIGKILL)
        answers = [answer.result() for answer in waiting]
        assert [a.status_code for a in answers] == [503] * 3
        assert all(a.json()["error"]["code"] == "engine_died" for a in answers)
        assert all("retry-after" in a.headers for a in answers)
        status, body = served.health()
        assert (status, body["status"]) == (503, "restarting")
        assert httpx.post(url, json=BODY, timeout=60).status_code == 503

        served.until_ready(incarnation=2)
        assert served.engine_pid() != engine
        short = {**BODY, "max_tokens": 4}
        assert httpx.post(url, json=short, timeout=60).status_code == 200

        before = served.metric("bosquet_generation_tokens_total")
        slow = pool.submit(httpx.post, url, json={**BODY, "max_tokens": 100}, timeout=60)
        while served.metric("bosquet_generation_tokens_total") == before:
            time.sleep(0.02)
        engine = served.engine_pid()
        served.process.send_signal(signal.SIGTERM)
        assert slow.result().status_code == 200  # what was in flight is finished
        assert served.process.wait(60) == 0
        assert not psutil.pid_exists(engine)


def test_an_engine_ends_with_its_parent() -> None:
    with serving("--cache-tokens", "8192") as served:
        engine = psutil.Process(served.engine_pid())
        served.process.kill()
        engine.wait(60)


@pytest.mark.parametrize(
    ("model", "says"),
    [("/no/such/model.gguf", "no such file"), ("not a model", "no such file")],
)
def test_a_model_that_cannot_be_loaded(model: str, says: str) -> None:
    command = [str(Path(sys.executable).parent / "bosquet"), "serve", model, "--port", "0"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert says in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if says in line]) == 1
