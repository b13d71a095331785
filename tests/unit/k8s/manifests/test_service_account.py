"""Tests of the account that gets the service's rights."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.k8s.manifests.admission import admission_rules
from ratchet.k8s.manifests.environment import render_environment
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.policies import service_account
from ratchet.k8s.profiles.profile import load_profile
from tests.unit.k8s.samples import settings

PROFILE = load_profile("cpu")


def test_the_rights_go_to_the_account_that_the_loop_file_names() -> None:
    made = [manifest(one.shape) for one in render_environment(settings(profile="cpu", account="team/prod-service"), PROFILE)]
    bound = [subject for one in made for subject in one.get("subjects", ())]
    assert len(bound) == 4
    assert {(one["namespace"], one["name"]) for one in bound} == {("team", "prod-service")}
    assert "ratchet-controller" not in [one["metadata"]["name"] for one in made if one["kind"] == "ServiceAccount"]
    conditions = [condition["expression"] for one in made for condition in one.get("spec", {}).get("matchConditions") or ()]
    assert conditions
    assert all("system:serviceaccount:team:prod-service" in one for one in conditions)


def test_without_a_name_the_account_is_rendered() -> None:
    made = [manifest(one.shape) for one in render_environment(settings(profile="cpu"), PROFILE)]
    assert "ratchet-controller" in [one["metadata"]["name"] for one in made if one["kind"] == "ServiceAccount"]
    assert service_account(settings()) == ("ratchet", "ratchet-controller")


def test_lines_of_a_namespace_name_one_account() -> None:
    lines = [(settings(account=name), PROFILE) for name in ("team/a", "team/b")]
    with pytest.raises(ConfigError, match=r"different accounts of the service: team/a, team/b; set the same cluster.account"):
        admission_rules(lines)


@pytest.mark.parametrize("name", ["team/ratchet-job", "team/ratchet-model", "kube-system/default"])
def test_the_accounts_of_jobs_and_model_servers_do_not_get_the_rights_of_the_service(name: str) -> None:
    with pytest.raises(ValidationError, match="is not an account of the service"):
        settings(account=name)


@pytest.mark.parametrize("name", ["prod-service", "team/", "Team/prod", "a/b/c"])
def test_an_account_without_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="account"):
        settings(account=name)
