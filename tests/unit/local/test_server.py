"""Tests of the embedded model server's checks before its process starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.fakes import fake_model
from ratchet.local.server import EmbeddedServer
from ratchet.runtime.artifacts import FolderArtifacts


def test_a_missing_library_is_named_with_the_extra_that_contains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Permanent, match=r"needs torch; install ratchet\[train\]"):
        EmbeddedServer(tmp_path, FolderArtifacts(tmp_path), "assistant").ensure(fake_model("v-1"))
