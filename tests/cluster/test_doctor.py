"""Tests of `ratchet k8s doctor` on a real API server: before an installation, and with planted faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.k8s.api.client import SECRET
from ratchet.k8s.manifests.policies import CONTROLLER
from ratchet.k8s.preflight.chart_values import merged
from ratchet.k8s.preflight.installation_facts import LedgerFacts, LineFile, Wanted, collect_installation
from ratchet.k8s.preflight.release_checks import checklist
from tests.cluster.prepared_namespace import PreparedNamespace, loop_file, ratchet
from tests.cluster.whole import CHART
from tests.s3 import S3
from tests.unit.k8s.preflight.test_installation_checks import NOW

pytestmark = pytest.mark.slow


def values_file(prepared: PreparedNamespace, s3: S3, folder: Path, **changes: Any) -> Path:
    given = {
        "image": {"repository": "registry.example/ratchet", "tag": "1"},
        "lines": [{"name": "support", "routerPort": 8080, "receiverPort": 4318, "loop": "…"}],
        "bucket": {
            "exchange": f"s3://{s3.bucket}/exchange",
            "artifacts": f"s3://{s3.bucket}/artifacts",
            "endpoint": s3.settings.endpoint,
            "region": "us-east-1",
        },
        "ledger": {"secret": "db"},
        "prefect": {"database": {"secret": "db", "key": "prefect"}},
        "service": {"volume": {"storageClass": prepared.name}},
        "router": {"volume": {"storageClass": prepared.name}},
    }
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(given | changes))
    return path


def serving(path: Path) -> Path:
    """Let a loop file serve in pods."""
    options = '[serving.options]\nnamespace = "ratchet"\nimage = "vllm/vllm-openai:v1"\nfetch_image = "registry.example/ratchet:1"\n'
    router = '[serving.router_options]\nurl = "http://llm.example"\n'
    path.write_text(path.read_text() + f'[serving]\nkind = "kubernetes"\nrouter = "kubernetes"\n{router}{options}')
    return path


def secret(prepared: PreparedNamespace, name: str, *keys: str) -> None:
    meta = {"name": name, "namespace": prepared.name}
    prepared.cluster.apply(
        SECRET, {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": dict.fromkeys(keys, "hidden-value")}
    )


def test_the_command_walks_the_list_and_ends_with_1_until_all_is_there(prepared: PreparedNamespace, s3: S3, tmp_path: Path) -> None:
    loop = serving(loop_file(prepared, tmp_path, 'profile = "generic-gpu"'))
    values = values_file(prepared, s3, tmp_path)
    command = ("doctor", str(loop), "--values", str(values), "--namespace", prepared.name, "--json")
    first = ratchet(prepared, *command)
    assert first.returncode == 1, first.stderr
    found = {one["about"]: one for one in json.loads(first.stdout)}
    assert found["API server"]["state"] == found["loop file support"]["state"] == "ok"
    wrong = {about for about, one in found.items() if one["stops"]}
    assert wrong == {
        "Secret db",
        "Secret ratchet-keys",
        "storage class of the service",
        "storage class of the router",
        "shared volume of support",
        "nodes of support",
    }
    assert found["Secret ratchet-keys"]["remedy"].startswith("ratchet k8s keys LOOP…")

    prepared.prepare()
    prepared.rig.fake_nodes(2)
    secret(prepared, "db", "url", "prefect")
    secret(prepared, "ratchet-keys", "user-keys.json", "anchor.key", "support.router", "support.span-keys.json")
    provisioner = {"provisioner": "kubernetes.io/no-provisioner"}
    prepared.rig.apply({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": prepared.name}, **provisioner})
    second = ratchet(prepared, *command)
    assert "hidden-value" not in second.stdout + second.stderr
    assert [one for one in json.loads(second.stdout) if one["stops"]] == []
    assert second.returncode == 0
    told = ratchet(prepared, *command[:-1])
    assert told.stdout.splitlines()[-1].endswith("; 0 would stop an installation")
    assert "  helm install ratchet k8s/chart" in told.stdout
    prepared.rig.kubectl("delete", "storageclass", prepared.name)


def test_an_account_without_rights_gets_unknown_items_and_no_value_of_a_secret(prepared: PreparedNamespace, s3: S3, tmp_path: Path) -> None:
    prepared.prepare()
    secret(prepared, "db", "url", "prefect")
    given = yaml.safe_load(values_file(prepared, s3, tmp_path).read_text())
    values = merged(yaml.safe_load((CHART / "values.yaml").read_text()), given)
    wanted = Wanted("ratchet", prepared.name, values, True, "0.1.0", (LineFile("support"),))
    found = {one.about: one for one in checklist(collect_installation(prepared.acting_as(CONTROLLER), wanted, NOW, LedgerFacts()), wanted)}
    assert found["Secret db"].state == "unknown"
    assert "may not look" in found["Secret db"].text
    assert found["storage class"].state == "unknown"
    assert found["rights of this account"].state == "missing"
    assert "create deployments.apps" in found["rights of this account"].text


def test_the_rights_of_the_services_account_are_asked_for(prepared: PreparedNamespace, s3: S3, tmp_path: Path) -> None:
    values = merged(yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load(values_file(prepared, s3, tmp_path).read_text()))
    wanted = Wanted("ratchet", prepared.name, values, True, "0.1.0", ())

    def of_the_service() -> tuple[str, str]:
        items = checklist(collect_installation(prepared.cluster, wanted, NOW, LedgerFacts()), wanted)
        (item,) = [one for one in items if one.about == "rights of ratchet-service"]
        return item.state, item.text

    assert of_the_service() == ("unknown", "the account does not exist; `helm install` makes it")
    prepared.rig.kubectl("create", "serviceaccount", "ratchet-service", "-n", prepared.name)
    assert of_the_service()[0] == "missing"
    rules = ("--verb=*", "--resource=deployments.apps,services,poddisruptionbudgets.policy,networkpolicies.networking.k8s.io,pods")
    prepared.rig.kubectl("create", "role", "models", *rules, "-n", prepared.name)
    bound = ("--role=models", f"--serviceaccount={prepared.name}:ratchet-service")
    prepared.rig.kubectl("create", "rolebinding", "models", *bound, "-n", prepared.name)
    assert of_the_service() == ("ok", "all that model servers and training jobs need")
