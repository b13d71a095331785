"""Tests of the storage class of Managed Lustre and of the claim that uses it."""

from __future__ import annotations

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.k8s.manifests.environment import extras, reminders, render_environment
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.profiles.profile import load_profile
from tests.unit.k8s.samples import BUCKET, settings

PROFILE = load_profile("gke-a3")


@pytest.mark.parametrize(
    ("throughput", "size", "asked"), [("1000", None, "9000Gi"), ("125", None, "72000Gi"), ("1000", "18000Gi", "18000Gi")]
)
def test_the_claim_uses_the_rendered_class_in_the_zones_of_the_pool(throughput: str, size: str | None, asked: str) -> None:
    chosen = settings(profile="gke-a3", pool={"kind": "none", "zone": "us-east4-a"})
    made = {
        one["kind"]: one
        for one in (manifest(one.shape) for one in render_environment(chosen, PROFILE, extras(lustre=throughput, size=size)))
    }
    kind, claim = made["StorageClass"], made["PersistentVolumeClaim"]["spec"]
    assert claim["storageClassName"] == kind["metadata"]["name"]
    assert claim["resources"]["requests"]["storage"] == asked
    assert kind["parameters"] == {"perUnitStorageThroughput": throughput}
    assert kind["allowedTopologies"] == [{"matchLabelExpressions": [{"key": "topology.gke.io/zone", "values": ["us-east4-a"]}]}]
    assert kind["reclaimPolicy"] == "Retain"


def test_a_second_storage_class_and_a_bucket_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave out --storage-class"):
        extras(lustre="1000", storage_class="fsx")
    with pytest.raises(ConfigError, match=r"cluster\.volume\.claim, which the loop file does not name"):
        render_environment(settings(volume=BUCKET, nemo_image=None), PROFILE, extras(lustre="1000"))


@pytest.mark.parametrize("size", ["10Gi", "1000Gi", "0", "many", "9001Gi"])
def test_a_size_that_no_volume_has_is_refused(size: str) -> None:
    with pytest.raises(ConfigError, match="--size"):
        extras(lustre="1000", size=size)


def test_the_driver_is_named_and_no_other_class_is_asked_for() -> None:
    said = "\n".join(reminders(settings(profile="gke-a3"), PROFILE, extras(lustre="500"), nemo=False))
    assert "LustreCsiDriver=ENABLED" in said
    assert "--storage-class" not in said
