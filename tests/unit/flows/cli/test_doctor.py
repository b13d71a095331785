"""Tests of the package checks of `ratchet doctor`: the supported versions are those of pyproject.toml, compared as versions."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ratchet.flows.cli.setup import doctor

PROJECT = tomllib.loads((Path(__file__).resolve().parents[4] / "pyproject.toml").read_text())["project"]


def packages(monkeypatch: pytest.MonkeyPatch, **versions: str) -> dict[str, tuple[str, str]]:
    """Return level and text per package, for an installation with `versions` of some packages."""
    installed = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: versions.get(name) or installed(name))
    return {about: (level, text) for level, about, text in doctor._packages()}


@pytest.mark.parametrize("name", [*doctor._CONTROL, *doctor._TRAIN])
def test_supported_versions_are_those_of_the_project_file(name: str) -> None:
    declared = [Requirement(text) for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"]]]
    expected = next(requirement.specifier for requirement in declared if requirement.name == name)
    assert expected, "the project file has no limit, so the check of this package could never fail"
    assert doctor.package_requirements()[name] == expected, "the requirements have changed; install the project again"


@pytest.mark.parametrize(
    ("version", "level"),
    [("3.6.28", "error"), ("3.7.99", "error"), ("3.8.0", "ok"), ("3.10.1", "ok"), ("3.9.0rc1", "ok"), ("4.0.0", "error")],
)
def test_versions_of_prefect(version: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages(monkeypatch, prefect=version)["prefect"][0] == level


def test_a_local_build_counts_as_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    found = packages(monkeypatch, torch="2.10.0+cu130", mlflow="3.9.0")
    assert found["torch"] == ("ok", "2.10.0+cu130")
    assert found["mlflow"][0] == "error"
    assert "3.9.0 is not supported; install a version" in found["mlflow"][1]
