"""Port to a Kubernetes API server, and its implementation on the official client: apply, create, get, list, watch, log, delete.

Objects are JSON as the API defines it. Errors are Ratchet's: Retryable if a server is away or busy, Permanent if it refuses, with the
server's message. This module handles paths and verbs and does not interpret objects.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.runtime.leading import check_leads

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Object = dict[str, Any]
Query = list[tuple[str, str]]
FIELD_MANAGER = "ratchet"
TIMEOUT = 30.0
"""Timeout of one request, in seconds."""
SLACK = 10.0
"""Seconds after a watch's own end at which a server that sends nothing counts as gone."""


class Kind(NamedTuple):
    """API version, resource name and scope of a kind of object."""

    api: str
    """group/version, or v1 for the core group."""
    plural: str
    namespaced: bool = True


JOB = Kind("batch.volcano.sh/v1alpha1", "jobs")
POD_GROUP = Kind("scheduling.volcano.sh/v1beta1", "podgroups")
COMMAND = Kind("bus.volcano.sh/v1alpha1", "commands")
QUEUE = Kind("scheduling.volcano.sh/v1beta1", "queues", namespaced=False)
POD = Kind("v1", "pods")
NODE = Kind("v1", "nodes", namespaced=False)
SECRET = Kind("v1", "secrets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "networkpolicies")
NODE_POOL = Kind("karpenter.sh/v1", "nodepools", namespaced=False)
NODE_CLAIM = Kind("karpenter.sh/v1", "nodeclaims", namespaced=False)


class Expired(Retryable):
    """The resource version of a watch is too old (HTTP 410). List again."""


class NotFound(Permanent):
    """The object, or the namespace of a new object, does not exist (HTTP 404)."""


class AlreadyExists(Permanent):
    """An object of this name already exists (HTTP 409)."""


class ObjectConflict(Retryable):
    """The object changed meanwhile, is being deleted, or has another uid (HTTP 409). Try again."""


class FieldConflict(ObjectConflict):
    """Other field managers own fields of a server-side apply with other values (HTTP 409). `owners` has the server's words for each."""

    def __init__(self, text: str, owners: tuple[str, ...]) -> None:
        super().__init__(text)
        self.owners = owners


class Listing(NamedTuple):
    """Listed objects, and the resource version to watch from."""

    items: list[Object]
    version: str


class Cluster(Protocol):
    """Port to an API server.

    Every method raises Retryable if the server is away or busy, and Permanent if it refuses.
    """

    def apply(self, kind: Kind, body: Object, dry_run: bool = False, manager: str = FIELD_MANAGER, force: bool = True) -> Object:
        """Apply an object server-side under a field manager and return the result.

        With `force`, take over fields that other managers own. Without it, raises FieldConflict if one of them has another value.
        """
        ...

    def create(self, kind: Kind, body: Object, dry_run: bool = False) -> Object:
        """Create an object and return it. Raises AlreadyExists if the name exists."""

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, or None if it does not exist."""
        ...

    def list(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing:
        """Return the objects of a kind with all of `labels`, in one namespace or in all of them."""
        ...

    def watch(
        self, kind: Kind, since: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, seconds: float = 240.0
    ) -> Iterator[Object]:
        """Yield events {type, object} after resource version `since`, bookmarks included, for at most `seconds`.

        Raises Expired if `since` is too old.
        """

    def version(self) -> str:
        """Return the server's release, for example v1.35.0."""
        ...

    def log(self, pod: str, namespace: str, lines: int, size: int = 4096) -> str:
        """Return the last `lines` lines of the log of a pod's first container, limited to the first `size` bytes of them.

        Raises Permanent if the pod has no log yet or no longer has one.
        """

    def delete(self, kind: Kind, name: str, namespace: str | None = None, grace: int | None = None, uid: str | None = None) -> None:
        """Delete an object and its dependents in the background.

        Does nothing if the object does not exist, or if `uid` is given and the object of that name has another uid. `grace` is the
        grace period in seconds; None keeps the object's own.
        """


class KubernetesCluster:
    """`Cluster` on the connection of the official Python client."""

    def __init__(self, api: ApiClient) -> None:
        self.api = api

    def apply(self, kind: Kind, body: Object, dry_run: bool = False, manager: str = FIELD_MANAGER, force: bool = True) -> Object:
        """Apply an object with a server-side apply PATCH and strict field validation."""
        query = [("fieldManager", manager), ("force", str(force).lower()), ("fieldValidation", "Strict"), *_dry(dry_run)]
        path = _path(kind, body["metadata"].get("namespace"), body["metadata"]["name"])
        return self._json("PATCH", path, query, body, "application/apply-patch+yaml")

    def create(self, kind: Kind, body: Object, dry_run: bool = False) -> Object:
        """Create an object with a POST and strict field validation."""
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"), *_dry(dry_run)]
        return self._json("POST", _path(kind, body["metadata"].get("namespace")), query, body)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, or None if the server answers 404."""
        return self._json("GET", _path(kind, namespace, name), [], absent=True) or None

    def list(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing:
        """Return all objects of a kind in one unpaged request."""
        found = self._json("GET", _path(kind, namespace), _selector(labels))
        return Listing(found["items"], found["metadata"]["resourceVersion"])

    def watch(
        self, kind: Kind, since: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, seconds: float = 240.0
    ) -> Iterator[Object]:
        """Yield the watch's events from one streaming request."""
        query = [("watch", "true"), ("resourceVersion", since), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(int(seconds) or 1))]
        response = self._call("GET", _path(kind, namespace), query + _selector(labels), timeout=(TIMEOUT, seconds + SLACK))
        stream = response.response
        try:
            yield from self._events(stream)
        finally:
            stream.close()  # a connection with unread data must not return to the pool

    def _events(self, stream: Any) -> Iterator[Object]:
        from urllib3.exceptions import HTTPError

        rest = b""
        try:
            for piece in stream.stream(65_536, decode_content=True):
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    event: Object = json.loads(line)
                    if event["type"] == "ERROR":
                        _raise_for_status(int(event["object"].get("code", 500)), "watch", event["object"].get("message", ""))
                    yield event
        except (HTTPError, OSError) as error:
            raise Retryable(f"the watch was interrupted: {error}") from error

    def version(self) -> str:
        """Return the server's release."""
        return str(self._json("GET", "/version", [])["gitVersion"])

    def log(self, pod: str, namespace: str, lines: int, size: int = 4096) -> str:
        """Return the end of a pod's log."""
        from urllib3.exceptions import HTTPError

        query = [("tailLines", str(lines)), ("limitBytes", str(size))]
        response = self._call("GET", _path(POD, namespace, pod) + "/log", query)
        try:
            return str(response.read().decode(errors="replace"))
        except (HTTPError, OSError) as error:
            raise Retryable(f"reading the log of {pod} was interrupted: {error}") from error

    def delete(self, kind: Kind, name: str, namespace: str | None = None, grace: int | None = None, uid: str | None = None) -> None:
        """Delete an object, with a precondition if `uid` is given."""
        options: Object = {"propagationPolicy": "Background"}
        options |= {} if grace is None else {"gracePeriodSeconds": grace}
        options |= {} if uid is None else {"preconditions": {"uid": uid}}
        try:
            self._json("DELETE", _path(kind, namespace, name), [], options, absent=True)
        except ObjectConflict as error:
            if uid is None or "recondition" not in str(error):
                raise
            # The precondition failed: another object has the name now.

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

        if method != "GET":
            check_leads()
        try:
            response = self._call(method, path, query, body, content, absent=absent)
            found: Object = json.loads(response.read() or b"{}") if response is not None else {}
        except (HTTPError, OSError, ValueError) as error:
            raise Retryable(f"the API server's response was interrupted ({method} {path}): {error}") from error
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
        """Return the response, or None if `absent` is allowed and the object does not exist."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*", "Content-Type": content}
        try:
            request = self.api.param_serialize(
                method, path, query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = self.api.call_api(*request, _request_timeout=timeout)
        except ApiException as error:
            status, message = int(error.status or 0), str(error.body or error.reason)
        except (HTTPError, OSError) as error:
            raise Retryable(f"the API server does not answer ({method} {path}): {error}") from error
        else:
            status, message = response.status, ""
            if status < 400:
                return response
            message = str(response.read().decode(errors="replace"))
        if status == 404 and absent:
            return None
        _raise_for_status(status, f"{method} {path}", message)
        return None


def _raise_for_status(status: int, what: str, message: str) -> None:
    """Raise the error for an HTTP status.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/
    """
    reason, message, owners = _parse_status(message)
    text = f"the API server answered {status} to {what}: {message[:500]}"
    if status == 404:
        raise NotFound(text)
    if status == 410:
        raise Expired(text)
    if status == 409 and reason == "AlreadyExists" and "being deleted" not in message:
        raise AlreadyExists(text)
    if status == 409 and owners:
        raise FieldConflict(text, owners)
    if status == 409:
        raise ObjectConflict(text)
    if status in (401, 408, 429) or status >= 500 or status == 0 or (status == 403 and "exceeded quota" in message):
        raise Retryable(text)
    raise Permanent(text)


def _parse_status(body: str) -> tuple[str, str, tuple[str, ...]]:
    """Return (reason, message, conflicting fields with their managers) of the server's Status. Another body is the message."""
    try:
        parsed = json.loads(body)
        causes = (parsed.get("details") or {}).get("causes") or ()
        owners = [f"{one.get('field')}: {one.get('message')}" for one in causes if one.get("reason") == "FieldManagerConflict"]
        return str(parsed.get("reason", "")), str(parsed.get("message", "")), tuple(owners)
    except (ValueError, AttributeError):
        return "", body, ()


def _path(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    root = "/api/v1" if kind.api == "v1" else f"/apis/{kind.api}"
    within = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
    return f"{root}{within}/{kind.plural}" + (f"/{name}" if name else "")


def _selector(labels: Mapping[str, str] | None) -> Query:
    return [("labelSelector", ",".join(f"{key}={value}" for key, value in sorted(labels.items())))] if labels else []


def _dry(dry_run: bool) -> Query:
    return [("dryRun", "All")] if dry_run else []


def connect(context: str | None) -> KubernetesCluster:
    """Connect with a kubeconfig's context, or with the service account of the pod that this process runs in.

    Raises ConfigError if neither is available or the official client is not installed.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        installed = f"ratchet[cluster]=={version('ratchet')}"
        raise ConfigError(f"a loop file with [cluster] needs the extra `cluster`; run pip install '{installed}'") from error
    settings = client.Configuration()
    try:
        # Pass KUBECONFIG explicitly, because the client reads the variable only once, at import.
        config.load_kube_config(os.environ.get("KUBECONFIG"), context=context, client_configuration=settings)
    except config.ConfigException as error:
        if context is not None:
            raise ConfigError(f"cluster.context: {error}") from error
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            raise ConfigError("found neither a kubeconfig nor a service account; set KUBECONFIG or cluster.context") from error
    settings.retries = False  # callers retry failed requests
    settings.connection_pool_maxsize = 32  # each watch holds one connection
    return KubernetesCluster(client.ApiClient(settings))
