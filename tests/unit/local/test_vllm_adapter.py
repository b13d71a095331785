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


@pytest.mark.parametrize(("limit", "allowed"), [(64, "64"), (20, "32")])
def test_a_process_that_is_shared_can_load_adapters_while_it_runs(tmp_path: Path, limit: int, allowed: str) -> None:
    server = VllmServer(tmp_path, FolderArtifacts(tmp_path), "shop", max_lora_rank=limit)
    process = server._service("v-1", tmp_path / "base", sharing=True)
    assert process._command[-5:] == ["--enable-lora", "--max-lora-rank", allowed, "--max-loras", "2"]
    assert process._environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


def test_the_endpoints_that_load_adapters_are_closed_in_every_other_process(tmp_path: Path) -> None:
    server = VllmServer(tmp_path, FolderArtifacts(tmp_path), "shop")
    folder = adapter(tmp_path, r=4)
    for process in (server._service("v-1", tmp_path / "base"), server._service("v-1", tmp_path / "base", folder)):
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in process._environment
    embedded = EmbeddedServer(tmp_path, FolderArtifacts(tmp_path), "shop")
    assert "--share" not in embedded._service("v-1", tmp_path / "base")._command
    assert "--share" in embedded._service("v-1", tmp_path / "base", sharing=True)._command
