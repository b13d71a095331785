"""Kills and stops the router behind a real HAProxy: with the configuration of `ratchet proxy`, every request gets an answer.

An answer that the router has begun when it is killed is cut. The client then repeats its request, as OpenAI's clients do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ratchet.local.router import LocalRouter
from ratchet.router.bypass import Proxy, proxy_config
from tests.cluster.rig.site import free_ports
from tests.needs import Need, lacks
from tests.serving_site import Site, route, started
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
BODY = {"model": "helper", "messages": [{"role": "user", "content": "hello"}]}


class Behind:
    """A router and a champion behind HAProxy, and a client that sends requests one after the other."""

    def __init__(self, router: LocalRouter, site: Site, folder: Path, program: str) -> None:
        self.router, self.site = router, site
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"
        champion = site.backend("champion", 100.0)
        router.set(route(champion))
        config = folder / "proxy.cfg"
        config.write_text(proxy_config(Proxy.HAPROXY, "line", "v-1", f"127.0.0.1:{port}", router.url(), champion.url))
        self.proxy = subprocess.Popen([program, "-f", str(config), "-db"], stderr=(folder / "proxy.log").open("wb"))
        self.statuses: list[int] = []
        self.cut = 0
        """Number of answers that ended early."""
        self._ended = threading.Event()
        self._client = threading.Thread(target=self._ask)

    def begin(self) -> None:
        """Start the client when the proxy answers."""
        until(self._answers, 60)
        self._client.start()
        self.routed()

    def _answers(self) -> bool:
        try:
            return httpx.post(self._url, json=BODY, timeout=10, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _ask(self) -> None:
        with httpx.Client(timeout=30, trust_env=False) as client:
            while not self._ended.is_set():
                try:
                    self.statuses.append(client.post(self._url, json=BODY).status_code)
                except (httpx.RemoteProtocolError, httpx.ReadError):
                    self.cut += 1
                time.sleep(0.01)

    def models(self, number: int) -> set[str]:
        """Return the model names with which the champion was asked in the next `number` requests. Only the router changes the name."""
        seen = len(self.site.asked)
        until(lambda: len(self.site.asked) >= seen + number or not self._client.is_alive(), 30)
        return {body["model"] for body in self.site.asked[seen : seen + number]}

    def routed(self) -> None:
        """Wait until requests go through the router."""
        until(lambda: self.models(5) == {"model-champion"}, 30)

    def bypassed(self) -> None:
        """Wait until requests go to the champion directly."""
        until(lambda: self.models(5) == {"helper"}, 30)

    def close(self) -> None:
        """End the client and the proxy."""
        self._ended.set()
        if self._client.is_alive():
            self._client.join(60)
        self.proxy.terminate()
        self.proxy.wait(10)


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        lacks(Need.HAPROXY)
    site = Site()
    with started(tmp_path) as router:
        made = Behind(router, site, tmp_path, program)
        try:
            made.begin()
            yield made
        finally:
            made.close()
            site.close()


def test_no_request_fails_while_the_router_is_down(behind: Behind) -> None:
    pid = behind.router.process.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    behind.bypassed()
    assert set(behind.statuses) == {200}
    assert behind.cut <= 1
    behind.router.url()  # starts the router again, as the service does
    behind.routed()
    assert set(behind.statuses) == {200}
    assert behind.cut <= 1


def test_a_router_that_hangs_is_bypassed(behind: Behind) -> None:
    """The request that waits for the router goes on when the router does; later ones go to the champion."""
    pid = behind.router.process.pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: behind._answers(), 30)
        assert behind.site.asked[-1]["model"] == "helper"
    finally:
        os.kill(pid, signal.SIGCONT)
    behind.routed()
    assert set(behind.statuses) == {200}
