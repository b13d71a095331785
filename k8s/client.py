"""The port to a Kubernetes API server, and its implementation on the official client: apply, create, get, list, watch, delete.

Objects are JSON as the API has it. Errors are ours: Retryable where a server is away or busy, Permanent where it refuses, with its
own words. Knows paths and verbs; refuses to know what objects mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from contracts.errors import ConfigError, Permanent, Retryable

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Object = dict[str, Any]
Query = list[tuple[str, str]]
FIELD_MANAGER = "ratchet"
TIMEOUT = 30.0
"""Seconds of one request."""
SLACK = 10.0
"""Seconds beyond a watch's own end after which a server that says nothing counts as gone."""


class Kind(NamedTuple):
    """Where objects of a kind are found."""

    api: str
    """group/version, or v1"""
    plural: str
    namespaced: bool = True


JOB = Kind("batch.volcano.sh/v1alpha1", "jobs")
QUEUE = Kind("scheduling.volcano.sh/v1beta1", "queues", namespaced=False)
POD = Kind("v1", "pods")
NODE = Kind("v1", "nodes", namespaced=False)
SECRET = Kind("v1", "secrets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "networkpolicies")
NODE_POOL = Kind("karpenter.sh/v1", "nodepools", namespaced=False)
NODE_CLAIM = Kind("karpenter.sh/v1", "nodeclaims", namespaced=False)


class Expired(Retryable):
    """The place in a watch is too old (HTTP 410): list again."""


class Taken(Permanent):
    """An object of this name exists already (HTTP 409)."""


class Moved(Retryable):
    """Somebody else changed the object meanwhile, or it still goes, or it is not the one that was meant (HTTP 409): try again."""


class Listing(NamedTuple):
    """A list, and the place to watch from."""

    items: list[Object]
    version: str


class Cluster(Protocol):
    """What we ask of an API server."""

    def apply(self, kind: Kind, body: Object, dry_run: bool = False) -> Object:
        """Server-side apply under our field manager; fields that others own are taken over."""

    def create(self, kind: Kind, body: Object, dry_run: bool = False) -> Object:
        """Taken where the name exists."""

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None: ...

    def list(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing: ...

    def watch(
        self, kind: Kind, since: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, seconds: float = 240.0
    ) -> Iterator[Object]:
        """Events {type, object} after `since`, bookmarks too, for at most so many seconds. Expired where `since` is too old."""

    def log(self, pod: str, namespace: str, lines: int, size: int = 4096) -> str:
        """The last lines of a pod's first container, of them the first `size` bytes. Permanent where it has none yet, or none any more."""

    def delete(self, kind: Kind, name: str, namespace: str | None = None, grace: int | None = None, uid: str | None = None) -> None:
        """In the background; nothing happens where it is gone, or where another object than `uid` has the name now."""


class KubernetesCluster:
    """`Cluster` over the official client's connection."""

    def __init__(self, api: ApiClient) -> None:
        self.api = api

    def apply(self, kind: Kind, body: Object, dry_run: bool = False) -> Object:
        query = [("fieldManager", FIELD_MANAGER), ("force", "true"), ("fieldValidation", "Strict"), *_dry(dry_run)]
        path = _path(kind, body["metadata"].get("namespace"), body["metadata"]["name"])
        return self._json("PATCH", path, query, body, "application/apply-patch+yaml")

    def create(self, kind: Kind, body: Object, dry_run: bool = False) -> Object:
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"), *_dry(dry_run)]
        return self._json("POST", _path(kind, body["metadata"].get("namespace")), query, body)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        return self._json("GET", _path(kind, namespace, name), [], absent=True) or None

    def list(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing:
        found = self._json("GET", _path(kind, namespace), _selector(labels))
        return Listing(found["items"], found["metadata"]["resourceVersion"])

    def watch(
        self, kind: Kind, since: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, seconds: float = 240.0
    ) -> Iterator[Object]:
        query = [("watch", "true"), ("resourceVersion", since), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(int(seconds) or 1))]
        response = self._call("GET", _path(kind, namespace), query + _selector(labels), timeout=(TIMEOUT, seconds + SLACK))
        stream = response.response
        try:
            yield from self._events(stream)
        finally:
            stream.close()  # what was not read cannot be left in the pool

    def _events(self, stream: Any) -> Iterator[Object]:
        from urllib3.exceptions import HTTPError

        rest = b""
        try:
            for piece in stream.stream(65_536, decode_content=True):
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    event: Object = json.loads(line)
                    if event["type"] == "ERROR":
                        _refuse(int(event["object"].get("code", 500)), "watch", event["object"].get("message", ""))
                    yield event
        except (HTTPError, OSError) as error:
            raise Retryable(f"the watch broke off: {error}") from error

    def log(self, pod: str, namespace: str, lines: int, size: int = 4096) -> str:
        from urllib3.exceptions import HTTPError

        query = [("tailLines", str(lines)), ("limitBytes", str(size))]
        response = self._call("GET", _path(POD, namespace, pod) + "/log", query)
        try:
            return str(response.read().decode(errors="replace"))
        except (HTTPError, OSError) as error:
            raise Retryable(f"the log of {pod} broke off: {error}") from error

    def delete(self, kind: Kind, name: str, namespace: str | None = None, grace: int | None = None, uid: str | None = None) -> None:
        options: Object = {"propagationPolicy": "Background"}
        options |= {} if grace is None else {"gracePeriodSeconds": grace}
        options |= {} if uid is None else {"preconditions": {"uid": uid}}
        try:
            self._json("DELETE", _path(kind, namespace, name), [], options, absent=True)
        except Moved as error:
            if uid is None or "recondition" not in str(error):
                raise
            # The precondition does not hold: another object has the name now.

    def _json(
        self,
        method: str,
        path: str,
        query: Query,
        body: Object | None = None,
        content: str = "application/json",
        absent: bool = False,
    ) -> Object:
        from urllib3.exceptions import HTTPError

        try:
            response = self._call(method, path, query, body, content, absent=absent)
            found: Object = json.loads(response.read() or b"{}") if response is not None else {}
        except (HTTPError, OSError, ValueError) as error:
            raise Retryable(f"the API server's answer broke off ({method} {path}): {error}") from error
        return found

    def _call(
        self,
        method: str,
        path: str,
        query: Query,
        body: Object | None = None,
        content: str = "application/json",
        timeout: float | tuple[float, float] = TIMEOUT,
        absent: bool = False,
    ) -> Any:
        """The response; None where `absent` is allowed and the object is."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*", "Content-Type": content}
        try:
            request = self.api.param_serialize(
                method, path, query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = self.api.call_api(*request, _request_timeout=timeout)
        except ApiException as error:
            status, words = int(error.status or 0), str(error.body or error.reason)
        except (HTTPError, OSError) as error:
            raise Retryable(f"the API server does not answer ({method} {path}): {error}") from error
        else:
            status, words = response.status, ""
            if status < 400:
                return response
            words = str(response.read().decode(errors="replace"))
        if status == 404 and absent:
            return None
        _refuse(status, f"{method} {path}", words)
        return None


def _refuse(status: int, what: str, words: str) -> None:
    """The error that an HTTP status stands for. https://kubernetes.io/docs/reference/using-api/api-concepts/"""
    reason, words = _told(words)
    text = f"the API server says {status} to {what}: {words[:500]}"
    if status == 410:
        raise Expired(text)
    if status == 409 and reason == "AlreadyExists" and "being deleted" not in words:
        raise Taken(text)
    if status == 409:
        raise Moved(text)
    if status in (401, 408, 429) or status >= 500 or status == 0 or (status == 403 and "exceeded quota" in words):
        raise Retryable(text)
    raise Permanent(text)


def _told(body: str) -> tuple[str, str]:
    """(reason, message) of the server's Status; another body is a message."""
    try:
        told = json.loads(body)
        return str(told.get("reason", "")), str(told.get("message", ""))
    except (ValueError, AttributeError):
        return "", body


def _path(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    root = "/api/v1" if kind.api == "v1" else f"/apis/{kind.api}"
    within = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
    return f"{root}{within}/{kind.plural}" + (f"/{name}" if name else "")


def _selector(labels: Mapping[str, str] | None) -> Query:
    return [("labelSelector", ",".join(f"{key}={value}" for key, value in sorted(labels.items())))] if labels else []


def _dry(dry_run: bool) -> Query:
    return [("dryRun", "All")] if dry_run else []


def connect(context: str | None) -> KubernetesCluster:
    """By a kubeconfig's context, or by the service account of the pod that we run in. ConfigError where neither is to be had."""
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ConfigError("a loop with [cluster] needs the extra `cluster`: pip install 'ratchet[cluster]'") from error
    settings = client.Configuration()
    try:
        # by name, because the client reads the variable only once, when it is imported
        config.load_kube_config(os.environ.get("KUBECONFIG"), context=context, client_configuration=settings)
    except config.ConfigException as error:
        if context is not None:
            raise ConfigError(f"cluster.context: {error}") from error
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            raise ConfigError("there is no kubeconfig and no service account; set KUBECONFIG or cluster.context") from error
    settings.retries = False  # a request that failed is ours to try again
    settings.connection_pool_maxsize = 32  # each watch holds one
    return KubernetesCluster(client.ApiClient(settings))
