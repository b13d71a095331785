"""The contract of the `Server` port, and what applications rely on, with the real vLLM on a CPU and a tiny model.

A CPU proves the interface: requests, answers, streams, errors, the life of the process. It proves nothing about speed, memory of a GPU,
numbers of its kernels, or several GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.model import model_ref
from ratchet.contracts.serving import Endpoint, ModelVersion
from ratchet.extend.testkit import Restart, ServerSuite
from ratchet.local.server import VllmServer
from ratchet.local.vllm_adapter import BASE_NAME
from ratchet.runtime.artifacts import FolderArtifacts
from tests.contract.sharing_suite import SharingSuite
from tests.real_vllm import ARGUMENTS, vllm_program
from tests.tiny_adapter import write_adapter
from tests.toy_line import write_model
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
QUESTION = "Is the red near the blue?"
_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


class Site:
    """vLLM with a tiny model, and the folders that it uses."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.program = folder, vllm_program(folder)
        artifacts = FolderArtifacts(folder / "artifacts")
        model = write_model(folder)
        self.version = ModelVersion(line="l", number=0, tag="v-tiny", model=model_ref(model, artifacts.put_folder(model)), cycle=None)

    def adapter(self, folder: Path) -> ModelVersion:
        return write_adapter(self.version, FolderArtifacts(self.folder / "artifacts"), folder, "v-adapter", QUESTION, "yes")

    def restarted(self) -> VllmServer:
        options = {"executable": str(self.program), "arguments": [*ARGUMENTS, *_TOOLS]}
        return VllmServer(self.folder / "serving", FolderArtifacts(self.folder / "artifacts"), "assistant", **options)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("vllm"))
    yield site
    for endpoint in site.restarted().running():
        site.restarted().stop(endpoint.tag)


@pytest.fixture
def endpoint(site: Site) -> Endpoint:
    return site.restarted().ensure(site.version)


def body(endpoint: Endpoint, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": endpoint.model, "messages": messages, "max_tokens": 8, "temperature": 0, **fields}


def ask(endpoint: Endpoint, **fields: Any) -> httpx.Response:
    return httpx.post(f"{endpoint.url}/v1/chat/completions", json=body(endpoint, **fields), timeout=120, trust_env=False)


def choices(endpoint: Endpoint, **fields: Any) -> list[dict[str, Any]]:
    reply = ask(endpoint, **fields)
    assert reply.status_code == 200, reply.text
    return list(reply.json()["choices"])


def texts(endpoint: Endpoint, **fields: Any) -> list[str]:
    return [choice["message"]["content"] for choice in choices(endpoint, **fields)]


def metric(endpoint: Endpoint, name: str) -> float:
    lines = httpx.get(f"{endpoint.url}/metrics", timeout=30, trust_env=False).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:{name}{{"))


class TestVllm(ServerSuite):
    """The suite of the port."""

    @pytest.fixture
    def restart(self, site: Site) -> Restart:
        return site.restarted

    @pytest.fixture
    def version(self, site: Site) -> ModelVersion:
        return site.version

    @pytest.fixture
    def adapter(self, site: Site, tmp_path: Path) -> ModelVersion:
        return site.adapter(tmp_path)


class SharedSite:
    """vLLM that loads adapters into the process of their base."""

    question, before, after = QUESTION, "no", "yes"

    def __init__(self, site: Site, folder: Path) -> None:
        self._site, self.folder, self.version = site, folder, site.version
        (folder / "artifacts").symlink_to(site.folder / "artifacts")
        self.adapter = site.adapter(folder / "trained")

    def __call__(self) -> VllmServer:
        options = {"executable": str(self._site.program), "arguments": list(ARGUMENTS)}
        server = VllmServer(self.folder / "serving", FolderArtifacts(self.folder / "artifacts"), "assistant", **options)
        server.shared = True
        return server


class TestSharing(SharingSuite):
    """The suite of shared processes. What does not depend on the server is tested with the embedded one."""

    test_a_version_keeps_its_place_when_the_setting_changes = None  # type: ignore[assignment]
    test_a_process_that_was_started_without_the_setting_loads_nothing = None  # type: ignore[assignment]

    @pytest.fixture(scope="class")
    def shared(self, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSite]:
        for endpoint in site.restarted().running():  # memory
            site.restarted().stop(endpoint.tag)
        shared = SharedSite(site, tmp_path_factory.mktemp("shared"))
        yield shared
        for endpoint in shared().running():
            shared().stop(endpoint.tag)
        assert shared().running() == []


def test_an_adapter_answers_as_it_was_trained_and_its_base_as_before(site: Site, endpoint: Endpoint, tmp_path: Path) -> None:
    adapter = site.adapter(tmp_path)
    adapted = site.restarted().ensure(adapter)
    try:
        assert texts(adapted) == ["yes"]
        assert texts(adapted, model="assistant") == ["yes"]
        assert texts(adapted, model=BASE_NAME) == ["no"]
        assert texts(endpoint) == ["no"]
    finally:
        site.restarted().stop(adapter.tag)


def test_the_champion_answers_as_it_was_trained_and_to_the_names_of_the_line(endpoint: Endpoint) -> None:
    assert texts(endpoint) == ["no"]
    assert texts(endpoint, model="assistant") == ["no"]


def test_seeds_repeat_answers_and_several_choices_differ(endpoint: Endpoint) -> None:
    warm = {"temperature": 1.5, "ignore_eos": True, "max_tokens": 6}
    assert texts(endpoint, seed=5, **warm) == texts(endpoint, seed=5, **warm)
    assert len(set(texts(endpoint, seed=1, n=4, **warm))) > 1


def test_answers_stop_where_they_should(endpoint: Endpoint) -> None:
    (whole,) = choices(endpoint)
    assert whole["finish_reason"] == "stop"
    (cut,) = choices(endpoint, max_tokens=1)
    assert cut["finish_reason"] == "length"
    (stopped,) = choices(endpoint, stop=["o"])
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("n", "stop")


def test_logprobs_name_the_tokens_of_the_answer(endpoint: Endpoint) -> None:
    (choice,) = choices(endpoint, logprobs=True, top_logprobs=2)
    tokens = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens).startswith("no")
    assert all(one["logprob"] <= 0 and len(one["top_logprobs"]) == 2 for one in tokens)


def test_a_streamed_answer_is_the_whole_one(endpoint: Endpoint) -> None:
    content, usage, ended = "", None, False
    asked = body(endpoint, stream=True, stream_options={"include_usage": True})
    with httpx.stream("POST", f"{endpoint.url}/v1/chat/completions", json=asked, timeout=120, trust_env=False) as reply:
        for line in reply.iter_lines():
            ended = ended or line == "data: [DONE]"
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                content += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    assert (content, ended) == ("no", True)
    assert usage is not None
    assert usage["completion_tokens"] >= 2


def test_a_tool_call_is_parsed(endpoint: Endpoint) -> None:
    tool = {"type": "function", "function": {"name": "tell", "parameters": {"type": "object", "properties": {"near": {"type": "boolean"}}}}}
    said = r'<tool_call>\{"name": "tell", "arguments": \{"near": true\}\}</tool_call>'
    (choice,) = choices(endpoint, tools=[tool], max_tokens=120, structured_outputs={"regex": said})  # the tiny model knows no calls
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("tell", {"near": True})
    assert choice["finish_reason"] == "tool_calls"


def test_what_it_cannot_answer_is_the_callers_fault(endpoint: Endpoint) -> None:
    assert ask(endpoint, messages=[{"role": "user", "content": "red " * 2000}]).status_code == 400
    assert ask(endpoint, model="other").status_code == 404
    assert ask(endpoint, temperature="hot").status_code in (400, 422)


def test_an_answer_that_nobody_waits_for_any_more_is_given_up(endpoint: Endpoint) -> None:
    before = metric(endpoint, "num_requests_running")
    asked = body(endpoint, stream=True, ignore_eos=True, max_tokens=200)
    with httpx.stream("POST", f"{endpoint.url}/v1/chat/completions", json=asked, timeout=120, trust_env=False) as reply:
        next(reply.iter_lines())
    until(lambda: metric(endpoint, "num_requests_running") == before)


def test_concurrent_requests_do_not_change_an_answer(endpoint: Endpoint) -> None:
    with ThreadPoolExecutor(8) as pool:
        company = [pool.submit(texts, endpoint, temperature=1.5, ignore_eos=True, max_tokens=10 + i) for i in range(4)]
        again = [pool.submit(texts, endpoint) for _ in range(4)]
        assert all(one.result() == ["no"] for one in again)
        assert all(one.result() for one in company)


def test_it_counts_what_it_does(endpoint: Endpoint) -> None:
    before = metric(endpoint, "generation_tokens_total")
    texts(endpoint)
    until(lambda: metric(endpoint, "generation_tokens_total") > before)


class Callers:
    """Four callers that ask until a request fails, so that requests are in flight at every moment."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.answered, self.failed, self.stopped = list[int](), list[str](), threading.Event()
        self.threads = [threading.Thread(target=self._ask) for _ in range(4)]
        for thread in self.threads:
            thread.start()
        until(lambda: len(self.answered) >= 4, 120)

    def _ask(self) -> None:
        while not self.stopped.is_set():
            try:
                self.answered.append(ask(self.endpoint, ignore_eos=True, max_tokens=200).status_code)
            except httpx.HTTPError as error:
                self.failed.append(type(error).__name__)
                return

    def ended(self, stop: bool) -> None:
        """Wait until all callers have ended. With `stop`, each ends after the answer that has begun."""
        if stop:
            self.stopped.set()
        for thread in self.threads:
            thread.join(120)
        self.stopped.set()


def test_a_drained_server_ends_the_answers_that_it_has_begun(site: Site, endpoint: Endpoint) -> None:
    callers = Callers(endpoint)
    callers.ended(stop=True)  # the service stops a server only when the router reports no request in flight
    site.restarted().stop(endpoint.tag)
    assert (set(callers.answered), callers.failed) == ({200}, [])
    assert site.restarted().running() == []


def test_a_server_that_dies_under_load_is_found_dead_and_started_again(site: Site) -> None:
    endpoint = site.restarted().ensure(site.version)
    port = int(endpoint.url.rsplit(":", 1)[1])
    engine = next(one.pid for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr.port == port)
    assert engine is not None
    callers = Callers(endpoint)
    os.kill(engine, signal.SIGKILL)
    callers.ended(stop=False)
    assert (set(callers.answered), len(callers.failed)) == ({200}, 4), "every caller gets an error, and none waits for ever"
    until(lambda: site.restarted().running() == [])
    begun = time.monotonic()
    assert texts(site.restarted().ensure(site.version)) == ["no"]
    assert time.monotonic() - begun < 300


def test_a_model_that_it_does_not_know_is_named(site: Site, tmp_path: Path) -> None:
    model = tmp_path / "odd"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"no weights")
    (model / "config.json").write_text('{"architectures": ["Odd"], "model_type": "odd"}')
    artifacts = FolderArtifacts(site.folder / "artifacts")
    version = ModelVersion(line="l", number=1, tag="v-odd", model=model_ref(model, artifacts.put_folder(model)), cycle=None)
    with pytest.raises(Permanent):
        site.restarted().ensure(version)
    site.restarted().stop("v-odd")
