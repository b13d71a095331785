"""`ratchet doctor`: checks packages, storage, services and configuration, and suggests a remedy for each problem."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

import click

from contracts.errors import RatchetError
from flows.cli.output import json_option, print_json, table
from flows.config.home import Home

_FLOORS = {"torch": "2.10", "transformers": "5.5", "prefect": "3.6.28", "mlflow": "3.10"}
_TRAIN = ("torch", "transformers", "trl")
_GIGABYTE = 1 << 30


@click.command()
@click.argument("loop", type=click.Path(path_type=Path), required=False)
@json_option
def doctor(loop: Path | None, as_json: bool) -> None:
    """Check this installation, and the loop file at the path LOOP if given.

    Exits with code 1 if any check reports an error.
    """
    home = Home.from_environment()
    findings = [*_packages(), *_plugins(), *_home(home), *_ledger(home), *_prefect(home)]
    if loop is not None:
        findings += _line(home, loop)
    if as_json:
        print_json([{"level": level, "about": about, "text": text} for level, about, text in findings])
    else:
        marks = {"ok": "✓", "note": "·", "error": "✗"}
        table("ratchet doctor", ["", "check", "result"], [[marks[level], about, text] for level, about, text in findings])
    sys.exit(1 if any(level == "error" for level, _, _ in findings) else 0)


Finding = tuple[str, str, str]


def _packages() -> list[Finding]:
    found: list[Finding] = [("ok", "python", sys.version.split()[0])]
    for name in ("prefect", "mlflow", "pyiceberg", "polars", "sqlalchemy", "torch", "transformers", "trl"):
        try:
            have = version(name)
        except PackageNotFoundError:
            remedy = (
                "install ratchet[train] on machines that train or serve models"
                if name in ("torch", "transformers", "trl")
                else "reinstall ratchet"
            )
            found.append(("note" if name in ("torch", "transformers", "trl") else "error", name, f"not installed; {remedy}"))
            continue
        floor = _FLOORS.get(name)
        old = floor is not None and _parts(have) < _parts(floor)
        found.append(("error", name, f"{have} has known vulnerabilities; upgrade to >= {floor}") if old else ("ok", name, have))
    if importlib.util.find_spec("torch"):
        found.append(
            ("note", "gpu", f"nvidia-smi {'found' if shutil.which('nvidia-smi') else 'not found; training and serving use the CPU'}")
        )
    return found


def _parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+")[0].split(".")[:3] if part.isdigit())


def _plugins() -> list[Finding]:
    found: list[Finding] = []
    for group in ("ratchet.rewards", "ratchet.trainers", "ratchet.servers"):
        names = sorted(entry.name for entry in entry_points(group=group))
        found.append(
            ("ok", group, ", ".join(names))
            if names
            else ("error", group, "no entry points found; reinstall the project with `pip install -e .`")
        )
    return found


def _home(home: Home) -> list[Finding]:
    try:
        home.root.mkdir(parents=True, exist_ok=True)
        probe = home.root / ".doctor"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return [("error", "home", f"{home.root} is not writable ({error.strerror}); set RATCHET_HOME to a writable folder")]
    free = shutil.disk_usage(home.root).free / _GIGABYTE
    level = "ok" if free > 5 else "note" if free > 1 else "error"
    return [(level, "home", f"{home.root}, {free:.0f} GB free")]


def _ledger(home: Home) -> list[Finding]:
    from contracts.hash_chain import verify
    from flows.engine.wiring import open_ledger

    try:
        ledger = open_ledger(home)
        streams = ledger.streams("")
        for stream in streams:
            verify(ledger.read(stream))
    except RatchetError as error:
        return [("error", "ledger", str(error))]
    return [("ok", "ledger", f"{len(streams)} streams; all hash chains valid")]


def _prefect(home: Home) -> list[Finding]:
    import httpx

    from flows.prefect.server import known_url

    url = known_url(home)
    if url is None:
        return [("note", "prefect", "no server is running; run `ratchet serve` to start one, or set PREFECT_API_URL")]
    try:
        answer = httpx.get(f"{url}/health", timeout=5, trust_env=False)
    except httpx.HTTPError as error:
        return [("error", "prefect", f"{url} does not respond ({type(error).__name__}); start the server, or unset PREFECT_API_URL")]
    return [("ok" if answer.status_code == 200 else "error", "prefect", f"{url} responds with HTTP {answer.status_code}")]


def _line(home: Home, loop: Path) -> list[Finding]:
    from flows.engine.installation import Installation

    try:
        context = Installation(home).context(loop)
    except RatchetError as error:
        return [("error", "loop file", str(error))]
    view = context.line_view()
    found: list[Finding] = [("ok", "loop file", f"{loop}: line {context.line}")]
    if view.champion is None:
        return [*found, ("note", "line", "no model adopted; run `ratchet adopt`")]
    up = {endpoint.tag for endpoint in context.server.running()}
    if view.champion.tag in up:
        found.append(("ok", "serving", f"champion {view.champion.tag} is running"))
    else:
        found.append(("error", "serving", f"champion {view.champion.tag} is not running; run `ratchet serve` to start it"))
    route = context.router.read(context.line)
    found.append(("ok", "router", route.annotation) if route else ("error", "router", "not running; run `ratchet serve` to start it"))
    return found
