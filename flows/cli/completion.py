"""`ratchet completion`: prints the script that completes commands, lines, cycles and pending requests in a shell."""

from __future__ import annotations

import click

from ratchet.contracts.errors import Permanent
from ratchet.flows.cli.terminal import show


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    For bash, add `eval "$(ratchet completion bash)"` to ~/.bashrc; for zsh, the same with zsh to ~/.zshrc; for fish, add
    `ratchet completion fish | source` to ~/.config/fish/config.fish. Lines, cycles, versions and pending requests are completed from the
    ledger in RATCHET_HOME.
    """
    from click.shell_completion import get_completion_class

    from ratchet.flows.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise Permanent(f"the installed version of click cannot complete in {shell}")
    show(kind(cli, {}, "ratchet", "_RATCHET_COMPLETE").source())
