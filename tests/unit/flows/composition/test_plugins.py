"""Tests of the engine with extensions that fail: a check is inconclusive, a source is asked again, metrics count as missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Inconclusive, Permanent, Retryable
from ratchet.contracts.evaluation import CheckResult, EvalReport, Result
from ratchet.contracts.extension import ExtensionVersion
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import GateSettings, ServingSettings
from ratchet.contracts.serving import Capabilities, Evidence
from ratchet.contracts.steps import State
from ratchet.flows.composition.extensions import BUILT_IN_CHECKS, open_extensions, open_server
from ratchet.flows.config.home import Home
from ratchet.flows.core.decide import End
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import open_cycle
from ratchet.gates.checks import checks
from ratchet.local.server import EmbeddedServer
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.extensions import ExtensionKind, offers
from tests.distributions import distribution
from tests.simulation.simulated_line import Scenario, SimulatedLine, loop_for

VERSION = ExtensionVersion(name="odd", distribution="odd-maker", version="2", code=digest("code"))


class Odd:
    """A check that behaves as told."""

    name = "odd"

    def __init__(self, behaviour: Any) -> None:
        self.behaviour = behaviour

    def check(self, report: EvalReport) -> CheckResult:
        if isinstance(self.behaviour, Exception):
            raise self.behaviour
        report.failures["changed"] = 1
        return self.behaviour  # type: ignore[no-any-return]


class Reading:
    """A check that passes if no other check has changed the report."""

    name = "reading"

    def check(self, report: EvalReport) -> CheckResult:
        result = Result.FAIL if report.failures else Result.PASS
        return CheckResult(check=self.name, result=result, reason=str(report.failures))


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (ValueError("ada said so"), "it raised ValueError"),
        (Retryable("later"), "it raised Retryable"),
        (Inconclusive("?"), "it raised Inconclusive"),
        (None, "it returned no result"),
        ("pass", "it returned no result"),
        (Result.PASS, "it returned no result"),
    ],
)
def test_a_failing_check_is_inconclusive_and_the_verdict_names_its_version(behaviour: Any, reason: str) -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    given = (*sim.context.checks, Odd(behaviour), Reading())
    context = replace(sim.context, checks=given, versions={"check": (VERSION,)})
    cycle = open_cycle(context, "a test")
    while not isinstance(decision := advance(cycle, context), End):
        sim.clock.sleep(1)
    assert decision.state is State.HELD
    verdict = context.cycle_view(cycle).verdict
    assert verdict is not None
    assert [check.result for check in verdict.checks] == [Result.PASS, Result.INCONCLUSIVE, Result.PASS]
    assert verdict.checks[1].reason == f"the check failed: {reason}; correct or uninstall it"
    assert verdict.versions == (VERSION,)


class Source:
    """A source that raises."""

    name = "remote"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def batches(self) -> Any:
        raise self.error

    def done(self, batch: Any) -> None: ...


@pytest.mark.parametrize("error", [ConnectionError("refused"), KeyError("page"), Retryable("later")])
def test_a_failing_source_is_asked_again(error: Exception) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    with pytest.raises(Retryable, match=r"later|source 'remote' failed: (ConnectionError: refused|KeyError: 'page')"):
        ingest(sim.context, [Source(error)])
    assert ingest(sim.context, []).traces.read == 0, "the lease is free again"


def test_a_permanent_error_of_a_source_stays_permanent() -> None:
    with pytest.raises(Permanent, match="no such bucket"):
        ingest(SimulatedLine(Scenario(seed=1)).context, [Source(Permanent("no such bucket"))])


class Metrics:
    """Metrics that raise."""

    def evidence(self, champion: str, candidate: str, since: Any, until: Any) -> Evidence:
        raise ZeroDivisionError("no requests")


def test_a_rollout_without_metrics_because_of_an_error_rolls_back() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.context = replace(sim.context, metrics=Metrics())
    sim.live()
    view = sim.context.cycle_view(sim.cycle_stream())
    assert view.state is State.ROLLED_BACK
    assert "metrics unavailable: they raised ZeroDivisionError" in view.reason


def test_a_server_that_serves_no_adapters_is_refused_for_a_line_that_wants_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, home, artifacts = loop_for("auto"), Home(tmp_path / "home"), FolderArtifacts(tmp_path / "artifacts")
    wanted = loop.model_copy(update={"serving": ServingSettings(adapters="own server")})
    assert open_server(wanted, home.root, home, artifacts).capabilities.adapters
    monkeypatch.setattr(EmbeddedServer, "capabilities", Capabilities(sampling=True, seed=True, logprobs=True))
    assert open_server(loop, home.root, home, artifacts) is not None
    with pytest.raises(ConfigError, match="'embedded' serves no adapters"):
        open_server(wanted, home.root, home, artifacts)


def opened(tmp_path: Path, **gate: Any) -> Any:
    settings = GateSettings(**gate)
    loop = loop_for("auto").model_copy(update={"gate": settings})
    return open_extensions(loop, tmp_path, Home(tmp_path / "home"), FolderArtifacts(tmp_path / "artifacts"), settings)


def test_the_checks_of_the_gate_are_the_built_in_ones_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(check.name for check in checks(GateSettings())) == BUILT_IN_CHECKS
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "class Check:\n    def __init__(self, settings, word='x'):\n        self.word = word\n"
    names = {name: f"more_{tmp_path.name.replace('-', '_')}:{name.title()}" for name in ("zebra", "alpha")}
    source = text + "".join(f"class {name.title()}(Check):\n    name = {name!r}\n" for name in names)
    distribution(tmp_path, "more-checks", modules={f"more_{tmp_path.name.replace('-', '_')}.py": source}, checks=names)
    found = opened(tmp_path, checks={"zebra": {"word": "y"}})
    assert [check.name for check in found.checks] == [*BUILT_IN_CHECKS, "alpha", "zebra"]
    assert [check.word for check in found.checks[-2:]] == ["x", "y"]
    assert [version.distribution for version in found.versions["check"]] == ["ratchet"] * len(BUILT_IN_CHECKS) + ["more-checks"] * 2


def test_a_check_must_have_the_name_of_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "class Check:\n    name = 'quality'\n    def __init__(self, settings): ...\n"
    distribution(tmp_path, "disguised", modules={"disguised_check.py": source}, checks={"other": "disguised_check:Check"})
    with pytest.raises(ConfigError, match="check 'other' of disguised: its attribute `name` must be 'other'"):
        opened(tmp_path)


def test_the_gate_refuses_to_work_without_a_built_in_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(kind: ExtensionKind) -> Any:
        return {name: entries for name, entries in offers(kind).items() if name != "quality"}

    monkeypatch.setattr("ratchet.flows.composition.extensions.offers", stale)
    with pytest.raises(ConfigError, match="built-in checks of the gate are not installed: quality; the entry points of the installation"):
        opened(tmp_path)
