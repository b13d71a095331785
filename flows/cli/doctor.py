"""`ratchet doctor`: what is installed, reachable and misconfigured, each with what to do."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

import click

from contracts.errors import RatchetError
from flows.cli.show import json_option, print_json, table
from flows.config.home import Home

_FLOORS = {"torch": "2.10", "transformers": "5.5", "prefect": "3.6.28", "mlflow": "3.10"}
_TRAIN = ("torch", "transformers", "trl")
_GIGABYTE = 1 << 30


@click.command()
@click.argument("loop", type=click.Path(path_type=Path), required=False)
@json_option
def doctor(loop: Path | None, as_json: bool) -> None:
    """Examine this installation, and LOOP if given."""
    home = Home.from_environment()
    findings = [*_packages(), *_plugins(), *_home(home), *_ledger(home), *_prefect(home)]
    if loop is not None:
        findings += _line(home, loop)
    if as_json:
        print_json([{"level": level, "about": about, "text": text} for level, about, text in findings])
    else:
        marks = {"ok": "✓", "note": "·", "error": "✗"}
        table("ratchet doctor", ["", "about", ""], [[marks[level], about, text] for level, about, text in findings])
    sys.exit(1 if any(level == "error" for level, _, _ in findings) else 0)


Finding = tuple[str, str, str]


def _packages() -> list[Finding]:
    found: list[Finding] = [("ok", "python", sys.version.split()[0])]
    for name in ("prefect", "mlflow", "pyiceberg", "polars", "sqlalchemy", "torch", "transformers", "trl"):
        try:
            have = version(name)
        except PackageNotFoundError:
            remedy = (
                "install ratchet[train] on machines that train or serve"
                if name in ("torch", "transformers", "trl")
                else "reinstall ratchet"
            )
            found.append(("note" if name in ("torch", "transformers", "trl") else "error", name, f"not installed; {remedy}"))
            continue
        floor = _FLOORS.get(name)
        old = floor is not None and _parts(have) < _parts(floor)
        found.append(("error", name, f"{have} has known holes; {floor} or newer is needed") if old else ("ok", name, have))
    if importlib.util.find_spec("torch"):
        found.append(
            ("note", "gpu", f"nvidia-smi {'found' if shutil.which('nvidia-smi') else 'not found: training and serving run on the CPU'}")
        )
    return found


def _parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+")[0].split(".")[:3] if part.isdigit())


def _plugins() -> list[Finding]:
    found: list[Finding] = []
    for group in ("ratchet.rewards", "ratchet.trainers", "ratchet.servers"):
        names = sorted(entry.name for entry in entry_points(group=group))
        found.append(("ok", group, ", ".join(names)) if names else ("error", group, "none: install the project (pip install -e .)"))
    return found


def _home(home: Home) -> list[Finding]:
    try:
        home.root.mkdir(parents=True, exist_ok=True)
        probe = home.root / ".doctor"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return [("error", "home", f"{home.root} is not writable ({error.strerror}); set RATCHET_HOME")]
    free = shutil.disk_usage(home.root).free / _GIGABYTE
    level = "ok" if free > 5 else "note" if free > 1 else "error"
    return [(level, "home", f"{home.root}, {free:.0f} GB free")]


def _ledger(home: Home) -> list[Finding]:
    from contracts.chain import verify
    from flows.engine.wiring import open_ledger

    try:
        ledger = open_ledger(home)
        streams = ledger.streams("")
        for stream in streams:
            verify(ledger.read(stream))
    except RatchetError as error:
        return [("error", "ledger", str(error))]
    return [("ok", "ledger", f"{len(streams)} streams, every hash chain is whole")]


def _prefect(home: Home) -> list[Finding]:
    import httpx

    from flows.prefect.server import known_url

    url = known_url(home)
    if url is None:
        return [("note", "prefect", "no server known; `ratchet serve` starts one, or set PREFECT_API_URL")]
    try:
        answer = httpx.get(f"{url}/health", timeout=5, trust_env=False)
    except httpx.HTTPError as error:
        return [("error", "prefect", f"{url} does not answer ({type(error).__name__}); start it, or unset PREFECT_API_URL")]
    return [("ok" if answer.status_code == 200 else "error", "prefect", f"{url} answers {answer.status_code}")]


def _line(home: Home, loop: Path) -> list[Finding]:
    from flows.engine.installation import Installation

    try:
        house = Installation(home).house(loop)
    except RatchetError as error:
        return [("error", "loop file", str(error))]
    view = house.line_view()
    found: list[Finding] = [("ok", "loop file", f"{loop}: line {house.line}")]
    if view.champion is None:
        return [*found, ("note", "line", "no model is adopted yet: run `ratchet adopt`")]
    up = {endpoint.tag for endpoint in house.server.running()}
    if view.champion.tag in up:
        found.append(("ok", "serving", f"champion {view.champion.tag} is up"))
    else:
        found.append(("error", "serving", f"champion {view.champion.tag} is down: `ratchet serve` mends it"))
    route = house.router.read(house.line)
    found.append(("ok", "router", route.annotation) if route else ("error", "router", "down: `ratchet serve` mends it"))
    return found
