"""The demo's task: requests in natural language, each with exactly one correct kubectl command.

Defines the intents, their phrasings and the slot values. All generated requests depend only on a seed. The simulated users compare a
model's answer with `Request.reference`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from types import MappingProxyType
from typing import Final

APPS: Final = (
    "auth", "billing", "cart", "catalog", "checkout", "email", "events", "frontend", "gateway", "images", "ingest", "inventory",
    "ledger", "notify", "orders", "payments", "pricing", "profile", "ranking", "reports", "search", "shipping", "uploads", "worker",
)  # fmt: skip
NAMESPACES: Final = ("prod", "staging", "dev", "qa", "canary", "demo", "sandbox", "edge")
_SLOTS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "app": APPS,
        "ns": NAMESPACES,
        "count": tuple(str(n) for n in range(1, 13)),
        "lines": ("10", "20", "50", "100", "200", "500"),
        "tag": ("v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9"),
        "port": ("3000", "5000", "8000", "8080", "8443", "9000", "9090"),
    }
)


@dataclass(frozen=True, slots=True)
class Request:
    """One user request: the prompt, the only correct command (`reference`), and the name of its intent."""

    prompt: str
    reference: str
    intent: str


@dataclass(frozen=True, slots=True)
class _Intent:
    command: str
    phrasings: tuple[str, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(name for _, name, _, _ in Formatter().parse(self.command) if name)


_INTENTS: Final[Mapping[str, _Intent]] = MappingProxyType(
    {
        "scale": _Intent(
            "kubectl scale deployment/{app} --replicas={count} -n {ns}",
            (
                "scale {app} to {count} replicas in {ns}",
                "I need {count} replicas of {app} in {ns}",
                "set {app} in {ns} to {count} replicas",
                "run {count} copies of {app} on {ns}",
                "in {ns}, make it {count} replicas for {app}",
                "change the replica count of {app} in {ns} to {count}",
            ),
        ),
        "logs": _Intent(
            "kubectl logs deployment/{app} --tail={lines} -n {ns}",
            (
                "show the last {lines} log lines of {app} in {ns}",
                "tail {lines} lines of logs from {app} in {ns}",
                "what did {app} in {ns} log lately, {lines} lines please",
                "give me {lines} lines of {app} logs in {ns}",
                "in {ns}, print the newest {lines} log lines for {app}",
                "logs for {app} on {ns}, {lines} lines",
            ),
        ),
        "restart": _Intent(
            "kubectl rollout restart deployment/{app} -n {ns}",
            (
                "restart {app} in {ns}",
                "please bounce {app} in {ns}",
                "do a rolling restart of {app} on {ns}",
                "in {ns}, restart the {app} deployment",
                "{app} hangs in {ns}, restart it",
                "cycle all pods of {app} in {ns}",
            ),
        ),
        "pods": _Intent(
            "kubectl get pods -l app={app} -n {ns}",
            (
                "list the pods of {app} in {ns}",
                "which pods does {app} have in {ns}",
                "show me {app} pods on {ns}",
                "get pods for {app} in {ns}",
                "in {ns}, list every pod of {app}",
                "what pods belong to {app} in {ns}",
            ),
        ),
        "describe": _Intent(
            "kubectl describe deployment/{app} -n {ns}",
            (
                "describe {app} in {ns}",
                "show the details of the {app} deployment in {ns}",
                "tell me everything about {app} on {ns}",
                "in {ns}, describe the deployment {app}",
                "give me the full description of {app} in {ns}",
                "how is {app} configured in {ns}",
            ),
        ),
        "image": _Intent(
            "kubectl set image deployment/{app} {app}={app}:{tag} -n {ns}",
            (
                "deploy {tag} of {app} to {ns}",
                "update {app} in {ns} to image {tag}",
                "ship {app} {tag} on {ns}",
                "in {ns}, move {app} to {tag}",
                "set the image of {app} in {ns} to {tag}",
                "upgrade {app} to {tag} in {ns}",
            ),
        ),
        "undo": _Intent(
            "kubectl rollout undo deployment/{app} -n {ns}",
            (
                "roll back {app} in {ns}",
                "undo the last release of {app} in {ns}",
                "revert {app} on {ns} to the previous version",
                "in {ns}, go back one version of {app}",
                "the new {app} in {ns} is broken, take it back",
                "return {app} in {ns} to the version before",
            ),
        ),
        "forward": _Intent(
            "kubectl port-forward deployment/{app} {port} -n {ns}",
            (
                "forward port {port} to {app} in {ns}",
                "let me reach {app} in {ns} on local port {port}",
                "open port {port} of {app} on {ns} on my machine",
                "in {ns}, tunnel port {port} to {app}",
                "connect my port {port} with {app} in {ns}",
                "port forward {app} in {ns}, port {port}",
            ),
        ),
    }
)

INTENTS: Final = tuple(_INTENTS)
NEW_INTENTS: Final = ("undo", "forward")
"""Intents that are almost absent from the base model's training data. They simulate a shift in user demand."""
ESTABLISHED_INTENTS: Final = tuple(name for name in INTENTS if name not in NEW_INTENTS)


def capacity(intents: Sequence[str] | None = None) -> int:
    """Return the number of distinct prompts for `intents`. The default is all intents."""
    return sum(_combinations(_intent(name)) for name in (INTENTS if intents is None else intents))


def requests(seed: int, n: int, intents: Sequence[str] | None = None) -> list[Request]:
    """Return `n` distinct requests, spread evenly over `intents` (default: all) and shuffled.

    The result is the same for the same arguments. Two seeds may produce equal prompts, so a caller that needs disjoint sets must remove
    duplicates. Raises ValueError for an unknown intent, or if fewer than `n` distinct prompts exist.
    """
    names = tuple(INTENTS if intents is None else intents)
    if n > capacity(names):
        raise ValueError(f"cannot generate {n} requests: only {capacity(names)} distinct prompts exist for {', '.join(names)}")
    rng = random.Random(f"ratchet-demo-{seed}")
    streams = [_distinct(name, rng) for name in names]
    drawn: list[Request] = []
    while len(drawn) < n:
        streams = [stream for stream in streams if len(drawn) < n and _append(stream, drawn)]
    rng.shuffle(drawn)
    return drawn


def _intent(name: str) -> _Intent:
    if name not in _INTENTS:
        raise ValueError(f"unknown intent {name!r}; available: {', '.join(INTENTS)}")
    return _INTENTS[name]


def _combinations(intent: _Intent) -> int:
    total = len(intent.phrasings)
    for slot in set(intent.slots):
        total *= len(_SLOTS[slot])
    return total


def _distinct(name: str, rng: random.Random) -> Iterator[Request]:
    """Yield every prompt of one intent once, in random order. Each combination of phrasing and slots is one mixed-radix number."""
    intent = _intent(name)
    slots = sorted(set(intent.slots))
    for number in rng.sample(range(_combinations(intent)), _combinations(intent)):
        number, phrasing = divmod(number, len(intent.phrasings))
        values: dict[str, str] = {}
        for slot in slots:
            number, index = divmod(number, len(_SLOTS[slot]))
            values[slot] = _SLOTS[slot][index]
        yield Request(intent.phrasings[phrasing].format(**values), intent.command.format(**values), name)


def _append(stream: Iterator[Request], drawn: list[Request]) -> bool:
    request = next(stream, None)
    if request is not None:
        drawn.append(request)
    return request is not None
