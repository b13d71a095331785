"""Rules of a server that loads adapters into the running process of their base model, with real processes."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil
import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.serving import Endpoint, ModelVersion
from ratchet.local.guests import GUEST
from ratchet.local.server import EmbeddedServer, VllmServer
from ratchet.runtime.artifacts import FolderArtifacts
from tests.waiting import until


class Shared(Protocol):
    """Parts that the rules need: a server with `shared` set, on the same files at each call, a version, and an adapter over it."""

    version: ModelVersion
    adapter: ModelVersion
    question: str
    before: str
    """Answer of the version."""
    after: str
    """Answer of the adapter."""
    folder: Path

    def __call__(self) -> EmbeddedServer | VllmServer:
        """Open the server again, as the service does after a restart."""
        ...


def say(endpoint: Endpoint, question: str) -> str:
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": question}], "max_tokens": 8, "temperature": 0}
    reply = httpx.post(f"{endpoint.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def listed(endpoint: Endpoint) -> set[str]:
    return {one["id"] for one in httpx.get(f"{endpoint.url}/v1/models", trust_env=False).json()["data"]}


def kill(shared: Shared) -> None:
    """Kill the process of the base, with all its descendants, and wait until it is gone."""
    record = json.loads((shared.folder / "serving" / "servers" / shared.version.tag / "ready.json").read_bytes())
    process = psutil.Process(record["pid"])
    family = [*process.children(recursive=True), process]
    for one in family:
        one.kill()
    psutil.wait_procs(family, 20)
    until(lambda: shared().running() == [])


class SharingSuite:
    """Fixture `shared`, for the whole class. Between two tests, only the process of the base may run, because starts take long."""

    @pytest.fixture(autouse=True)
    def _unloaded(self, shared: Shared) -> Any:
        yield
        for endpoint in shared().running():
            if endpoint.tag != shared.version.tag:
                shared().stop(endpoint.tag)
        assert {endpoint.tag for endpoint in shared().running()} <= {shared.version.tag}

    def test_an_adapter_is_loaded_into_the_process_of_its_base_and_unloaded_alone(self, shared: Shared) -> None:
        base = shared().ensure(shared.version)
        guest = shared().ensure(shared.adapter)
        assert (guest.tag, guest.url, guest.model, guest.host) == (shared.adapter.tag, base.url, shared.adapter.tag, base.tag)
        assert shared().ensure(shared.adapter) == guest
        assert shared().running() == [base, guest]
        assert (say(base, shared.question), say(guest, shared.question)) == (shared.before, shared.after)
        assert shared().outages(guest.tag) == ()
        shared().stop(guest.tag)
        assert shared().running() == [base]
        assert guest.tag not in listed(base)
        assert say(base, shared.question) == shared.before

    def test_a_process_goes_on_for_its_adapters_when_its_own_version_is_stopped(self, shared: Shared) -> None:
        base, guest = shared().ensure(shared.version), shared().ensure(shared.adapter)
        shared().stop(base.tag)
        assert shared().running() == [guest]
        assert say(guest, shared.question) == shared.after
        assert shared().ensure(shared.version) == base, "a rollback takes the process again"
        shared().stop(base.tag)
        shared().stop(guest.tag)
        assert shared().running() == []

    def test_a_killed_process_is_started_with_its_adapters_and_its_death_is_known(self, shared: Shared) -> None:
        first, _ = shared().ensure(shared.version), shared().ensure(shared.adapter)
        time.sleep(2.5)  # the process notes every second that it runs
        killed = datetime.now(UTC)
        kill(shared)
        (death,) = shared().outages(shared.adapter.tag)
        assert death.until is None
        assert -5 < (death.since - killed).total_seconds() < 1
        guest = shared().ensure(shared.adapter)
        base = shared().ensure(shared.version)
        assert (guest.url, guest.host) == (base.url, base.tag)
        assert base.url != first.url or listed(base) >= {base.tag, guest.tag}
        assert say(guest, shared.question) == shared.after
        (death,) = shared().outages(shared.adapter.tag)
        assert death.until is not None
        assert death.since < killed < death.until

    def test_what_the_process_lists_decides(self, shared: Shared, tmp_path: Path) -> None:
        base, guest = shared().ensure(shared.version), shared().ensure(shared.adapter)
        other = tmp_path / "other"
        FolderArtifacts(shared.folder / "artifacts").fetch(shared.adapter.model.files, other)
        for path, body in (("unload", {}), ("load", {"lora_path": str(other)})):
            httpx.post(
                f"{base.url}/v1/{path}_lora_adapter", json={"lora_name": guest.tag, **body}, timeout=60, trust_env=False
            ).raise_for_status()
        assert shared().running() == [base], "an adapter from another folder is not the version"
        assert shared().ensure(shared.adapter) == guest
        assert shared().running() == [base, guest]
        (shared.folder / "serving" / "servers" / guest.tag / GUEST).unlink()
        assert shared().running() == [base, guest], "a lost record hides no adapter"
        shared().stop(guest.tag)
        assert shared().running() == [base]

    def test_an_adapter_that_cannot_be_loaded_is_permanent_and_harms_nobody(self, shared: Shared, tmp_path: Path) -> None:
        base = shared().ensure(shared.version)
        broken = tmp_path / "broken"
        artifacts = FolderArtifacts(shared.folder / "artifacts")
        shutil.copytree(artifacts.fetch(shared.adapter.model.files, tmp_path / "copy"), broken)
        (broken / "adapter_model.safetensors").write_bytes(b"no weights")
        files = artifacts.put_folder(broken)
        version = shared.adapter.model_copy(update={"tag": "v-broken", "model": shared.adapter.model.model_copy(update={"files": files})})
        with pytest.raises(Permanent):
            shared().ensure(version)
        assert shared().running() == [base]
        assert say(base, shared.question) == shared.before
        record = shared.folder / "serving" / "servers" / "v-broken" / GUEST
        assert not record.exists()
        record.parent.mkdir()
        record.write_text(json.dumps({"host": base.tag, "pid": 1, "outages": [], "loaded": "2026-01-01T00:00:00+00:00"}))
        shared().stop(base.tag)
        assert shared().running() == [], "an adapter that was never loaded does not keep the process"
        assert not record.exists()

    def test_a_version_keeps_its_place_when_the_setting_changes(self, shared: Shared) -> None:
        base, guest = shared().ensure(shared.version), shared().ensure(shared.adapter)
        without = shared()
        without.shared = False
        assert without.running() == [base, guest]
        assert without.ensure(shared.adapter) == guest
        assert without.cannot_share(shared.version, 1) is None
        without.stop(guest.tag)
        assert without.running() == [base]

    def test_a_process_that_was_started_without_the_setting_loads_nothing(self, shared: Shared) -> None:
        without = shared()
        without.stop(shared.version.tag)
        without.shared = False
        base = without.ensure(shared.version)
        told = shared().cannot_share(shared.version, 1)
        assert told is not None
        assert "ratchet serve --stop" in told
        own = shared().ensure(shared.adapter)
        assert own.host == ""
        assert own.url != base.url
        assert say(own, shared.question) == shared.after
        without.stop(shared.version.tag)
