"""Tests of the protocol between the service and a job: variables are written and read, and wrong ones are named."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.contracts.jobs.training import Adjustment, Attempt
from ratchet.runtime.jobs import job_protocol
from ratchet.runtime.jobs.job_protocol import IncarnationFile, PodTask, RunFile, TrainerBackend, Variable, attempt_environment

VARIABLES = {name: one for name, one in vars(job_protocol).items() if isinstance(one, Variable)}
VALUES: dict[Any, Any] = {
    int: 3,
    float: 2.5,
    str: "a-0.a",
    Path: Path("/a/b"),
    TrainerBackend: TrainerBackend.NEMO_RL,
    PodTask: PodTask.WORKER,
    job_protocol.APART.parse: True,
    job_protocol.ADJUSTMENT.parse: Adjustment(memory=0.5, rules=("memory",)),
    job_protocol.BUCKET.parse: BucketSettings(url="s3://ratchet/line", region="eu-west-1"),
}
"""A value for each conversion."""


@pytest.mark.parametrize("name", VARIABLES)
def test_what_is_written_is_read(name: str) -> None:
    variable = VARIABLES[name]
    value = VALUES[variable.parse]
    environment = variable.to_env(value)
    assert list(environment) == [variable.name]
    assert variable.get(environment) == variable.find(environment) == value


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("environment", [{}, {"": "1"}])
def test_a_missing_variable_has_its_default_or_is_named(name: str, environment: dict[str, str]) -> None:
    variable = VARIABLES[name]
    for given in (environment, {variable.name: ""}):
        if variable.default is None:
            assert variable.find(given) is None
            with pytest.raises(ConfigError, match=rf"{variable.name} is not set"):
                variable.get(given)
        else:
            assert variable.get(given) == variable.find(given) == variable.parse(variable.default)


@pytest.mark.parametrize("name", [name for name, one in VARIABLES.items() if one.parse not in (str, Path)])
def test_an_invalid_value_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{VARIABLES[name].name} has the invalid value 'x'"):
        VARIABLES[name].find({VARIABLES[name].name: "x"})


def test_no_two_variables_have_the_same_name() -> None:
    names = [one.name for one in VARIABLES.values()]
    assert len(set(names)) == len(names)
    assert all(name.startswith(job_protocol.RESERVED) for name in names)


def test_defaults_are_those_of_one_process_without_limits() -> None:
    assert job_protocol.TIMEOUT.get({}) == math.inf
    assert (job_protocol.NODES.get({}), job_protocol.NODE.get({}), job_protocol.GPUS.get({})) == (1, 0, 0)
    assert job_protocol.BACKEND.get({}) is TrainerBackend.TRL
    assert not job_protocol.APART.get({})


def test_names_of_numbered_files() -> None:
    assert job_protocol.job_record("rt-1") == "jobs/rt-1.json"
    assert f"{job_protocol.attempt_folder(2)}/{job_protocol.incarnation_folder(3)}/{job_protocol.step_folder(40)}" == "a2/i3/step_40"
    assert job_protocol.step_of(job_protocol.step_folder(40)) == 40
    with pytest.raises(ValueError, match="work"):
        job_protocol.step_of("work")
    assert [job_protocol.result_file(node) for node in (0, 2)] == [IncarnationFile.RESULT, "result-2.json"]
    assert [job_protocol.trainer_log(node) for node in (0, 2)] == ["trainer.log", "trainer2.log"]


def test_no_two_files_have_the_same_name() -> None:
    for kind in (RunFile, IncarnationFile):
        assert len({file.value for file in kind}) == len(kind.__members__)


def test_the_module_loads_only_the_standard_library() -> None:
    code = "import sys, ratchet.runtime.jobs.job_protocol; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"ratchet.runtime", "ratchet.contracts"} <= set(loaded)
    assert "pydantic" not in loaded


def test_an_attempt_gives_its_job_all_limits() -> None:
    given = attempt_environment(Attempt(number=2, timeout=60, nodes=3, gpus=4), 5)
    assert given.pop("RATCHET_ADJUSTMENT").startswith("{")
    assert given == {
        "RATCHET_ATTEMPT": "2",
        "RATCHET_TIMEOUT": "60.0",
        "RATCHET_GRACE": "5",
        "RATCHET_NODES": "3",
        "RATCHET_GPUS": "4",
    }
