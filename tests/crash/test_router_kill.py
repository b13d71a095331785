"""A router that is killed under load loses no trace of an answer that its caller has received, and none is stored twice."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.contracts.errors import Retryable
from ratchet.flows.composition.ports import SystemClock
from ratchet.local.router import LocalRouter
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.ingest import IngestKeys
from ratchet.materializer.receive.sources import SpoolSource
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.secrets.keyring import KeyFile
from ratchet.runtime.secrets.span_signature import SPAN_KEYS
from tests.serving_site import Receiver, Site, route, started
from tests.unit.materializer.conftest import ingest_keys, make_loop
from tests.waiting import until

CHUNK = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "one "}, "finish_reason": null}]}\n\n'
LAST = b'data: {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


class Callers:
    """Callers that ask again and again until `stop`. `answered` has the ids of the traces of all complete answers."""

    def __init__(self, router: LocalRouter, count: int) -> None:
        self.router = router
        self.answered: list[str] = []
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number % 2 == 0,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, streamed: bool) -> None:
        body = {"model": "helper", "messages": [{"role": "user", "content": "hi"}], "stream": streamed}
        headers = {"x-ratchet-consent": "true"}
        while not self.stop.is_set():
            try:
                with httpx.Client(base_url=self.router.url(), trust_env=False, timeout=20) as client:
                    while not self.stop.is_set():
                        reply = client.post("/v1/chat/completions", json=body, headers=headers)
                        if reply.status_code == 200 and (not streamed or reply.text.endswith("[DONE]\n\n")):
                            self.answered.append(reply.headers["x-ratchet-trace"])
            except (httpx.HTTPError, Retryable):
                continue  # the router was killed

    def close(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.mark.slow
def test_killed_router_loses_no_trace_of_an_answer(site: Site, tmp_path: Path) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=2)

    def reply(name: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (200, [CHUNK, CHUNK, LAST]) if body.get("stream") else site.answer(name, body)

    site.reply = reply
    receiver = Receiver(tmp_path)
    with started(tmp_path, receiver) as router:
        try:
            receiver.start()
            router.set(route(site.backend("v1", 100)))
            callers = Callers(router, 6)
            try:
                for _ in range(6):
                    before = len(callers.answered)
                    until(lambda: len(callers.answered) >= before + 40, 60)  # noqa: B023
                    killed = router.process.pid()
                    os.kill(killed or 0, signal.SIGKILL)
                    until(lambda: router.process.pid() != killed)  # noqa: B023 -- a process ends some time after the signal
                    router.url()
            finally:
                callers.close()
            router.url()
            spool = tmp_path / "serving" / "router" / "spool"
            until(lambda: not list(spool.iterdir()), 60)
            until(lambda: not any(json.loads((spool.parent / "forwarded.json").read_bytes())["open"]))
            sent = router.forwarded("line", begin, datetime.now(UTC) + timedelta(seconds=5)).get("v1", 0)
        finally:
            receiver.stop()
    loop = make_loop()
    artifacts = FolderArtifacts(tmp_path / "artifacts")
    keys = IngestKeys(spans=KeyFile(receiver.token.with_name(SPAN_KEYS)), users=ingest_keys(tmp_path / "keys").users)
    datasets = LakeDatasets(tmp_path / "lake", loop, tmp_path, build_scorer_set(loop.rewards), artifacts, SystemClock(), keys)
    reports = [datasets.ingest(batch).traces for batch in SpoolSource("router", tmp_path / "spool").batches()]
    traces = datasets.lake.scan("traces")
    ids = traces["id"].to_list()
    print(f"answered {len(callers.answered)}, traces {len(ids)}, sent {sent}, duplicates {sum(report.duplicate for report in reports)}")
    assert len(callers.answered) >= 240
    assert not set(callers.answered) - set(ids), "an answer without a trace"
    assert len(ids) == len(set(ids))
    assert traces["verified"].all(), "each trace is evidence, also those sent after a restart"
    assert not any(report.quarantined for report in reports)
    assert sent <= len(ids), "a killed router must not look like one that loses traces"
