"""Tests of how `ratchet serve --stop` ends the service."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.contracts.loop import Loop
from ratchet.flows.cli.serve import _await, _start_lines, _stop, _stop_serving
from ratchet.flows.config.home import Home
from ratchet.flows.engine.context import LineContext
from ratchet.flows.service.process import serving_process
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.waiting import until


def no_beat(trouble: str, prefect_trouble: str = "") -> None:
    """Give no sign of life."""


SERVICE = """
import signal, subprocess, sys, time
from pathlib import Path
from ratchet.flows.config.home import Home
from ratchet.flows.service.process import only_one
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
flow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with only_one(Home(Path(sys.argv[1]))):
    print(flow.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["usual", "deaf"])
def test_stop_ends_the_service_also_if_it_does_not_react(tmp_path: Path, kind: str) -> None:
    service = subprocess.Popen([sys.executable, "-c", SERVICE, str(tmp_path), kind], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    flow = int(service.stdout.readline())
    installation: Any = SimpleNamespace(home=Home(tmp_path))
    stopped = _stop_serving(installation, seconds=0.5 if kind == "deaf" else 30)
    assert stopped == ["the service (with SIGKILL, because it still ran 0.5 s after SIGTERM)" if kind == "deaf" else "the service"]
    service.wait(10)
    assert serving_process(installation.home) is None
    if kind == "deaf":
        until(lambda: not psutil.pid_exists(flow) or psutil.Process(flow).status() == psutil.STATUS_ZOMBIE)
    else:
        psutil.Process(flow).kill()


def test_stop_goes_on_where_a_file_is_refused_or_a_line_cannot_be_stopped(
    lines: list[tuple[Path, LineContext]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts = {context.line: context for _, context in lines}
    ended: list[str] = []

    def stop_line(context: LineContext, _home: Home) -> list[str]:
        if context.line == "b" and "b" not in ended:
            ended.append("b")
            raise Retryable("the API server does not answer")
        ended.append(context.line)
        return [f"the router of {context.line}"]

    def context_of(name: str) -> LineContext:
        if name not in contexts:
            raise ConfigError(f"{name}: unknown key")
        return contexts[name]

    monkeypatch.setattr("ratchet.flows.composition.services.stop_line", stop_line)
    installation: Any = SimpleNamespace(home=Home(tmp_path))
    with pytest.raises(ConfigError, match=r"(?s)wrong: unknown key\nb: the API server does not answer\n.*repeat the command"):
        _stop(installation, context_of, ["a", "wrong", "b", "c"], True)
    assert json.loads(capsys.readouterr().out) == ["the router of a", "the router of c"]
    ended.remove("b")
    with pytest.raises(Retryable, match="b: the API server does not answer"):
        _stop(installation, context_of, ["a", "b"], True)
    ended.clear()
    with pytest.raises(ConfigError, match=r"^wrong: unknown key$"):
        _stop(installation, context_of, ["wrong"], True)
    assert ended == []


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, LineContext]]:
    """Three lines with a receiver. No process is started."""
    monkeypatch.setattr("ratchet.flows.composition.services.start_receiver", lambda loop, _home: f"http://receiver-of-{loop.line.name}")
    found = []
    for name in ("a", "b", "c"):
        context = SimulatedLine(Scenario(seed=1)).context
        sources = tuple(source.model_copy(update={"kind": "receiver"}) for source in context.loop.sources)
        loop = context.loop.model_copy(update={"sources": sources, "line": context.loop.line.model_copy(update={"name": name})})
        found.append((tmp_path / f"{name}.toml", replace(context, loop=loop)))
    return found


def test_line_that_cannot_be_served_does_not_stop_the_others(
    lines: list[tuple[Path, LineContext]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation: Any = SimpleNamespace(home=Home(tmp_path))
    rows = _start_lines(lines, installation, no_beat)
    assert {(name, where) for name, what, where in rows if what == "OTLP receiver"} == {
        (name, f"http://receiver-of-{name}/v1/traces") for name in "abc"
    }

    def start(loop: Loop, _home: Home) -> str:
        if loop.line.name == "b":
            raise Permanent("the receiver cannot listen on 127.0.0.1:80; free the port")
        return "http://receiver"

    monkeypatch.setattr("ratchet.flows.composition.services.start_receiver", start)
    rows = _start_lines(lines, installation, no_beat)
    assert [row for row in rows if row[0] == "b"] == [["b", "not served", "the receiver cannot listen on 127.0.0.1:80; free the port"]]
    assert {row[0] for row in rows if row[1] == "OTLP receiver"} == {"a", "c"}
    with pytest.raises(Permanent, match="free the port"):
        _start_lines(lines[1:2], installation, no_beat)


@pytest.mark.slow
def test_a_start_that_takes_long_gives_signs_of_life_for_a_limited_time() -> None:
    signs, never = [], Future[None]()
    _await([never], 2.5, lambda trouble, prefect="": signs.append(trouble + prefect))
    assert signs[:2] == ["", ""]
    never.set_result(None)
    _await([never], 60.0, lambda trouble, prefect="": signs.append("it waits"))
    assert "it waits" not in signs


def test_stop_without_a_service_stops_nothing(tmp_path: Path) -> None:
    installation: Any = SimpleNamespace(home=Home(tmp_path))
    assert _stop_serving(installation) == []
