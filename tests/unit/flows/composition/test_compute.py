"""Which engine a line uses, and what `ratchet check` and `ratchet doctor` say about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.contracts.loop import ComputeSettings
from ratchet.flows.cli.setup import check, doctor
from ratchet.flows.composition.compute import open_compute
from ratchet.flows.composition.installation import _with_present_compute
from ratchet.flows.engine.context import LineContext
from ratchet.runtime.compute import ray_cluster
from ratchet.runtime.compute.inline import InlineCompute
from ratchet.runtime.compute.processes import ProcessCompute
from ratchet.runtime.compute.ray_cluster import RayCompute
from tests.ray_cluster import free_port
from tests.simulation.simulated_line import Scenario, SimulatedLine

RAY = ComputeSettings(engine="ray", address="10.0.0.1:6379", workers=5)


def line(settings: ComputeSettings) -> LineContext:
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    return replace(context, loop=context.loop.model_copy(update={"compute": settings}))


def test_the_settings_select_the_engine() -> None:
    assert isinstance(open_compute(ComputeSettings()), InlineCompute)
    processes = open_compute(ComputeSettings(engine="processes", workers=3))
    assert isinstance(processes, ProcessCompute)
    assert processes.workers == 3
    assert open_compute(ComputeSettings(engine="processes", workers=3)) is processes, "lines share the workers"
    assert isinstance(open_compute(RAY), RayCompute)


def test_an_engine_that_can_be_used() -> None:
    context = line(ComputeSettings(engine="processes"))
    [(level, about, text)] = check._compute(context)
    assert (level, about) == ("ok", "compute")
    assert "2 processes on this machine" in text
    assert doctor._compute(context)[0] == "ok"


@pytest.mark.slow
def test_a_cluster_that_is_away_is_a_warning_of_check_and_an_error_of_doctor() -> None:
    context = line(ComputeSettings(engine="ray", address=f"127.0.0.1:{free_port('127.0.0.1')}"))
    [(level, _, text)] = check._compute(context)
    assert level == "warning"
    assert "the Ray cluster at 127.0.0.1:" in text
    assert text.endswith("or correct compute.address; ingest and freeze wait for it")
    assert doctor._compute(context)[0] == "error"


def test_without_the_extra_both_report_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _name: None)
    context = line(ComputeSettings(engine="ray", address="10.0.0.2:6379"))
    [(level, _, text)] = check._compute(context)
    assert level == "error"
    assert "install ratchet[ray]" in text
    assert doctor._compute(context)[0] == "error"


def test_an_open_cycle_uses_the_engine_of_the_present_loop_file(tmp_path: Path) -> None:
    """A cluster that has moved would otherwise stop the cycle for good."""
    stored = line(RAY).loop
    path = tmp_path / "loop.toml"
    assert _with_present_compute(stored, path) == stored, "without a file, the stored section counts"
    path.write_text(f'[line]\nname = "{stored.line.name}"\nserved_model = "other"\n[compute]\nengine = "processes"\nworkers = 4\n')
    present = _with_present_compute(stored, path)
    assert present.compute == ComputeSettings(engine="processes", workers=4)
    assert present.model_copy(update={"compute": RAY}) == stored, "nothing else has changed"
    path.write_text(f'[line]\nname = "{stored.line.name}"\n')
    assert _with_present_compute(stored, path).compute == ComputeSettings()
    for wrong in ("[line", '[line]\nname = "another"\n', f'[line]\nname = "{stored.line.name}"\n[compute]\nengine = "spark"\n'):
        path.write_text(wrong)
        assert _with_present_compute(stored, path) == stored
