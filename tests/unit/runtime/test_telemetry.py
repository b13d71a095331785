"""Every process that Ratchet starts has the variables that turn off usage statistics."""

from __future__ import annotations

import pytest

from ratchet.flows.cli import main
from ratchet.flows.config.home import Home
from ratchet.flows.prefect import server
from ratchet.local.processes import child_environment
from ratchet.runtime.telemetry import NO_TELEMETRY, disable_telemetry


def test_other_values_are_replaced_and_other_variables_stay() -> None:
    environment = {"MLFLOW_DISABLE_TELEMETRY": "false", "DO_NOT_TRACK": "0", "HOME": "/h"}
    disable_telemetry(environment)
    assert environment == {**NO_TELEMETRY, "HOME": "/h"}


def test_child_processes_and_jobs_start_with_the_variables() -> None:
    assert NO_TELEMETRY.items() <= child_environment().items()


def test_prefect_and_its_flow_runs_start_with_the_variables(tmp_path) -> None:
    assert NO_TELEMETRY.items() <= server.settings(Home(tmp_path), "http://127.0.0.1:1/api").items()


def test_a_command_sets_the_variables_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"DO_NOT_TRACK": "0"}
    monkeypatch.setattr(main.os, "environ", environment)
    monkeypatch.setattr(main, "cli", type("Cli", (), {"main": staticmethod(lambda **_: dict(environment))}))
    assert NO_TELEMETRY.items() <= main.main([]).items()


@pytest.mark.slow
@pytest.mark.parametrize("value", ["DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY"])
def test_mlflow_accepts_the_value(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow 3 sends statistics with DO_NOT_TRACK=1. Only its own switch turns them off."""
    from mlflow.telemetry import utils

    monkeypatch.setattr(utils, "_IS_IN_CI_ENV_OR_TESTING", False)
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    monkeypatch.setenv(value, NO_TELEMETRY[value])
    assert utils.is_telemetry_disabled() == (value == "MLFLOW_DISABLE_TELEMETRY")
