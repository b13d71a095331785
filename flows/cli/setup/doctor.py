"""`ratchet doctor`: checks packages, storage, services and configuration, and suggests a remedy for each problem."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

import click
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ratchet.contracts.errors import RatchetError
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import complete_line
from ratchet.flows.cli.output import json_option, print_json, table
from ratchet.flows.cli.setup.finding import Finding
from ratchet.flows.cli.terminal import say
from ratchet.flows.config.home import Home
from ratchet.runtime.extensions import ExtensionKind, offers, provider

if TYPE_CHECKING:
    from ratchet.flows.engine.context import LineContext

_CONTROL = ("prefect", "mlflow", "pyiceberg", "polars", "sqlalchemy")
_TRAIN = ("torch", "transformers", "trl")
"""Packages of the extra `train`. A machine without them is complete if it neither trains nor serves models."""
_GIGABYTE = 1 << 30


@click.command()
@click.argument("loop", required=False, shell_complete=complete_line)
@click.option("--gpu", is_flag=True, help="Check the GPUs of this machine instead, and all that training on them needs. Takes a minute.")
@json_option
def doctor(loop: str | None, gpu: bool, as_json: bool) -> None:
    """Check this installation, and a loop file if given.

    LOOP is the path of a loop file, or the name of a line. Exits with code 1 if any check reports an error.
    """
    home = Home.from_environment()
    if gpu:
        findings = list(_gpu(home))
    else:
        findings = [*_packages(), *_plugins(), *_home(home), *_ledger(home), *_prefect(home), *_service(home)]
        if loop is not None:
            findings += _line(home, loop, as_json)
    if as_json:
        print_json([{"level": level, "about": about, "text": text} for level, about, text in findings])
    else:
        marks = {"ok": "✓", "note": "·", "error": "✗"}
        table("ratchet doctor", ["", "check", "result"], [[marks[level], about, text] for level, about, text in findings])
    sys.exit(1 if any(level == "error" for level, _, _ in findings) else 0)


def package_requirements() -> dict[str, SpecifierSet]:
    """Return the versions that Ratchet supports, by package, over all extras. The source is pyproject.toml, by way of the metadata.

    Raises PackageNotFoundError if Ratchet itself is not installed.
    """
    found: dict[str, SpecifierSet] = {}
    for text in requires("ratchet") or ():
        requirement = Requirement(text)
        found[requirement.name] = found.get(requirement.name, SpecifierSet()) & requirement.specifier
    return found


def _packages() -> list[Finding]:
    found: list[Finding] = [("ok", "python", sys.version.split()[0])]
    try:
        supported = package_requirements()
    except PackageNotFoundError:
        return [*found, ("error", "ratchet", "not installed; reinstall ratchet")]
    for name in (*_CONTROL, *_TRAIN):
        found.append(_package(name, supported.get(name, SpecifierSet())))
    if importlib.util.find_spec("torch"):
        found.append(
            ("note", "gpu", f"nvidia-smi {'found' if shutil.which('nvidia-smi') else 'not found; training and serving use the CPU'}")
        )
    return found


def _package(name: str, supported: SpecifierSet) -> Finding:
    """Compare the installed version of a package with the supported ones. Pre-releases count as versions."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        if name in _TRAIN:
            return "note", name, "not installed; install ratchet[train] on machines that train or serve models"
        return "error", name, "not installed; reinstall ratchet"
    if not supported.contains(installed, prereleases=True):
        return "error", name, f"{installed} is not supported; install a version {supported}"
    return "ok", name, installed


def _gpu(home: Home) -> Iterator[Finding]:
    """Yield the findings of trainers/gpu_checks.py, which runs in a process of its own because it loads torch."""
    home.root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ratchet.trainers.gpu_checks", str(home.root)]
    with tempfile.TemporaryFile("w+") as problems, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=problems, text=True) as checks:
        for line in checks.stdout or ():
            level, about, text = json.loads(line)
            say(f"checked: {about}")
            yield level, about, text
        if checks.wait() not in (0, 1):
            problems.seek(0)
            yield "error", "checks", f"the checks ended early: {problems.read().strip()[-300:]}"


def _plugins() -> list[Finding]:
    """List the installed extensions of each kind with their distributions. Nothing is imported."""
    found: list[Finding] = []
    for kind in ExtensionKind:
        installed = offers(kind)
        listed = [f"{name} ({' and '.join(' '.join(provider(entry)) for entry in entries)})" for name, entries in installed.items()]
        twice = [name for name, entries in installed.items() if len(entries) > 1]
        if twice:
            found.append(("error", kind.group, f"{', '.join(listed)}; uninstall all but one distribution with {', '.join(twice)}"))
        elif listed:
            found.append(("ok", kind.group, ", ".join(listed)))
        else:
            found.append(("error", kind.group, "no entry points found; reinstall ratchet"))
    return found


def _home(home: Home) -> list[Finding]:
    """Check the home folder. Does not create it: if there is no installation, the command may have been called in a wrong folder."""
    from ratchet.flows.config.nearby import home_text, remedy_text

    if not home.root.exists():
        remedy = remedy_text(home) or "`ratchet adopt LOOP.toml MODEL_FOLDER` creates one"
        return [("note", "home", f"there is no installation in {home_text(home)}; {remedy}")]
    try:
        probe = home.root / ".doctor"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return [("error", "home", f"{home.root} is not writable ({error.strerror}); set RATCHET_HOME to a writable folder")]
    free = shutil.disk_usage(home.root).free / _GIGABYTE
    level = "ok" if free > 5 else "note" if free > 1 else "error"
    return [(level, "home", f"{home.root}, {free:.0f} GB free")]


def _ledger(home: Home) -> list[Finding]:
    from ratchet.contracts.hash_chain import verify_chain
    from ratchet.flows.composition.ports import open_ledger

    if not home.has_ledger:
        return []
    try:
        ledger = open_ledger(home)
        streams = ledger.streams("")
        for stream in streams:
            verify_chain(ledger.read(stream))
    except RatchetError as error:
        return [("error", "ledger", str(error))]
    return [("ok", "ledger", f"{len(streams)} streams; all hash chains valid")]


def _prefect(home: Home) -> list[Finding]:
    import httpx

    from ratchet.flows.prefect.server import authorization, known_url
    from ratchet.runtime.certificates import certificates

    url = known_url(home)
    if url is None:
        return [("note", "prefect", "no server is running; run `ratchet serve` to start one, or set PREFECT_API_URL")]
    try:
        answer = httpx.post(
            f"{url}/flow_runs/count", json={}, headers=authorization(home), timeout=5, trust_env=False, verify=certificates(url)
        )
    except httpx.HTTPError as error:
        return [("error", "prefect", f"{url} does not respond ({type(error).__name__}); start the server, or unset PREFECT_API_URL")]
    return [("ok" if answer.status_code == 200 else "error", "prefect", f"{url} responds with HTTP {answer.status_code}")]


def _service(home: Home) -> list[Finding]:
    """Check the service and what it reports. The disk and the Prefect server have checks of their own."""
    from ratchet.flows.service.vitals import is_away, problems, take

    lines = sorted(path.name for path in (home.root / "lines").glob("*") if path.is_dir())
    found = take(home, lines, datetime.now(UTC), is_away)
    wrong: list[Finding] = [(one.level, one.about, one.text) for one in problems(found) if one.about != "disk"]
    if any(about == "service" for _, about, _ in wrong):
        return wrong
    if found.service is None:
        return [("note", "service", "no service has run yet; `ratchet serve LOOP.toml` starts it"), *wrong]
    return [("ok", "service", f"process {found.service.pid}, last sign of life at {found.service.at:%H:%M:%S} UTC"), *wrong]


def _line(home: Home, loop: str, quiet: bool) -> list[Finding]:
    from ratchet.flows.composition.installation import Installation

    installation = Installation(home)
    try:
        context = installation.context(named_loop(installation, loop, quiet, reads=True), any_file=True)
    except RatchetError as error:
        return [("error", "loop file", str(error))]
    view = context.line_view()
    found: list[Finding] = [("ok", "loop file", f"{loop}: line {context.line}"), _compute(context)]
    if view.champion is None:
        return [*found, ("note", "line", "no model adopted; run `ratchet adopt`")]
    found += _lake(home, context)
    up = {endpoint.tag for endpoint in context.server.running()}
    if view.champion.tag in up:
        found.append(("ok", "serving", f"champion {view.champion.tag} is running"))
    else:
        found.append(("error", "serving", f"champion {view.champion.tag} is not running; run `ratchet serve` to start it"))
    route = context.router.read(context.line)
    found.append(("ok", "router", route.annotation) if route else ("error", "router", "not running; run `ratchet serve` to start it"))
    return found


def _compute(context: LineContext) -> Finding:
    """Look whether the engine of the heavy work can be used."""
    from ratchet.flows.composition.compute import open_compute

    try:
        return ("ok", "compute", open_compute(context.loop.compute).reach())
    except RatchetError as error:
        return ("error", "compute", str(error))


def _lake(home: Home, context: LineContext) -> list[Finding]:
    """Check that the lake can be read where it lies. A line without a lake gets none from this check."""
    if not home.lake(context.line).exists():
        return []
    try:
        return [("ok", "lake", f"{context.datasets.cursor().traces} traces")]
    except RatchetError as error:
        return [("error", "lake", str(error))]
