"""Walks the list of a cluster's first day for an installation by the chart: reads loop files, values, ledger, cluster and buckets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.contracts.errors import ConfigError
from ratchet.flows.config import variables
from ratchet.flows.config.load import load_loop
from ratchet.k8s.preflight.chart_values import Values, merged
from ratchet.k8s.preflight.installation_facts import LedgerFacts, LineFile, Wanted

if TYPE_CHECKING:
    from ratchet.k8s.preflight.items import Item


def examine_installation(
    loops: Sequence[Path], values: Path | None, release: str, namespace: str, context: str | None, now: datetime
) -> list[Item]:
    """Return the items of the list for an installation with these loop files.

    `values` is the values file of the chart, `context` a context of the kubeconfig. Raises ConfigError if the values file is not readable
    or has the wrong form, and if there is no kubeconfig.
    """
    from ratchet.k8s.api.client import connect
    from ratchet.k8s.preflight.installation_facts import collect_installation
    from ratchet.k8s.preflight.release_checks import checklist

    given = _values(values)
    chart = _chart("Chart.yaml")
    lines = tuple(_line(path) for path in loops)
    wanted = Wanted(release, namespace, merged(_chart("values.yaml"), given), values is not None, str(chart["appVersion"]), lines)
    context = context or next((one.loop.cluster.context for one in lines if one.loop is not None and one.loop.cluster is not None), None)
    return checklist(collect_installation(connect(context), wanted, now, look_at_ledger(os.environ.get(variables.LEDGER_URL))), wanted)


def _chart(name: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load((resources.files("ratchet.k8s") / "chart" / name).read_text(encoding="utf-8"))
    return found


def _values(path: Path | None) -> Values:
    import yaml

    if path is None:
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the values file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML; give the file that `helm install --values` gets") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a table of values; give the file that `helm install --values` gets")
    return found


def _line(path: Path) -> LineFile:
    """Read a loop file, and say why it cannot serve in pods."""
    from ratchet.k8s.profiles.profile import load_profile

    try:
        loop = load_loop(path)
        profile = load_profile(loop.cluster.profile, path.parent) if loop.cluster is not None else None
    except ConfigError as error:
        return LineFile(str(path), problem=str(error))
    problems = []
    if loop.serving.router == "local":
        problems.append('serving.router is "local", a process of one pod; set "kubernetes" and serving.router_options.url')
    if loop.serving.kind in ("embedded", "vllm"):
        problems.append(f'serving.kind is "{loop.serving.kind}", a process of one pod; set "kubernetes"')
    return LineFile(loop.line.name, loop, profile, "; ".join(problems))


def look_at_ledger(url: str | None) -> LedgerFacts:
    """Return whether the ledger at a SQLAlchemy URL is in Postgres and can be reached. Nothing is created, and the URL is not repeated."""
    if not url:
        return LedgerFacts()
    if not url.startswith("postgresql"):
        return LedgerFacts("other", f"it is not in Postgres, but {url.partition(':')[0]}")
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        engine = create_engine(url, connect_args={"connect_timeout": 5})
        with engine.connect() as connection:
            version = str(connection.execute(text("SHOW server_version")).scalar())
        engine.dispose()
    except (SQLAlchemyError, ImportError, OSError) as error:
        return LedgerFacts("away", f"Postgres does not answer ({type(error).__name__})")
    return LedgerFacts("postgres", f"Postgres {version.split()[0]} answers")
