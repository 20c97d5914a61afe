"""Models by their id, from a stand-in for the hub on this machine: what is fetched, and what is said when it fails.

The hub's client reads its settings when it is imported, so it runs in processes of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": json.dumps({"model_type": "llama", "eos_token_id": 2}).encode(),
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer.model": b"pieces",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": save({"x": np.arange(6, dtype=np.float32)}),
    "consolidated.safetensors": b"a second copy",
    "pytorch_model.bin": b"a pickle",
    "training_args.pt": b"a pickle",
    "README.md": b"words",
    "onnx/config.json": b"{}",
    "onnx/model.safetensors": b"another format",
}
REPOSITORY = "grove/tiny"
GATED = "grove/gated"


class Hub(BaseHTTPRequestHandler):
    """The few routes that the client uses."""

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(path)  # type: ignore[attr-defined]
        if path.startswith(f"/api/models/{GATED}"):
            self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"}, body)
        elif path.startswith(f"/api/models/{REPOSITORY}/tree/"):
            files = [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in FILES.items()]
            self.reply(200, json.dumps(files).encode(), {}, body)
        elif path in (
            f"/api/models/{REPOSITORY}",
            *(f"/api/models/{REPOSITORY}/revision/{r}" for r in ("main", COMMIT)),
        ):
            siblings = [{"rfilename": name} for name in FILES]
            info = {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            self.reply(200, json.dumps(info).encode(), {}, body)
        elif path.startswith(f"/api/models/{REPOSITORY}/revision/"):
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
            data = FILES[path.split(f"{COMMIT}/")[1]]
            tag = '"' + hashlib.sha256(data).hexdigest() + '"'
            self.reply(200, data, {"ETag": tag, "X-Repo-Commit": COMMIT}, body)
        else:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

    def reply(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


RESOLVE = """
import json, sys
from bosquet.errors import ModelLoadError
from bosquet.runtime.models.source import resolve
said = []
for model, revision in json.load(sys.stdin):
    try:
        folder = resolve(model, revision=revision)
    except ModelLoadError as error:
        said.append({"error": str(error)})
    else:
        files = sorted(str(p.relative_to(folder.path)) for p in folder.path.rglob("*") if not p.is_dir())
        said.append({"name": folder.name, "files": files, "config": folder.config, "path": str(folder.path)})
print(json.dumps(said))
"""

REFUSED = {
    "grove/nothing": (None, "grove/nothing: no such file or folder, and the hub has no such model"),
    REPOSITORY: ("v9", "grove/tiny at revision v9: the hub has no such revision"),
    GATED: (None, "grove/gated: the hub wants an accepted licence and a token"),
    "grove/..odd": (None, "grove/..odd: no such file or folder, and not a Hugging Face id"),
}
NOBODY = "http://127.0.0.1:9"


def resolve_all(models: list[tuple[str, str | None]], home: Path, endpoint: str) -> list[dict[str, Any]]:
    keep = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    environment = {**keep, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", RESOLVE],
        env=environment, input=json.dumps(models), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return said


class Answers(NamedTuple):
    """What was said with the hub there and then without it, and the paths that it was asked for."""

    online: list[dict[str, Any]]
    offline: list[dict[str, Any]]
    asked: list[str]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    home = tmp_path_factory.mktemp("home")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        refused = [(model, revision) for model, (revision, _) in REFUSED.items()]
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        online = resolve_all([(REPOSITORY, None), *refused], home, endpoint)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    offline = resolve_all([(REPOSITORY, None), ("grove/other", None)], home, NOBODY)
    return Answers(online, offline, server.asked)  # type: ignore[attr-defined]


def test_an_id_is_fetched_without_pickles(answers: Answers) -> None:
    said = answers.online[0]
    assert said["name"] == REPOSITORY
    assert said["config"]["model_type"] == "llama"
    assert said["files"] == sorted(
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja",
         "model.safetensors"]
    )  # fmt: skip
    asked = {path.rsplit("/", 1)[1] for path in answers.asked if "/resolve/" in path}
    assert asked == set(said["files"])
    assert (Path(said["path"]) / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_what_the_hub_refuses_is_one_line(answers: Answers) -> None:
    for said, (_, expected) in zip(answers.online[1:], REFUSED.values(), strict=True):
        assert expected in said["error"]
        assert "\n" not in said["error"]


def test_without_a_network_what_was_fetched_is_still_there(answers: Answers) -> None:
    assert answers.offline[0] == answers.online[0]


def test_no_network_is_one_line(answers: Answers) -> None:
    expected = (
        "grove/other: there is no such folder, the hub cannot be reached, and the model is not in the local cache"
    )
    assert answers.offline[1] == {"error": expected}
