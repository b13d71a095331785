"""`ratchet open`: prints the address of a report or of a page of the Prefect UI, and opens it in a browser."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import approval_stream
from ratchet.flows.cli.lines import is_file_name, named_line
from ratchet.flows.cli.names import complete_any, named_cycle
from ratchet.flows.cli.output import json_option, open_installation, print_json
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home

_SECONDS = 5.0
"""Seconds to wait for an answer of the Prefect server."""


@click.command(name="open")
@click.argument("name", required=False, shell_complete=complete_any)
@click.option("--prefect", is_flag=True, help="Open the page of the Prefect UI also for a line or a cycle.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@json_option
def open_page(name: str | None, prefect: bool, no_browser: bool, as_json: bool) -> None:
    """Print the address of the page of NAME and open it in a browser.

    NAME is LINE, its loop file, or a cycle LINE/NUMBER: the page is its report, which is written first. If NAME is a request
    LINE/NUMBER/training or LINE/NUMBER/rollout, the page is that of the request in the Prefect UI. Without NAME, it is the Prefect UI, or
    the report of the only line if no Prefect server runs. Without a browser, the address is only printed.
    """
    url = _address(open_installation(), name, prefect, as_json)
    opened = not no_browser and _show_in_browser(url)
    if as_json:
        print_json({"url": url, "opened": opened})
    else:
        show(url)


def _address(installation: Installation, name: str | None, prefect: bool, quiet: bool) -> str:
    home = installation.home
    if name is None:
        return _prefect_ui(home) or _report(installation, named_line(installation, None, quiet), "")
    parts = name.removeprefix("approval/").removeprefix("cycle/").split("/")
    if len(parts) == 1 or (not parts[1].isdecimal() and is_file_name(name)):
        line = named_line(installation, name, quiet, reads=True)
        return (_prefect_page(home, [line]) if prefect else None) or _report(installation, line, "")
    cycle = named_cycle(installation, "/".join(parts[:2]), quiet)
    if len(parts) == 3:
        request = approval_stream(cycle.id, parts[2])
        if not installation.ledger.read(request):
            raise ConfigError(f"there is no request {name!r}; `ratchet status` shows the pending ones")
        found = _prefect_page(home, [request, cycle.id])
        if found is None:
            say("no Prefect server answers; this is the report of the cycle (`ratchet approve` and `ratchet reject` answer the request)")
        return found or _report(installation, cycle.line, cycle.id)
    return (_prefect_page(home, [cycle.id]) if prefect else None) or _report(installation, cycle.line, cycle.id)


def _report(installation: Installation, line: str, cycle: str) -> str:
    from ratchet.flows.report.page import write_page

    page = write_page(installation.ledger, installation.home, line, installation.home.reports / f"{line}.html")
    return page.as_uri() + (f"#{cycle}" if cycle else "")


def _prefect_ui(home: Home) -> str | None:
    """Return the address of the Prefect UI, or None if no server is known. That of an external server may be set as PREFECT_UI_URL."""
    from ratchet.flows.prefect.server import is_external, known_url

    url = known_url(home)
    if url is None:
        return None
    return (os.environ.get("PREFECT_UI_URL", "") if is_external() else "").rstrip("/") or url.removesuffix("/api")


def _prefect_page(home: Home, names: list[str]) -> str | None:
    """Return the address of the newest run for the first name that any run has; without one, that of all runs; None without a server."""
    import httpx

    from ratchet.flows.prefect.server import authorization, known_url
    from ratchet.runtime.certificates import certificates

    ui, api = _prefect_ui(home), known_url(home)
    if ui is None or api is None:
        return None
    wanted = {"sort": "EXPECTED_START_TIME_DESC", "limit": 200}
    try:
        reply = httpx.post(
            f"{api}/flow_runs/filter", json=wanted, headers=authorization(home), timeout=_SECONDS, trust_env=False, verify=certificates(api)
        )
    except httpx.HTTPError:
        return None
    runs = reply.json() if reply.status_code == 200 else []
    found = next((run for name in names for run in runs if _is_for(run, name)), None)
    return f"{ui}/v2/runs/flow-run/{found['id']}" if found else f"{ui}/v2/runs"


def _is_for(run: dict[str, Any], name: str) -> bool:
    """Return whether a flow run belongs to a ledger stream, by its parameters, its tags or its name."""
    short = name.partition("/")[2] or name
    given = [*run.get("parameters", {}).values(), *run.get("tags", [])]
    return name in given or short in given or run.get("name") in (short, name.replace("/", " "))


def _show_in_browser(url: str) -> bool:
    """Open the address in a browser. Return False on a machine without a graphical session, where a text browser would block."""
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False
    import webbrowser

    return webbrowser.open(url)
