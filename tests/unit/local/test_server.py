"""Tests of the embedded model server's checks before its process starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.model import ModelRef
from ratchet.contracts.serving import ModelVersion
from ratchet.local.server import EmbeddedServer, VllmServer
from ratchet.runtime.artifacts import FolderArtifacts


def version(model: ModelRef) -> ModelVersion:
    """Return a version with this model."""
    return ModelVersion(line="l", number=1, tag="v-1", model=model, cycle=None)


def test_a_missing_library_is_named_with_the_extra_that_contains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Permanent, match=r"needs torch; install ratchet\[train\]"):
        EmbeddedServer(tmp_path, FolderArtifacts(tmp_path), "assistant").ensure(version(fake_model("v-1")))


def test_an_adapter_needs_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    model = fake_model("v-1").model_copy(update={"parent": "0" * 64})
    with pytest.raises(Permanent, match=r"needs peft; install ratchet\[train\]"):
        EmbeddedServer(tmp_path, FolderArtifacts(tmp_path), "assistant").ensure(version(model))


@pytest.mark.parametrize(("kind", "first"), [(EmbeddedServer, "--name"), (VllmServer, "v-1")])
def test_process_answers_to_all_names_that_the_line_has_when_it_is_started(kind: Any, first: str, tmp_path: Path) -> None:
    server = kind(tmp_path, FolderArtifacts(tmp_path), "assistant")
    assert "assistant" in server._service("v-1", tmp_path)._command
    server.names = lambda: ("new", "former")
    command = server._service("v-1", tmp_path)._command
    given = [part for part in command[command.index(first) :] if part in ("v-1", "new", "former", "assistant")]
    assert given == ["v-1", "new", "former"]
