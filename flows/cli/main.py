"""Entry point. Loads a command's module only when it is called, so that `ratchet --help` is instant."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from contracts.errors import ConfigError, Conflict, Permanent, RatchetError, Rejected, Retryable

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("flows.cli.setup", "Write a loop file to start from."),
    "check": ("flows.cli.setup", "Check a loop file and say what it will do and cost."),
    "adopt": ("flows.cli.setup", "Name the model that serves today: version 0."),
    "doctor": ("flows.cli.doctor", "Say what is installed, reachable and misconfigured."),
    "ingest": ("flows.cli.work", "Bring traces and feedback into the lake."),
    "plan": ("flows.cli.plan", "Show which method a cycle would take now, and what would change it."),
    "run": ("flows.cli.work", "Run one cycle now."),
    "serve": ("flows.cli.serve", "Run the service: Prefect flows, schedules, events, approvals."),
    "status": ("flows.cli.look", "Show lines, champions, open cycles and what they wait for."),
    "approve": ("flows.cli.people", "Approve what a cycle asks for."),
    "reject": ("flows.cli.people", "Reject what a cycle asks for."),
    "cancel": ("flows.cli.people", "End the open cycle; the champion goes on serving."),
    "rollback": ("flows.cli.people", "Go back to the version before, now."),
    "explain": ("flows.cli.look", "Tell why a cycle did what it did, from the ledger."),
    "report": ("flows.cli.look", "Write a line's report as one HTML file."),
    "verify": ("flows.cli.look", "Check the ledger's hash chains."),
    "k8s": ("flows.cli.k8s", "Print what a line's cluster must hold; find what would stop its jobs there."),
    "demo": ("flows.cli.demo", "The whole loop on this machine, in minutes."),
    "dev": ("flows.cli.dev", "For developing Ratchet itself: a Kubernetes cluster on this machine."),
}


class LazyGroup(click.Group):
    """Commands by name; their modules are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {close[0]!r}?" if close else "; see ratchet --help"))
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ratchet")
def cli() -> None:
    """Ratchet turns the production traffic of a self-hosted LLM into better versions of that LLM.

    All state of an installation lies in one folder: RATCHET_HOME (default ./.ratchet).
    """


def exit_code(error: RatchetError) -> int:
    """2: what was asked is wrong; 3: not now; 1: everything else that failed."""
    if isinstance(error, ConfigError | Rejected):
        return 2
    if isinstance(error, Conflict | Retryable):
        return 3
    return 1


def main(args: list[str] | None = None) -> Any:
    """Runs the command; errors that Ratchet raises on purpose are one clear message, never a traceback."""
    os.umask(0o077)  # what is written holds users' conversations
    try:
        return cli.main(args=args, prog_name="ratchet", standalone_mode=True)
    except RatchetError as error:
        kind = {2: "error", 3: "not now"}.get(exit_code(error), "failed" if isinstance(error, Permanent) else "error")
        click.secho(f"{kind}: ", fg="red", bold=True, nl=False, err=True)
        click.echo(str(error), err=True)
        sys.exit(exit_code(error))
    except BrokenPipeError:
        sys.exit(141)


if __name__ == "__main__":
    main()
