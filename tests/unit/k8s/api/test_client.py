"""Tests of the errors for refused requests to an API server: which are retryable and which are permanent."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent, RatchetError, Retryable
from ratchet.k8s.api.client import JOB, POD, AlreadyExists, Expired, KubernetesCluster, ObjectConflict


class Connection:
    """Stand-in for a connection that answers every request with one status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.body = status, json.dumps({"kind": "Status", "reason": reason, "message": message}).encode()

    def param_serialize(self, *_: Any, **__: Any) -> tuple[()]:
        """Accept the arguments of any request."""
        return ()

    def call_api(self, *_: Any, **__: Any) -> SimpleNamespace:
        """Return the response with the given status."""
        return SimpleNamespace(status=self.status, read=lambda: self.body)


BODY = {"metadata": {"name": "x", "namespace": "n"}}


@pytest.mark.parametrize(
    ("status", "reason", "message", "error"),
    [
        (409, "AlreadyExists", 'pods "x" already exists', AlreadyExists),
        (409, "AlreadyExists", 'object is being deleted: pods "x" already exists', ObjectConflict),
        (409, "Conflict", "the object has been modified; please apply your changes to the latest version and try again", ObjectConflict),
        (409, "Conflict", 'Apply failed with 1 conflict: conflict with "kubectl" using v1: .spec.replicas', ObjectConflict),
        (410, "Expired", "too old resource version", Expired),
        (422, "Invalid", "spec.containers: Required value", Permanent),
        (403, "Forbidden", "exceeded quota: team", Retryable),
        (403, "Forbidden", "no", Permanent),
    ],
)
def test_each_refusal_raises_its_error(status: int, reason: str, message: str, error: type[RatchetError]) -> None:
    cluster = KubernetesCluster(Connection(status, reason, message))  # type: ignore[arg-type]
    for ask in (lambda: cluster.apply(POD, BODY), lambda: cluster.create(POD, BODY), lambda: cluster.get(JOB, "x", "n")):
        with pytest.raises(error, match=message[:20]) as caught:
            ask()
        assert type(caught.value) is error


def test_an_object_with_another_uid_is_not_deleted_and_other_conflicts_are_raised() -> None:
    other = "Operation cannot be fulfilled on pods x: Precondition failed: UID in precondition: a, UID in object meta: b"
    KubernetesCluster(Connection(409, "Conflict", other)).delete(POD, "x", "n", uid="a")  # type: ignore[arg-type]
    busy = KubernetesCluster(Connection(409, "Conflict", "the object has been modified"))  # type: ignore[arg-type]
    for uid in ("a", None):
        with pytest.raises(ObjectConflict):
            busy.delete(POD, "x", "n", uid=uid)
