"""The server as a process: what it imports, what it weighs, how it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from live_server import wait_for

from bosquet.errors import ConfigError
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.serve import listen

TESTS = Path(__file__).parents[1]

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from fakes_engine import FakeEngine, text_services
from bosquet.runtime.server.app import create_app
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.serve import run_server

class Held(FakeEngine):
    # After three tokens it waits until it may go on.

    async def pause(self):
        while self.numbers.generated_tokens >= 3 and not Path(sys.argv[3]).exists():
            await asyncio.sleep(0.005)
        await super().pause()

config = ServerConfig(port=0, json_logs=True, **json.loads(sys.argv[2]))
app = create_app(Held(), text_services(), config)
run_server(app, config, lambda url: print(url, flush=True))
print("returned", flush=True)
"""


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    """The engine goes on once this file is there."""
    return tmp_path / "go on"


@pytest.fixture
def start(go_on: Path) -> Iterator[object]:
    running: list[subprocess.Popen[str]] = []

    def begin(**config: object) -> tuple[subprocess.Popen[str], str]:
        arguments = [sys.executable, "-c", PROGRAM, str(TESTS), json.dumps(config), str(go_on)]
        environment = os.environ | {"PYTHONSAFEPATH": "1"}
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        running.append(process)
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), process.stderr and process.stderr.read()
        wait_for(lambda: _answers(url))
        return process, url

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url + "/health").status_code == 200
    except httpx.TransportError:
        return False


def test_sigterm_drains(start, go_on: Path):
    process, url = start(drain_timeout_s=600.0)
    body = {"prompt": "a", "max_tokens": 40, "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body) as flow:
        lines = flow.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(url + "/health").status_code == 503)
        refused = httpx.post(url + "/v1/completions", json={"prompt": "a"})
        assert httpx.delete(url + "/v1/runs/some").status_code == 204  # which frees, and asks for nothing
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "unavailable"
        assert int(refused.headers["retry-after"]) >= 1
        go_on.touch()
        rest = list(lines)
    assert rest[-2:] == ["data: [DONE]", ""]
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "returned\n")
    entries = [json.loads(line) for line in err.splitlines()]
    statuses = [(entry["route"], entry["status"], entry["completion_tokens"]) for entry in entries if "route" in entry]
    assert ("/v1/completions", 200, 40) in statuses
    assert ("/v1/runs/{run:path}", 204, 0) in statuses
    assert ("draining", 503, 0) in statuses
    assert not [status for status in statuses if status[0] == "unmatched"]


def test_draining_ends_at_its_limit(start):
    process, url = start(drain_timeout_s=0.3)
    body = {"prompt": "a", "max_tokens": 500, "stream": True}  # which is never answered to the end
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as flow:
        lines = flow.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_sigterm_when_idle_ends_at_once_and_a_server_open_to_others_without_keys_has_warned(
    start, host: str, warned: bool
):
    process, url = start(host=host, drain_timeout_s=600.0)
    assert url.startswith(f"http://{host}:")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert ("without API keys" in err) is warned


def test_a_taken_port_is_one_clear_error():
    with listen(ServerConfig(port=0)) as sock, pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:"):
        listen(ServerConfig(port=sock.getsockname()[1]))


def test_memory_stays_below_250_megabytes(start, go_on):
    go_on.touch()
    process, url = start()
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(50):
            assert client.post("/v1/completions", json={"prompt": "a" * 400, "max_tokens": 1}).status_code == 200
        assert client.post("/v1/completions", json={"prompt": "a" * 3_900_000}).status_code == 400
    assert psutil.Process(process.pid).memory_info().rss < 250e6


def test_the_api_process_imports_neither_torch_nor_transformers():
    code = (
        "import sys\n"
        "import bosquet.runtime.server.app, bosquet.runtime.server.serve\n"
        "heavy = {'torch', 'transformers', 'xgrammar', 'triton', 'scipy', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
