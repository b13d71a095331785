"""Admission rules that limit the service to what RBAC cannot express.

RBAC grants verbs on kinds. The service may therefore create any Volcano Job in its namespace, and a pod of it could mount any Secret;
with static pools, the service may delete any NodePool of the cluster. The API server checks the rules of this module before it
stores an object: Kubernetes 1.30 or later, ValidatingAdmissionPolicy, https://kubernetes.io/docs/reference/access-authn-authz/
validating-admission-policy/. The rules are expressions in CEL. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.k8s.manifests.cluster_objects import (
    MatchResources,
    NamedRule,
    PolicyBinding,
    PolicyBindingSpec,
    PolicyCondition,
    PolicyRules,
    PolicyVariable,
    Selector,
    ValidatingPolicy,
    Validation,
)
from ratchet.k8s.manifests.gang_manifest import GANG, NAMESPACE, RATCHET, RAY_SECRET, ROOT_CAPABILITIES
from ratchet.k8s.manifests.pod_objects import Meta, Shape
from ratchet.k8s.manifests.policies import COMPONENT, JOB_ACCOUNT, MODEL_SERVER, dry_run_namespace, service_account
from ratchet.k8s.profiles.profile import Profile

Line = tuple[ClusterSettings, Profile]
"""Settings of a line and its machine profile. All lines of one call have the same namespace."""
NAME_LABEL = "kubernetes.io/metadata.name"
"""Label that the API server sets on every namespace."""


def admission_rules(lines: Sequence[Line]) -> tuple[Shape, ...]:
    """Return the admission policies of the lines that share a namespace, and the bindings that put them in force.

    Raises ConfigError if the lines name different accounts of the service.
    """
    settings = lines[0][0]
    if len(named := sorted({"/".join(service_account(one)) for one, _ in lines})) > 1:
        raise ConfigError(
            f"the lines of the namespace {settings.namespace} name different accounts of the service: {', '.join(named)}; set the same "
            "cluster.account in each"
        )
    policies = [_jobs(lines), _dry_runs(settings), _network(settings)]
    if any(one.pool.karpenter for one, _ in lines):
        policies.append(_pools(settings))
    bindings = [
        PolicyBinding(metadata=one.metadata, spec=PolicyBindingSpec(policy_name=one.metadata.name or "", validation_actions=("Deny",)))
        for one in policies
    ]
    return (*policies, *bindings)


def _jobs(lines: Sequence[Line]) -> ValidatingPolicy:
    """Return the rules for every Volcano Job in the namespace: its pods are pods of a gang of these lines."""
    settings = lines[0][0]
    own_network = any(profile.host_network for _, profile in lines)
    privileged = any(profile.privileged for _, profile in lines)
    added = {name for _, profile in lines for name in profile.capabilities} | set(ROOT_CAPABILITIES)
    secrets = {reference for one, _ in lines for reference in one.secrets.values()}
    mounted = {RAY_SECRET} if any(one.nemo_image for one, _ in lines) else set()
    claims = {one.volume.claim for one, _ in lines if one.volume.claim}
    paths = {mount.partition(":")[0] for _, profile in lines for mount in profile.mounts}
    paths |= {one.volume.mount for one, _ in lines if one.volume.host_path}
    images = {_repository(image) for one, _ in lines for image in (one.image, one.nemo_image) if image}
    sources = [
        "has(volume.emptyDir)",
        f"has(volume.persistentVolumeClaim) && volume.persistentVolumeClaim.claimName in {_list(claims)}",
        f"has(volume.hostPath) && volume.hostPath.path in {_list(paths)}",
        f"has(volume.secret) && volume.secret.secretName in {_list(mounted)}",
    ]
    values = [
        "has(one.valueFrom.fieldRef)",
        f"has(one.valueFrom.secretKeyRef) && (one.valueFrom.secretKeyRef.name + '/' + one.valueFrom.secretKeyRef.key) in {_list(secrets)}",
    ]
    shared = ["hostPID", "hostIPC", *([] if own_network else ["hostNetwork"])]
    rights = "container.securityContext.capabilities"
    confined = f"has(container.securityContext) && has({rights}) && has({rights}.drop) && 'ALL' in {rights}.drop && "
    confined += f"(!has({rights}.add) || {rights}.add.all(name, name in {_list(added)}))"
    if not privileged:
        confined += " && !(has(container.securityContext.privileged) && container.securityContext.privileged)"
        confined += " && has(container.securityContext.allowPrivilegeEscalation) && !container.securityContext.allowPrivilegeEscalation"
    named = " || ".join(f"container.image == {_text(name)} || container.image.startsWith({_text(name + ':')}) || "
                        f"container.image.startsWith({_text(name + '@')})" for name in sorted(images))  # fmt: skip
    queues = _list({one.queue for one, _ in lines})
    checks = [
        (f"object.spec.queue in {queues}", "the queue is not a queue of these lines"),
        ("!has(object.spec.volumes) || size(object.spec.volumes) == 0", "volumes of the Job itself are not allowed"),
        (
            "!has(object.spec.plugins) || object.spec.plugins.all(name, name in ['svc', 'env'])",
            "only the plugins svc and env are allowed",
        ),
        (
            f"variables.pods.all(pod, has(pod.serviceAccountName) && pod.serviceAccountName == {_text(JOB_ACCOUNT)} && "
            "has(pod.automountServiceAccountToken) && !pod.automountServiceAccountToken)",
            f"a pod must run as {JOB_ACCOUNT}, without a token",
        ),
        (
            "variables.pods.all(pod, !has(pod.nodeName) && !has(pod.initContainers) && !has(pod.ephemeralContainers) && "
            + " && ".join(f"!(has(pod.{name}) && pod.{name})" for name in shared) + ")",
            "a pod must not name its node, have other containers, or use namespaces of its node",
        ),
        (
            f"variables.pods.all(pod, !has(pod.volumes) || pod.volumes.all(volume, {_any(sources)}))",
            "a volume is none of the line's: other Secrets, claims and paths of the node are not allowed",
        ),
        (
            f"variables.pods.all(pod, pod.containers.all(container, !has(container.envFrom) && (!has(container.env) || "
            f"container.env.all(one, !has(one.valueFrom) || {_any(values)}))))",
            "a variable is from a Secret that is not in cluster.secrets",
        ),
        (f"variables.pods.all(pod, pod.containers.all(container, {named}))", "the image is not from the line's repositories"),
        (f"variables.pods.all(pod, pod.containers.all(container, {confined}))", "a container must drop all capabilities, and add none"),
    ]  # fmt: skip
    return _policy(
        f"ratchet-jobs-{settings.namespace}",
        _rule("batch.volcano.sh", "jobs", "CREATE", "UPDATE"),
        checks,
        namespace=settings.namespace,
        variables=(PolicyVariable(name="pods", expression="object.spec.tasks.map(task, task.template.spec)"),),
    )


def _dry_runs(settings: ClusterSettings) -> ValidatingPolicy:
    """Return the rule for the namespace of dry runs: no pod is ever stored there."""
    space = dry_run_namespace(settings)
    return _policy(
        f"ratchet-dry-runs-{settings.namespace}",
        _rule("", "pods", "CREATE"),
        [("has(request.dryRun) && request.dryRun", "this namespace is for dry runs only")],
        namespace=space,
    )


def _network(settings: ClusterSettings) -> ValidatingPolicy:
    """Return the rule for network policies that the service changes.

    Each is about the pods of one gang or about model servers, or opens nothing but the way to model servers, and it names its peers.
    """
    labels, peer = "body.spec.podSelector.matchLabels", "peer.podSelector.matchLabels"
    gang = f"has({labels}) && '{GANG}' in {labels}"
    server = f"has({labels}) && '{COMPONENT}' in {labels} && {labels}['{COMPONENT}'] == '{MODEL_SERVER}'"
    to_server = f"has(peer.podSelector) && has({peer}) && '{COMPONENT}' in {peer} && {peer}['{COMPONENT}'] == '{MODEL_SERVER}'"
    way = "!has(body.spec.ingress) && body.spec.policyTypes == ['Egress'] && has(body.spec.egress) && "
    way += f"body.spec.egress.all(one, has(one.to) && one.to.all(peer, {to_server}))"
    named = "(!has(object.spec.egress) || object.spec.egress.all(one, has(one.to) && size(one.to) > 0)) && "
    named += "(!has(object.spec.ingress) || object.spec.ingress.all(one, has(one.from) && size(one.from) > 0))"
    return _policy(
        f"ratchet-network-{settings.namespace}",
        _rule("networking.k8s.io", "networkpolicies", "CREATE", "UPDATE", "DELETE"),
        [
            (_each(_any([gang, server, way])), "the service may change only the network policies of gangs and of model servers"),
            (f"request.operation == 'DELETE' || {_any([named])}", "a network policy of the service must name the peers of all traffic"),
        ],
        namespace=settings.namespace,
        condition=_by_the_service(settings),
    )


def _pools(settings: ClusterSettings) -> ValidatingPolicy:
    """Return the rule for Karpenter's objects that the service changes: they have the label of its namespace."""
    own = f"has(body.metadata.labels) && '{NAMESPACE}' in body.metadata.labels && "
    own += f"body.metadata.labels['{NAMESPACE}'] == {_text(settings.namespace)}"
    return _policy(
        f"ratchet-pools-{settings.namespace}",
        _rule("karpenter.sh", ("nodepools", "nodeclaims"), "CREATE", "UPDATE", "DELETE"),
        [(_each(own), f"the service may change only objects with the label {NAMESPACE}: {settings.namespace}")],
        condition=_by_the_service(settings),
    )


def _policy(
    name: str,
    rule: NamedRule,
    checks: Iterable[tuple[str, str]],
    namespace: str | None = None,
    condition: PolicyCondition | None = None,
    variables: tuple[PolicyVariable, ...] | None = None,
) -> ValidatingPolicy:
    where = Selector(match_labels={NAME_LABEL: namespace}) if namespace else None
    return ValidatingPolicy(
        metadata=Meta(name=name, labels=dict(RATCHET)),
        spec=PolicyRules(
            match_constraints=MatchResources(namespace_selector=where, resource_rules=(rule,)),
            match_conditions=(condition,) if condition else None,
            variables=variables,
            validations=tuple(Validation(expression=expression, message=message) for expression, message in checks),
        ),
    )


def _rule(group: str, resources: str | tuple[str, ...], *operations: str) -> NamedRule:
    named = (resources,) if isinstance(resources, str) else resources
    return NamedRule(api_groups=(group,), api_versions=("*",), operations=operations, resources=named)


def _by_the_service(settings: ClusterSettings) -> PolicyCondition:
    user = ":".join(("system:serviceaccount", *service_account(settings)))
    return PolicyCondition(name="by-the-service", expression=f"request.userInfo.username == {_text(user)}")


def _each(condition: str) -> str:
    """Return an expression that requires `condition` on `body` for the new object and for the one that it replaces."""
    new, old = (_any([condition.replace("body.", f"{name}.")]) for name in ("object", "oldObject"))
    return f"(request.operation == 'DELETE' || {new}) && (request.operation == 'CREATE' || {old})"


def _any(expressions: Sequence[str]) -> str:
    return "(" + " || ".join(f"({expression})" for expression in expressions) + ")"


def _text(value: str) -> str:
    """Return a string literal of CEL. JSON's escapes are a subset of CEL's."""
    return json.dumps(value)


def _list(values: Iterable[str]) -> str:
    return json.dumps(sorted(values))


def _repository(image: str) -> str:
    """Return an image's name without tag and digest, so that an upgrade needs no new rules."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    return f"{head}/{last.partition(':')[0]}" if head else last.partition(":")[0]
