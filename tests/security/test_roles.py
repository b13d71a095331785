"""What a credential may send depends on its role, from the HTTP request to the lake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.data.senders import Role, Sender
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.receive.receiver import create_app
from ratchet.materializer.receive.sources import SpoolSource
from ratchet.materializer.receive.spool import FolderSpool
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import evaluation, log, logs, span, spans

ALL = [
    spans(span(1), span(2, metadata__reference="2")),
    logs(
        log(1, evaluation("user_feedback", 1, user__id="user-1")),
        log(1, evaluation("user_correction", text="3", user__id="user-1")),
        log(1, evaluation("reviewer_reference", text="4", user__id="user-1")),
    ),
]
"""Requests with one record of each kind: a trace without and with a reference, a rating, a correction and a reference."""
KEPT = {
    (Role.ROUTER,): (1, set()),
    (Role.TRACES,): (2, set()),
    (Role.FEEDBACK,): (0, {"rating", "correction"}),
    (Role.REVIEW,): (0, {"reference"}),
    (Role.OPERATOR,): (2, {"rating", "correction", "reference"}),
    (Role.TRACES, Role.FEEDBACK): (2, {"rating", "correction"}),
}
"""Roles -> number of traces and kinds of feedback that are kept."""


def deliver(datasets: LakeDatasets, folder: Path, sender: Sender, requests: list[dict[str, Any]]) -> IngestReport:
    """Send requests to a receiver as `sender`, and ingest them."""
    client = TestClient(create_app(FolderSpool(folder / "spool"), {"secret": sender}.get))
    for request in requests:
        path = "/v1/logs" if "resourceLogs" in request else "/v1/traces"
        headers = {"authorization": "Bearer secret", "content-type": "application/json"}
        assert client.post(path, content=json.dumps(request), headers=headers).status_code == 200
    source, total = SpoolSource("gateway", folder / "spool"), IngestReport()
    for batch in source.batches():
        total += datasets.ingest(batch)
        source.done(batch)
    assert list(source.batches()) == []
    return total


@pytest.mark.parametrize("roles", list(KEPT), ids="+".join)
def test_a_record_that_the_role_must_not_send_is_quarantined_and_the_others_go_on(tmp_path: Path, roles: tuple[Role, ...]) -> None:
    datasets, (traces, kinds) = make_datasets(tmp_path), KEPT[roles]
    sender = Sender(name="shop", roles=roles)
    report = deliver(datasets, tmp_path, sender, ALL)
    assert (report.traces.kept, report.traces.reasons.get("role_not_allowed", 0)) == (traces, 2 - traces)
    assert (report.feedback.kept, report.feedback.reasons.get("role_not_allowed", 0)) == (len(kinds), 3 - len(kinds))
    assert report.traces.adds_up
    assert report.feedback.adds_up
    assert set(datasets.lake.scan("feedback")["kind"]) == kinds
    bad = datasets.lake.scan("quarantine")
    assert len(bad) == 5 - traces - len(kinds)
    stored = [*datasets.lake.scan("traces")["sender"], *datasets.lake.scan("feedback")["sender"], *bad["sender"]]
    assert set(stored) == {f"{'+'.join(roles)}/shop"}


def test_equal_requests_of_two_senders_are_two_batches(tmp_path: Path) -> None:
    """Otherwise a sender whose records are quarantined could keep out the same records of another one."""
    datasets, rating = make_datasets(tmp_path), [ALL[1]]
    first = deliver(datasets, tmp_path, Sender(name="shop", roles=(Role.TRACES,)), rating)
    second = deliver(datasets, tmp_path, Sender(name="shop", roles=(Role.FEEDBACK,)), rating)
    assert (first.feedback.kept, second.feedback.kept) == (0, 2)
    batches = {row["sender"]: row["batch"] for row in datasets.lake.scan("quarantine").to_dicts()}
    assert len(set(batches.values())) == 2


def test_feedback_of_one_sender_does_not_keep_out_that_of_another(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    forged, genuine = (logs(log(1, evaluation("user_feedback", value, user__id="user-1"))) for value in (0, 1))
    deliver(datasets, tmp_path, Sender(name="mallory", roles=(Role.FEEDBACK,)), [forged])
    report = deliver(datasets, tmp_path, Sender(name="shop", roles=(Role.FEEDBACK,)), [genuine])
    assert (report.feedback.kept, report.feedback.quarantined) == (1, 0)


def test_a_damaged_envelope_costs_only_its_request(tmp_path: Path) -> None:
    datasets, spool = make_datasets(tmp_path), FolderSpool(tmp_path / "spool")
    shop = Sender(name="shop", roles=(Role.TRACES,))
    broken = spool.folder / spool.put_json(shop, json.dumps(spans(span(1))).encode())
    broken.write_bytes(broken.read_bytes()[7:])
    spool.put_json(shop, json.dumps(spans(span(2))).encode())
    reports = [datasets.ingest(batch) for batch in SpoolSource("gateway", tmp_path / "spool").batches()]
    assert [(report.traces.kept, report.traces.reasons) for report in reports] == [(0, {"role_not_allowed": 1}), (1, {})]
    assert set(datasets.lake.scan("traces")["sender"]) == {"traces/shop"}
