"""Export never overwrites, and appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_gguf import write_plain_llama

from bosquet.errors import ConfigError, ModelLoadError
from bosquet.runtime.models import export as module
from bosquet.runtime.models.export import export


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOSQUET_CACHE", str(tmp_path / "cache"))


def test_a_folder_with_content_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="out: exists and is not an empty folder; nothing was written"):
        export(str(write_plain_llama(tmp_path / "t.gguf")), out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match="not an empty folder"):
        export(str(tmp_path / "t.gguf"), out / "mine.txt")


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    out.mkdir(parents=True)
    export(str(write_plain_llama(tmp_path / "t.gguf")), out)
    names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert {path.name for path in out.iterdir()} == names


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_safetensors", fail)
    with pytest.raises(ModelLoadError, match="No space left on device"):
        export(str(write_plain_llama(tmp_path / "t.gguf")), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "t.gguf"]


def test_a_quantised_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="'quantization_config' is set"):
        export(str(folder), tmp_path / "out")
