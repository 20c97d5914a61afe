"""What the server process weighs after large bodies, with the real tokenizer: measured from outside."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
import tokenizers
from live_server import wait_for
from tokenizers import decoders, models, pre_tokenizers

TESTS = Path(__file__).parents[1]
LIMIT = 250e6
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

PROGRAM = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from fakes_engine import FakeEngine, info
from bosquet.runtime.server.app import create_app
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.serve import run_server
from bosquet.runtime.server.services import Text, TextServices
from bosquet.runtime.templates import ChatTemplate
from bosquet.runtime.text_stream import TextStream
from bosquet.runtime.tokenizer import Tokenizer
folder = Path(sys.argv[2])
tokenizer = Tokenizer.from_folder(folder)
facts = info(vocab_size=tokenizer.size, context_length=8192, end_ids=())
stream = lambda stop, shown: TextStream(tokenizer, stop, shown=shown)
text = Text(tokenizer, ChatTemplate.from_folder(folder), facts, stream)
config = ServerConfig(port=0)
run_server(create_app(FakeEngine(), TextServices(text), config), config, lambda url: print(url, flush=True))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level vocabulary that cuts at words, as most do; a text without blanks is one word, the worst case."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "aa", "aaaa", "Ã©", "a" * 8])}
    merges = [("a", "a"), ("aa", "aa"), ("Ã", "©"), ("aaaa", "aaaa")]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    path = tmp_path_factory.mktemp("model")
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    command = [sys.executable, "-c", PROGRAM, str(TESTS), str(folder)]
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.Client(base_url=url, timeout=60) as client:
                assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
                yield client, psutil.Process(process.pid)
        finally:
            process.kill()


def highest(process: psutil.Process) -> int:
    """The most that the process ever weighed, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_prompts_that_cannot_fit_are_refused_before_they_cost_anything(server):
    client, process = server
    bodies = [
        ("/v1/completions", {"prompt": "a" * 3_800_000}),
        ("/v1/completions", {"prompt": ["a", "é中" * 350_000]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 3_800_000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x é中" * 350_000}]}),
    ]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: client.post(body[0], json=body[1]), bodies))
    errors = [answer.json()["error"] for answer in answers]
    assert [error["code"] for error in errors] == ["context_length_exceeded"] * 4
    assert [error["param"] for error in errors] == ["prompt", "prompt[1]", "messages", "messages"]
    for error in errors:
        assert error["message"].startswith(f"{error['param']}: ")
    assert highest(process) < LIMIT
    wait_for(lambda: process.memory_info().rss < 160e6)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to give memory back")
def test_memory_is_given_back_after_long_texts(server):
    client, process = server
    texts = ["a" * 3_900_000, "é中" * 700_000, "a bc é " * 400_000]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda text: client.post("/tokenize", json={"prompt": text}), texts))
    counts = [answer.json()["count"] for answer in answers]
    assert counts[0] == 3_900_000 // 8
    assert counts[1] == 700_000 * 4  # é is one token, 中 its three bytes
    wait_for(lambda: process.memory_info().rss < LIMIT)


def test_a_prompt_of_the_longest_tokens_is_not_refused_for_its_bytes(server):
    client, _ = server
    whole = "<|im_start|>" * 8191  # the longest token there is, as often as the context holds it beside one more
    answer = client.post("/v1/completions", json={"prompt": whole, "max_tokens": 1})
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] == 8191
