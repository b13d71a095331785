"""`ratchet proxy`: the configuration of a proxy that bypasses the router while it is down."""

from __future__ import annotations

import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratchet.contracts.errors import ConfigError, RatchetError, Retryable
from ratchet.flows.cli.lines import named_line, named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import open_installation
from ratchet.flows.cli.terminal import say, show
from ratchet.router.bypass import Proxy, proxy_config
from ratchet.runtime.artifacts import write_atomic

if TYPE_CHECKING:
    from ratchet.flows.composition.installation import Installation

_PAUSE = 2.0
"""Seconds between two looks at the champion's address."""


@click.command()
@line_argument()
@click.option(
    "--for", "kind", type=click.Choice([one.value for one in Proxy]), default=Proxy.HAPROXY.value, show_default=True, help="Kind of proxy."
)
@click.option("--listen", default="127.0.0.1:8000", show_default=True, metavar="ADDRESS:PORT", help="Where the proxy listens.")
@click.option("--write", "target", type=click.Path(path_type=Path, dir_okay=False), help="Write the configuration to this file.")
@click.option("--follow", is_flag=True, help="Keep running, and write the file again when the champion or its address changes.")
@click.option("--then", "command", metavar="COMMAND", help="Command that makes the proxy read the file, run after each change.")
def proxy(line: str, kind: str, listen: str, target: Path | None, follow: bool, command: str | None) -> None:
    """Print the configuration of a proxy that sends requests to the router of LINE, and to the champion's model server while it is down.

    LINE is the name of a line or the path of its loop file. The service must run. Answers that bypass the router leave no trace.
    """
    if target is None and (follow or command):
        raise ConfigError("--follow and --then need --write FILE")
    installation = open_installation()
    name = named_line(installation, line, quiet=True)
    file = named_loop(installation, line, quiet=True)
    if target is None:
        show(_config(installation, name, file, Proxy(kind), listen), newline=False)
        return
    applied = ""
    while True:
        try:
            text = _config(installation, name, file, Proxy(kind), listen)
            if text != applied:
                _apply(target, text, command)
                applied = text
        except RatchetError as error:  # a champion that starts again, or a rollback in progress: the proxy keeps its configuration
            if not follow:
                raise
            say(f"not changed: {error}")
        if not follow:
            return
        time.sleep(_PAUSE)


def _config(installation: Installation, line: str, file: Path, kind: Proxy, listen: str) -> str:
    context, champion = installation.context(file, late=True), installation.line(line).champion
    if champion is None:
        raise ConfigError(f"line {line} has no model; `ratchet adopt {file} FOLDER` registers one")
    found = next((endpoint for endpoint in context.server.running() if endpoint.tag == champion.tag), None)
    if found is None:
        raise Retryable(f"no server of {champion.tag} runs; `ratchet serve {file}` starts it")
    if found.host:
        raise ConfigError(
            f"{champion.tag} is loaded into the process of {found.host}, which answers to the names of the line itself, so a proxy "
            'does not reach the adapter; use serving.adapters = "own server" or "merged"'
        )
    return proxy_config(kind, line, champion.tag, listen, context.router.url(), found.url)


def _apply(target: Path, text: str, command: str | None) -> None:
    """Write the file and run the command. Raises Retryable if the command fails."""
    write_atomic(target, text.encode())
    say(f"{target}: {text.splitlines()[0].removeprefix('# ')}")
    if command and (code := subprocess.run(shlex.split(command), check=False).returncode):
        raise Retryable(f"`{command}` failed with exit code {code}")
