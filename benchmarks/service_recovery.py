"""How long users wait after the receiver, the router or the model server was killed, for `benchmarks/service.py`.

Each time is measured from the SIGKILL to the next answer of status 200. Beside it stands the time of a cold start of the same process
without the service: from the call that starts it to its first answer.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from ratchet.contracts.ports import Artifacts
from ratchet.contracts.serving import Backend, ModelVersion, Route
from ratchet.flows.composition.services import receiver_process, start_receiver
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
from ratchet.flows.engine.context import LineContext
from ratchet.local.router import LocalRouter
from ratchet.local.server import EmbeddedServer
from ratchet.local.service import ManagedProcess

WAIT_SECONDS = 180.0


def seconds_until(answers: Callable[[], bool]) -> float:
    """Return the seconds until a request is answered with status 200. It is asked every 20 ms."""
    begun = time.monotonic()
    while time.monotonic() - begun < WAIT_SECONDS:
        try:
            if answers():
                return time.monotonic() - begun
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise SystemExit(f"no answer within {WAIT_SECONDS:g} s")


def chats(url: str, model: str) -> bool:
    """Whether a model answers at an address of the OpenAI API."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    return httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=30).status_code == 200


def healthy(url: str) -> bool:
    """Whether a receiver answers."""
    return httpx.get(f"{url}/healthz", trust_env=False, timeout=30).status_code == 200


def pids(context: LineContext, home: Home) -> dict[str, int]:
    """Return the process ids of receiver, router and the champion's model server."""
    (server,) = [path for path in (home.serving(context.line) / "servers").iterdir() if path.is_dir()]
    folders = {"receiver": home.receiver_process, "router": home.router_process, "model_server": server}
    found = {name: ManagedProcess(folder, []).process() for name, folder in folders.items()}
    return {name: process.pid for name, process in found.items() if process is not None}


def recovered(context: LineContext, home: Home, receiver: str, repeats: int) -> dict[str, list[float]]:
    """Kill each process `repeats` times while the service runs. Return the seconds until users get an answer again."""
    url, model = context.router.url(), context.loop.line.served_model
    answers = {"receiver": lambda: healthy(receiver), "router": lambda: chats(url, model), "model_server": lambda: chats(url, model)}
    found: dict[str, list[float]] = {name: [] for name in answers}
    for number in range(repeats):
        for name, answer in answers.items():
            seconds_until(answer)
            time.sleep(1.0 + 0.7 * (number % 4))  # so that the kills do not meet the looks of the service always at the same moment
            os.kill(pids(context, home)[name], signal.SIGKILL)
            begun = time.monotonic()
            while name in pids(context, home):  # the kernel still closes its files
                time.sleep(0.001)
            found[name].append(time.monotonic() - begun + seconds_until(answer))
    return found


def cold_starts(folder: Path, loop: Path, version: ModelVersion, artifacts: Artifacts) -> dict[str, float]:
    """Start each process once in `folder`, without a service. Return the seconds until its first answer."""
    home, settings = Home(folder / "home"), load_loop(loop)
    found: dict[str, float] = {}
    begun = time.monotonic()
    receiver = start_receiver(settings, home)
    seconds_until(lambda: healthy(receiver))
    found["receiver"] = time.monotonic() - begun
    server = EmbeddedServer(home.serving("cold"), artifacts, settings.line.served_model, **settings.serving.options)
    begun = time.monotonic()
    endpoint = server.ensure(version)
    seconds_until(lambda: chats(endpoint.url, endpoint.model))
    found["model_server"] = time.monotonic() - begun
    (folder / "token").write_text("secret")
    router = LocalRouter(home.serving("cold"), home.receiver("cold"), folder / "token")
    backend = Backend(tag=endpoint.tag, url=endpoint.url, model=endpoint.model, weight=100)
    begun = time.monotonic()
    router.set(Route(line="cold", served_model="cold", backends=(backend,), annotation="cold"))
    seconds_until(lambda: chats(router.url(), "cold"))
    found["router"] = time.monotonic() - begun
    router.stop()
    server.stop(version.tag)
    receiver_process(home).remove(settings.line.name)
    return found
