"""Opens the extensions of one line: those that its loop file names, and all installed dialects and checks, which apply without a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.extension import ExtensionVersion
from ratchet.contracts.loop import GateSettings, Loop, SourceSettings
from ratchet.contracts.ports import Artifacts, Check, Dialect, Metrics, Router, Server, TraceSource, Trainer
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.config.home import Home
from ratchet.flows.core.rollouts.rollout import candidate_share
from ratchet.runtime.extensions import Extension, ExtensionKind, load, nearest, offers

BUILT_IN_CHECKS = ("coverage", "quality", "slices", "erosion", "agreement", "length", "cut", "safety", "suites")
"""Names of Ratchet's own checks, in the order in which the gate applies them. The other installed checks follow in the order of names."""


@dataclass(frozen=True)
class LineExtensions:
    """The opened extensions of a line."""

    sources: tuple[TraceSource, ...]
    dialects: Mapping[str, Dialect]
    checks: tuple[Check, ...]
    server: Server
    router: Router
    metrics: Metrics
    trainers: Mapping[str, Trainer]
    """Method -> its trainer."""
    versions: Mapping[str, tuple[ExtensionVersion, ...]]
    """Kind -> code versions of the extensions that influence decisions: dialects, checks, metrics and trainers."""


def open_extensions(loop: Loop, folder: Path, home: Home, artifacts: Artifacts, gate: GateSettings) -> LineExtensions:
    """Open all extensions of a line. `folder` is that of the loop file; `gate` are the settings for the checks.

    Raises ConfigError if an extension is not installed, cannot be imported, or rejects its options.
    """
    line = loop.line.name
    dialects = {name: load(ExtensionKind.DIALECT, name) for name in offers(ExtensionKind.DIALECT)}
    checks = _checks(gate)
    metrics = load(ExtensionKind.METRICS, loop.rollout.metrics, "rollout.metrics")
    trainers = {
        method: load(ExtensionKind.TRAINER, loop.training.trainer(method), f"training.{method}_on") for method in loop.training.methods
    }
    place = home.lake(line)
    where = place if place.is_shared else place.folder
    return LineExtensions(
        sources=open_sources(loop, folder, home),
        dialects={name: _named(dialect, {}, "dialect") for name, dialect in dialects.items()},
        checks=tuple(_named(check, gate.checks.get(check.name, {}), f"gate.checks.{check.name}", gate) for check in checks),
        server=open_server(loop, folder, home, artifacts),
        router=open_router(loop, home),
        metrics=metrics.create(where, options=loop.rollout.metrics_options, where="rollout.metrics_options"),
        trainers={method: _trainer(trainer, method) for method, trainer in trainers.items()},
        versions={
            ExtensionKind.DIALECT.value: _identities(*dialects.values()),
            ExtensionKind.CHECK.value: _identities(*checks),
            ExtensionKind.METRICS.value: _identities(metrics),
            ExtensionKind.TRAINER.value: _identities(*trainers.values()),
        },
    )


def open_sources(loop: Loop, folder: Path, home: Home) -> tuple[TraceSource, ...]:
    """Open the sources of a line. `folder` is that of the loop file. Raises ConfigError if one is not installed or rejects its options."""
    return tuple(open_source(source, folder, home, loop.line.name) for source in loop.sources)


def open_source(settings: SourceSettings, folder: Path, home: Home, line: str) -> TraceSource:
    """Open a source of a loop file. `folder`, that of the loop file, is where relative paths start.

    The receiver's source reads the line's spool. Any other source may keep its state in a folder of its own.
    """
    state = home.spool(line) if settings.kind == "receiver" else home.source(line, settings.name)
    where = f"sources.{settings.name}.options"
    source: TraceSource = load(ExtensionKind.SOURCE, settings.kind, f"sources.{settings.name}.kind").create(
        settings, folder, state, options=settings.options, where=where
    )
    return source


def open_trainers(loop: Loop) -> dict[str, Trainer]:
    """Open the trainers of the loop file's methods. Raises ConfigError if one is not installed or trains another method."""
    return {
        method: _trainer(load(ExtensionKind.TRAINER, loop.training.trainer(method), f"training.{method}_on"), method)
        for method in loop.training.methods
    }


def _trainer(extension: Extension, method: str) -> Trainer:
    trainer: Trainer = extension.create(options={}, where=f"training.{method}_on")
    if trainer.method != method:
        raise ConfigError(f"training.{method}_on: trainer {extension.name!r} trains {trainer.method}, not {method}")
    return trainer


def _checks(gate: GateSettings) -> list[Extension]:
    """Load all installed checks in their order. Raises ConfigError if a built-in one is missing, because the gate would be weaker."""
    installed = offers(ExtensionKind.CHECK)
    missing = [name for name in BUILT_IN_CHECKS if name not in installed]
    if missing:
        raise ConfigError(
            f"built-in checks of the gate are not installed: {', '.join(missing)}; the entry points of the installation are older than its "
            "code: install it again (in a clone, `make install`)"
        )
    for name in gate.checks:
        if name not in installed:
            raise ConfigError(
                f"gate.checks.{name}: no check {name!r} is installed{nearest(name, list(installed))}; installed: {', '.join(installed)}"
            )
    return [load(ExtensionKind.CHECK, name) for name in (*BUILT_IN_CHECKS, *(name for name in installed if name not in BUILT_IN_CHECKS))]


def open_server(loop: Loop, folder: Path, home: Home, artifacts: Artifacts) -> Server:
    """Open the model servers of a line. `folder` is that of the loop file.

    Raises ConfigError if their extension is not installed, rejects its options, or does not serve adapters as the loop file wants them.
    """
    serving = loop.serving
    extension = load(ExtensionKind.SERVER, serving.kind, "serving.kind")
    server: Server = extension.create(
        home.serving(loop.line.name), artifacts, loop.line.served_model, options=serving.options, where="serving.options"
    )
    if serving.kind == "kubernetes":
        from ratchet.k8s.serving.models import ClusterServer

        if isinstance(server, ClusterServer):
            server.join(loop.line.name, folder)
    if serving.adapters != "merged" and not server.capabilities.adapters:
        raise ConfigError(
            f'serving.adapters = "{serving.adapters}": the server {serving.kind!r} serves no adapters; set it to "merged", or use another '
            "server"
        )
    if serving.adapters == "shared" and not server.capabilities.sharing:
        raise ConfigError(
            f'serving.adapters = "shared": the server {serving.kind!r} loads no adapters into a running process; set it to "own server" or '
            '"merged", or use the server "vllm" or "embedded"'
        )
    return server


def open_router(loop: Loop, home: Home) -> Router:
    """Open the router of a line. Raises ConfigError if its extension is not installed or rejects its options."""
    from ratchet.local.router import LocalRouter

    line, serving = loop.line.name, loop.serving
    places = home.serving(line), home.receiver(line), open_credentials(home, line).ensure_router()
    assumed = loop.governance.consent == "assumed"
    extension = load(ExtensionKind.ROUTER, serving.router, "serving.router")
    router: Router = extension.create(*places, serving.router_port, assumed, options=serving.router_options, where="serving.router_options")
    if isinstance(router, LocalRouter):
        router.join(home.router_process, line)
    if serving.router == "kubernetes":
        from ratchet.k8s.api.client import connect
        from ratchet.k8s.serving.gateway import namespace_of
        from ratchet.k8s.serving.router import ClusterRouter

        if isinstance(router, ClusterRouter) and router.can_bypass:
            router.join(line, namespace_of(serving.kind, serving.options), lambda: connect(serving.options.get("context")))
    if serving.router == "gateway":
        from ratchet.k8s.serving.gateway import GatewayRouter, namespace_of

        if isinstance(router, GatewayRouter):
            shares = [candidate_share(weight, loop.rollout) for weight in loop.rollout.steps]
            router.join(line, namespace_of(serving.kind, serving.options), shares)
    return router


def _named(extension: Extension, options: Mapping[str, Any], where: str, *given: Any) -> Any:
    """Create a dialect or a check. Raises ConfigError unless it has the name of its entry point, by which records and verdicts name it."""
    made = extension.create(*given, options=options, where=where)
    if getattr(made, "name", None) != extension.name:
        raise ConfigError(
            f"{extension.kind} {extension.name!r} of {extension.distribution}: its attribute `name` must be {extension.name!r}"
        )
    return made


def _identities(*extensions: Extension) -> tuple[ExtensionVersion, ...]:
    return tuple(extension.identity() for extension in extensions)
