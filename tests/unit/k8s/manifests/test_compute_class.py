"""Tests of the nodes that GKE makes for a line's gangs."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.k8s.manifests.environment import Extras, reminders, render_environment
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.pools import Account, compute_class
from ratchet.k8s.manifests.render import as_yaml
from ratchet.k8s.profiles.profile import load_profile
from tests.unit.k8s.golden import agrees
from tests.unit.k8s.samples import gang, settings

PROFILE = load_profile("gke-a3")


def on_gke(capacity: str = "flex-start", profile: str = "gke-a3", **pool: object):
    return settings(profile=profile, pool={"kind": "compute-class", "capacity": capacity, **pool})


def test_a_compute_class_matches_its_golden_file() -> None:
    made = compute_class(on_gke(zones=["us-east4-a", "us-east4-b"]), PROFILE)
    agrees("compute-class.yaml", as_yaml(made))


def test_the_pods_of_a_gang_select_the_class_that_is_rendered() -> None:
    made = compute_class(on_gke(), PROFILE)
    pod = gang("gke-a3", pool={"kind": "compute-class"}).spec.tasks[0].template.spec
    assert pod.node_selector["cloud.google.com/compute-class"] == made.metadata.name
    assert "cloud.google.com/compute-class" not in gang("gke-a3").spec.tasks[0].template.spec.node_selector


@pytest.mark.parametrize(
    ("capacity", "bought"),
    [
        ("spot", {"spot": True}),
        ("on-demand", {}),
        ("flex-start", {"flexStart": {"enabled": True}}),
        ("reserved", {"reservations": {"affinity": "Specific", "specific": [{"name": "mine"}]}}),
    ],
)
def test_each_capacity_is_bought_and_nothing_else(capacity: str, bought: dict[str, object]) -> None:
    choice = manifest(compute_class(on_gke(capacity), PROFILE, ("mine",)))["spec"]["priorities"]
    assert choice == [{"machineType": "a3-megagpu-8g", "gpu": {"type": "nvidia-h100-mega-80gb", "count": 8}, **bought}]


def test_the_class_is_rendered_with_the_environment_and_needs_no_karpenter() -> None:
    chosen = on_gke("reserved")
    kinds = [manifest(one.shape) for one in render_environment(chosen, PROFILE, Extras(Account(reservations=("mine",))))]
    assert [one["metadata"]["name"] for one in kinds if one["kind"] == "ComputeClass"] == ["ratchet-gke-a3"]
    assert "karpenter" not in str(kinds)
    assert not any("Karpenter" in one for one in reminders(chosen, PROFILE, Extras(), nemo=False))
    assert any("--reservation NAME" in one for one in reminders(chosen, PROFILE, Extras(), nemo=False))


@pytest.mark.parametrize(
    ("profile", "problem"),
    [("aws-p5en-efa", "needs a profile of GKE"), ("generic-gpu", "instance_types"), ("gke-a4-rdma", "several networks")],
)
def test_a_profile_for_which_gke_makes_no_nodes_is_refused(profile: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        compute_class(on_gke(profile=profile), load_profile(profile))


def test_flex_start_is_not_capacity_of_karpenter() -> None:
    with pytest.raises(ValidationError, match='set kind = "compute-class"'):
        settings(pool={"kind": "dynamic", "capacity": "flex-start"})
