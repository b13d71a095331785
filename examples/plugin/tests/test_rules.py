"""The rules of the ports, applied to the extensions of this package."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from example_plugin.check import Latency
from example_plugin.dialect import SupportChat
from example_plugin.metrics import AccessLog
from example_plugin.reward import MentionsTicket
from example_plugin.router import GatewayFile
from example_plugin.server import CannedServer
from example_plugin.source import ChatExports
from example_plugin.trainer import CannedSFT

from ratchet.extend import EvalReport, GateSettings, ModelVersion, SourceSettings, model_ref
from ratchet.extend.testkit import (
    CheckSuite,
    DialectSuite,
    FolderArtifacts,
    MetricsSuite,
    Restart,
    RewardSuite,
    RouterSuite,
    ServerSuite,
    SourceSuite,
    TrainerSuite,
    make_report,
)


class TestReward(RewardSuite):
    @pytest.fixture
    def reward(self) -> MentionsTicket:
        return MentionsTicket()


class TestSource(SourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> ChatExports:
        for day in (1, 2):
            (tmp_path / f"2026-11-0{day}.chat.jsonl").write_text(json.dumps({"tool": "support-chat", "id": day}) + "\n")
        return ChatExports(SourceSettings(name="chat", kind="chat-exports", path="."), tmp_path, tmp_path / "state")


class TestDialect(DialectSuite):
    @pytest.fixture
    def dialect(self) -> SupportChat:
        return SupportChat()

    @pytest.fixture
    def record(self) -> dict[str, Any]:
        at = datetime.fromisoformat("2026-01-01T11:00:00+00:00").isoformat()
        return {"tool": "support-chat", "id": "1", "at": at, "question": "Is it open?", "reply": "Yes.", "stars": 5, "customer": "c"}


class TestCheck(CheckSuite):
    @pytest.fixture
    def check(self) -> Latency:
        return Latency(GateSettings())

    @pytest.fixture
    def report(self) -> EvalReport:
        return make_report(latency_ms={"champion": 100.0, "candidate": 120.0})


class TestServer(ServerSuite):
    @pytest.fixture
    def artifacts(self, tmp_path: Path) -> FolderArtifacts:
        return FolderArtifacts(tmp_path / "artifacts")

    @pytest.fixture
    def restart(self, tmp_path: Path, artifacts: FolderArtifacts) -> Restart:
        return partial(CannedServer, tmp_path / "serving", artifacts, "canned")

    @pytest.fixture
    def version(self, tmp_path: Path, artifacts: FolderArtifacts) -> ModelVersion:
        model = tmp_path / "model"
        model.mkdir()
        header = json.dumps({"__metadata__": {"answer": "hello"}}).encode()
        (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        (model / "config.json").write_text("{}")
        return ModelVersion(line="l", number=0, tag="v-canned", model=model_ref(model, artifacts.put_folder(model)), cycle=None)


class TestRouter(RouterSuite):
    @pytest.fixture
    def router(self, tmp_path: Path) -> GatewayFile:
        return GatewayFile(tmp_path, tmp_path / "receiver.json", tmp_path / "token", 0, False, file="gateway.json", url="http://gateway")


class TestMetrics(MetricsSuite):
    @pytest.fixture
    def metrics(self, tmp_path: Path) -> AccessLog:
        seen = {"time": "2026-01-01T12:30:00+00:00", "version": "v-1", "status": 200, "ms": 80, "session": "s", "user": "u", "rating": None}
        (tmp_path / "access.log").write_text(json.dumps(seen) + "\n")
        return AccessLog(tmp_path, file=str(tmp_path / "access.log"))


class TestTrainer(TrainerSuite):
    @pytest.fixture
    def trainer(self) -> CannedSFT:
        return CannedSFT()
