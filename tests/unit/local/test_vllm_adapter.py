"""Tests of the command line with which vLLM serves an adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.local.server import EmbeddedServer, VllmServer
from ratchet.local.vllm_adapter import adapter_arguments, max_rank
from ratchet.runtime.artifacts import FolderArtifacts


def adapter(folder: Path, **config: object) -> Path:
    """Write the configuration of an adapter."""
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 8), (8, 8), (9, 16), (100, 128), (257, 320), (512, 512)])
def test_the_rank_is_rounded_up_to_one_that_vllm_allows(tmp_path: Path, rank: int, allowed: int) -> None:
    assert max_rank(adapter(tmp_path, r=rank)) == allowed
    assert max_rank(adapter(tmp_path, r=1, rank_pattern={"q_proj": rank})) == allowed


@pytest.mark.parametrize(
    ("config", "problem"), [({"r": 513}, "up to rank 512"), ({}, "KeyError"), ({"r": None}, "TypeError"), ({"r": "x"}, "ValueError")]
)
def test_an_adapter_that_vllm_cannot_serve_is_refused(tmp_path: Path, config: dict[str, object], problem: str) -> None:
    with pytest.raises(Permanent, match=problem):
        max_rank(adapter(tmp_path, **config))


def test_the_adapter_answers_to_all_names_and_the_base_to_none_of_them(tmp_path: Path) -> None:
    folder = adapter(tmp_path, r=4)
    assert adapter_arguments(("v-1", "shop"), folder)[-3:] == ["--lora-modules", f"v-1={folder}", f"shop={folder}"]
    server = VllmServer(tmp_path, FolderArtifacts(tmp_path), "shop", arguments=["--max-loras", "2"])
    command = server._service("v-1", tmp_path / "base", folder)._command
    before, after = command[: command.index("--")], command[command.index("--") + 1 :]
    assert before[-2:] == [str(tmp_path / "base"), "ratchet-base"]
    assert after[:4] == ["vllm", "--enable-lora", "--max-lora-rank", "8"]
    assert after[-2:] == ["--max-loras", "2"], "what the operator sets comes last"


def test_the_embedded_server_gets_the_folder_of_the_adapter(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, FolderArtifacts(tmp_path), "shop")
    command = server._service("v-1", tmp_path / "base", tmp_path / "adapter")._command
    assert command[command.index("--adapter") + 1] == str(tmp_path / "adapter")
    assert "--adapter" not in server._service("v-1", tmp_path / "base")._command
