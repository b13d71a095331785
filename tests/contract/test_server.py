"""Contract tests for every model server, and tests of the embedded server with a tiny model in a separate process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.fakes import FakeServer, FakeWorld, fake_model
from ratchet.contracts.model import model_ref
from ratchet.contracts.serving import Endpoint, ModelVersion
from ratchet.extend.testkit import Restart, ServerSuite
from ratchet.local.server import EmbeddedServer
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.extensions import ExtensionKind, load
from tests.contract.sharing_suite import SharingSuite
from tests.tiny_adapter import write_adapter
from tests.unit.trainers.conftest import write_model

pytestmark = [pytest.mark.slow]


class SharedSite:
    """A server that loads adapters into the process of their base, with a tiny model and an adapter over it."""

    question, after = "one two", "six six five"

    def __init__(self, folder: Path) -> None:
        site = Site(folder)
        self.folder, self.version = folder, site.version
        self.adapter = with_adapter(site.version, site.server, folder / "trained")
        endpoint = site.server.ensure(site.version)
        self.before = texts(endpoint)[0]
        site.server.stop(endpoint.tag)

    def __call__(self) -> EmbeddedServer:
        server = EmbeddedServer(self.folder / "serving", FolderArtifacts(self.folder / "artifacts"), "assistant", threads=1)
        server.shared = True
        return server


class TestSharing(SharingSuite):
    """The suite of shared processes."""

    @pytest.fixture(scope="class")
    def shared(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSite]:
        shared = SharedSite(tmp_path_factory.mktemp("shared"))
        yield shared
        for endpoint in shared().running():
            shared().stop(endpoint.tag)
        assert shared().running() == []


class Site:
    """An embedded server with a tiny model, and the folders that it uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        artifacts = FolderArtifacts(folder / "artifacts")
        model = write_model(folder / "model")
        ref = model_ref(model, artifacts.put_folder(model))
        self.version = ModelVersion(line="l", number=0, tag="v-tiny", model=ref, cycle=None)
        self.server = self.restarted()

    def restarted(self) -> EmbeddedServer:
        return EmbeddedServer(self.folder / "serving", FolderArtifacts(self.folder / "artifacts"), "assistant", threads=1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("server"))
    yield site
    for endpoint in site.server.running():
        site.server.stop(endpoint.tag)


@pytest.fixture(scope="module")
def endpoint(site: Site) -> Endpoint:
    return site.server.ensure(site.version)


def ask(endpoint: Endpoint, **fields: Any) -> httpx.Response:
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "one two"}], "max_tokens": 8, "temperature": 0, **fields}
    return httpx.post(f"{endpoint.url}/v1/chat/completions", json=body, timeout=60, trust_env=False)


def texts(endpoint: Endpoint, **fields: Any) -> list[str]:
    reply = ask(endpoint, **fields)
    assert reply.status_code == 200, reply.text
    return [choice["message"]["content"] for choice in reply.json()["choices"]]


class TestServers(ServerSuite):
    """The suite for the embedded server and the fake. The example package has one of its own."""

    @pytest.fixture(scope="class", params=["embedded", "fake"])
    def opened(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Restart, ModelVersion]:
        if request.param == "embedded":
            own = Site(tmp_path_factory.mktemp("suite"))
            return own.restarted, own.version
        fake = FakeServer(FakeWorld())
        return lambda: fake, ModelVersion(line="l", number=0, tag="v-tiny", model=fake_model("x"), cycle=None)

    @pytest.fixture
    def restart(self, opened: tuple[Restart, ModelVersion]) -> Restart:
        return opened[0]

    @pytest.fixture
    def version(self, opened: tuple[Restart, ModelVersion]) -> ModelVersion:
        return opened[1]

    @pytest.fixture
    def adapter(self, opened: tuple[Restart, ModelVersion], tmp_path: Path) -> ModelVersion | None:
        server = opened[0]()
        return with_adapter(opened[1], server, tmp_path) if isinstance(server, EmbeddedServer) else None


def with_adapter(base: ModelVersion, server: EmbeddedServer, folder: Path) -> ModelVersion:
    artifacts = server._artifacts
    assert isinstance(artifacts, FolderArtifacts)
    return write_adapter(base, artifacts, folder, "v-adapter", "one two", "six six five")


def test_an_adapter_answers_as_it_was_trained_and_its_base_as_before(site: Site, endpoint: Endpoint, tmp_path: Path) -> None:
    before = texts(endpoint)
    adapter = with_adapter(site.version, site.server, tmp_path)
    adapted = site.server.ensure(adapter)
    try:
        assert texts(adapted) == ["six six five"] != before
        assert texts(adapted, model="assistant") == ["six six five"]
        assert texts(endpoint) == before
    finally:
        site.server.stop(adapter.tag)


def test_server_of_the_example_answers_and_is_found_after_a_restart(example: Path, tmp_path: Path) -> None:
    artifacts, model = FolderArtifacts(tmp_path / "artifacts"), tmp_path / "model"
    model.mkdir()
    header = json.dumps({"__metadata__": {"answer": "hello"}}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (model / "config.json").write_text("{}")
    version = ModelVersion(line="l", number=0, tag="v-canned", model=model_ref(model, artifacts.put_folder(model)), cycle=None)

    def restarted() -> Any:
        return load(ExtensionKind.SERVER, "canned").create(tmp_path / "serving", artifacts, "canned", options={}, where="")

    server = restarted()
    try:
        first = server.ensure(version)
        assert server.ensure(version) == restarted().ensure(version) == first
        assert server.running() == restarted().running() == [first]
        assert (first.tag, texts(first)) == ("v-canned", ["hello"])
        server.stop("v-unknown")
        assert restarted().running() == [first]
    finally:
        server.stop("v-canned")
    assert restarted().running() == []


def test_temperature_zero_gives_the_same_answer_among_concurrent_requests(endpoint: Endpoint) -> None:
    alone = texts(endpoint)
    assert alone == texts(endpoint, seed=5) == texts(endpoint, seed=6)
    with ThreadPoolExecutor(16) as pool:
        company = [pool.submit(texts, endpoint, temperature=1.5, max_tokens=1 + i) for i in range(8)]
        again = [pool.submit(texts, endpoint) for _ in range(8)]
        assert all(one.result() == alone for one in again)
        assert all(one.result() for one in company)


def test_seed_determines_the_answer_and_answers_without_a_seed_differ(endpoint: Endpoint) -> None:
    assert texts(endpoint, temperature=1.0, seed=3) == texts(endpoint, temperature=1.0, seed=3)
    assert len({texts(endpoint, temperature=1.0, seed=seed)[0] for seed in range(8)}) > 3
    assert len({texts(endpoint, temperature=1.0)[0] for _ in range(8)}) > 3


def test_n_answers_are_independent_draws(endpoint: Endpoint) -> None:
    answers = texts(endpoint, temperature=1.0, seed=1, n=8)
    assert len(answers) == 8
    assert len(set(answers)) > 3
    assert answers == texts(endpoint, temperature=1.0, seed=1, n=8)


def test_max_tokens_usage_and_logprobs(endpoint: Endpoint) -> None:
    reply = ask(endpoint, max_tokens=3, logprobs=True, temperature=1.0, seed=2).json()
    content = reply["choices"][0]["logprobs"]["content"]
    assert reply["usage"]["completion_tokens"] == len(content) <= 3
    assert all(entry["logprob"] <= 0 for entry in content)
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    assert reply["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "another"}, 404),
        ({"messages": [{"role": "user", "content": "one " * 100}]}, 400),
        ({"messages": [{"role": "user", "content": "one " * 50}], "max_tokens": 500}, 200),
        ({"messages": []}, 422),
        ({"messages": "hello"}, 422),
        ({"temperature": -1}, 422),
        ({"n": 0}, 422),
        ({"max_tokens": 0}, 422),
        ({"stream": True, "stream_options": 3}, 422),
        ({"messages": [{"role": "user", "content": 5}]}, 200),
        ({"seed": -5, "temperature": 1.0}, 200),
        ({"seed": 2**64, "temperature": 1.0}, 200),
        ({"top_p": 0.5, "unknown": {}}, 200),
        ({"temperature": 0.001, "seed": 1}, 200),
    ],
)
def test_unusual_requests_are_answered_and_do_not_affect_later_requests(endpoint: Endpoint, fields: dict[str, Any], status: int) -> None:
    reply = ask(endpoint, **fields)
    assert reply.status_code == status or (status == 200 and reply.status_code in (400, 422)), reply.text
    assert texts(endpoint)


def test_error_for_an_unknown_model_names_the_served_model(endpoint: Endpoint) -> None:
    assert "v-tiny" in ask(endpoint, model="another").json()["error"]["message"]


def test_killed_server_is_started_again(site: Site, endpoint: Endpoint) -> None:
    before = texts(endpoint)
    process = psutil.Process(site.server._service("v-tiny", None).ready()["pid"])  # type: ignore[index]
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert site.restarted().running() == []
    assert texts(site.restarted().ensure(site.version)) == before


def test_model_that_cannot_be_loaded_is_permanent(site: Site, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    (tmp_path / "config.json").write_text("{}")
    ref = model_ref(tmp_path, FolderArtifacts(site.folder / "artifacts").put_folder(tmp_path))
    with pytest.raises(Permanent, match="ended before it was ready"):
        site.server.ensure(ModelVersion(line="l", number=1, tag="v-broken", model=ref, cycle=None))
    site.server.stop("v-broken")


def test_unknown_options_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="threads"):
        EmbeddedServer(tmp_path, FolderArtifacts(tmp_path), "assistant", gpus=3)
