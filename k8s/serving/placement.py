"""Says why the pods of a model server do not answer, from the objects of the API server. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Object = dict[str, Any]
_STUCK = {
    "ErrImagePull": "the image cannot be pulled",
    "ImagePullBackOff": "the image cannot be pulled",
    "ErrImageNeverPull": "the image is not on the node, and the profile forbids to pull it",
    "InvalidImageName": "the name of the image is invalid",
    "CreateContainerConfigError": "a Secret or ConfigMap that the pod names does not exist",
    "CreateContainerError": "the container cannot be created",
    "RunContainerError": "the container cannot be started",
    "CrashLoopBackOff": "the container ends again and again",
}
"""Reason for which the kubelet lets a container wait -> the same in words."""


def ready_pods(pods: Sequence[Object]) -> frozenset[tuple[str, str]]:
    """Return the ids of the pods that are ready, each with the time since when. A pod that was not ready meanwhile has another one."""
    return frozenset(
        (str(pod["metadata"]["uid"]), str(condition.get("lastTransitionTime", "")))
        for pod in pods
        for condition in pod.get("status", {}).get("conditions") or ()
        if condition.get("type") == "Ready" and condition.get("status") == "True"
    )


def has_ended(pods: Sequence[Object]) -> bool:
    """Return whether a container of the pods has ended by itself, or because its memory was full: the model may be the cause.

    Pods that are evicted or preempted do not count, and neither does a container that ended with its node, which has come back.
    `of_deployment` leaves out those that are deleted.
    """
    return any(
        _has_ended(status) for pod in pods if not _is_disrupted(pod) for status in pod.get("status", {}).get("containerStatuses") or ()
    )


_WITH_ITS_NODE = ("Unknown", "ContainerStatusUnknown")
"""Reasons for the end of a container of which the runtime or the kubelet knows nothing, because they did not run."""


def _has_ended(status: Object) -> bool:
    ends = [end for when in ("state", "lastState") if (end := (status.get(when) or {}).get("terminated"))]
    excused = sum(end.get("reason") in _WITH_ITS_NODE for end in ends)
    return max(len(ends), int(status.get("restartCount") or 0)) > excused


def _is_disrupted(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one.get("type") == "DisruptionTarget" and one.get("status") == "True" for one in conditions)


def obstacle(deployment: Object, pods: Sequence[Object]) -> str:
    """Return why a Deployment has not enough servers that answer; empty if nothing but time is missing.

    Quota and admission come first, because then there is no pod; then placement, images, and containers that end.
    """
    for condition in deployment.get("status", {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"the API server refuses the pods: {condition.get('message', '')}"
    for pod in pods:
        if found := _of_pod(pod):
            return found
    return ""


def _of_pod(pod: Object) -> str:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
            return f"no node takes the pod {name}: {condition.get('message', '')}"
    for one in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = one.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            ended = _ending(one)
            words, message = _STUCK[waiting["reason"]], waiting.get("message", "")
            return f"pod {name}, container {one['name']}: {words} ({ended or message or waiting['reason']})"
    return ""


def _ending(container: Object) -> str:
    """Return how a container ended last, with the end of its output; empty if it never did."""
    last = container.get("lastState", {}).get("terminated") or {}
    if not last:
        return ""
    reason = last.get("reason", "")
    words = "it needs more memory than its limit" if reason == "OOMKilled" else f"exit code {last.get('exitCode')}"
    output = " ".join(str(last.get("message", "")).split())
    return f"{words}: {output[-400:]}" if output else words


def ready(deployment: Object) -> int:
    """Return the number of servers of a Deployment that answer, with the present template."""
    status = deployment.get("status", {})
    if int(status.get("observedGeneration") or 0) < int(deployment["metadata"].get("generation") or 0):
        return 0
    return min(int(status.get("readyReplicas") or 0), int(status.get("updatedReplicas") or 0))


def of_deployment(pods: Iterable[Object], name: str) -> list[Object]:
    """Return the pods of the version server with this name that are not ending."""
    return [
        pod
        for pod in pods
        if pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == name and "deletionTimestamp" not in pod["metadata"]
    ]
