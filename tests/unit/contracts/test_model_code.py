"""Tests of model folders that contain code: custom classes named by `auto_map`, Python files and pickles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.model import model_ref, other_files, refuse_code, refuse_custom_code, strange_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model folder without code."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 8, "note": "no auto_map here"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def test_a_folder_without_code_is_accepted(folder: Path) -> None:
    refuse_code(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "processor_config.json"])
@pytest.mark.parametrize("text", ['{"auto_map": {}}', '{"text_config": [{"auto_map": {"AutoModel": "m.M"}}]}', '{"auto_map": broken'])
def test_custom_classes_are_refused(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    for refuse in (refuse_code, refuse_custom_code):
        with pytest.raises(Permanent, match=rf"{name} contains auto_map"):
            refuse(folder)


@pytest.mark.parametrize("name", ["modeling_mine.py", "pytorch_model.bin", "code/model.py", "optimizer.pt", "setup.PY", "a.Bin"])
def test_python_files_and_pickles_are_not_adopted(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"")
    with pytest.raises(Permanent, match="adopt a folder with only safetensors"):
        refuse_code(folder)


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja", "additional_chat_templates/tools.jinja", "vocab.txt"])
@pytest.mark.parametrize("change", ["added", "changed"])
def test_every_file_that_holds_no_weights_counts(folder: Path, name: str, change: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if change == "changed" and not path.exists():
        path.write_text("{}")
    before = model_ref(folder, "f" * 64).others
    path.write_text('{"other": 1}')
    assert model_ref(folder, "f" * 64).others != before


def test_weights_and_notes_do_not_count(folder: Path) -> None:
    before = model_ref(folder, "f" * 64)
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "README.md").write_text("text")
    after = model_ref(folder, "f" * 64)
    assert after.weights != before.weights
    assert after.others == before.others
    assert list(other_files(folder)) == ["config.json", "tokenizer_config.json"]
    assert strange_files(folder) == ["README.md"]
