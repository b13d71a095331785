"""Values with which the tests render the chart."""

from __future__ import annotations

from typing import Any

from tests.cluster.rig.cluster import REPO

CHART = REPO / "k8s" / "chart"
LOOP = '[line]\nname = "support"\n'
VALUES: dict[str, Any] = {
    "image": {"repository": "registry.example/ratchet", "tag": "1"},
    "lines": [{"name": "support", "routerPort": 8080, "receiverPort": 4318, "loop": LOOP}],
    "bucket": {"exchange": "s3://exchange/x", "artifacts": "s3://artifacts/a"},
    "ledger": {"secret": "ratchet-db"},
    "lake": {"warehouse": "s3://lakes/l", "catalog": {"secret": "ratchet-db", "key": "catalog"}},
    "prefect": {"database": {"secret": "ratchet-db", "key": "prefect"}},
}
STANDBY: dict[str, Any] = {
    "service": {"replicas": 2},
    "mlflow": {"url": "http://mlflow.example"},
    "bucket": {**VALUES["bucket"], "anchors": "s3://anchors/n"},
}
"""Changes of VALUES for a second pod of the service."""
