"""Entry point of the command line. Imports the module of a command only when needed, so that `ratchet --help` is fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from contracts.errors import ConfigError, Conflict, Permanent, RatchetError, Rejected, Retryable
from flows.cli.terminal import show
from runtime.telemetry import disable_telemetry

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("flows.cli.setup", "Create a starter loop file."),
    "check": ("flows.cli.setup", "Validate a loop file and show how much evidence its decisions need."),
    "adopt": ("flows.cli.setup", "Register the model in production as version 0 of a line."),
    "doctor": ("flows.cli.doctor", "Check packages, storage, services and configuration."),
    "ingest": ("flows.cli.run", "Ingest traces and feedback into the lake."),
    "plan": ("flows.cli.plan", "Show which training method the next cycle would use, and why."),
    "run": ("flows.cli.run", "Run one cycle now."),
    "serve": ("flows.cli.serve", "Run the service: schedules, event triggers, approvals and rollouts."),
    "token": ("flows.cli.token", "Manage the credentials of a line's receiver."),
    "status": ("flows.cli.status", "Show lines, champions, cycles and pending approvals."),
    "approve": ("flows.cli.approvals", "Approve a pending request."),
    "reject": ("flows.cli.approvals", "Reject a pending request; the cycle ends."),
    "cancel": ("flows.cli.approvals", "Cancel the open cycle; the champion keeps serving."),
    "rollback": ("flows.cli.approvals", "Roll back to the previous version."),
    "explain": ("flows.cli.status", "Explain the decisions of a cycle from the ledger."),
    "report": ("flows.cli.status", "Write the report of a line as one HTML file."),
    "verify": ("flows.cli.anchor", "Verify the ledger: its hash chains and its signed exports."),
    "anchor": ("flows.cli.anchor", "Export the signed heads of the ledger."),
    "k8s": ("flows.cli.k8s", "Render manifests, check the cluster, guard gangs and show job logs."),
    "demo": ("flows.cli.demo", "Run the complete loop on this machine with simulated users."),
    "dev": ("flows.cli.dev", "Tools for developing Ratchet: a local Kubernetes test cluster."),
}


class LazyGroup(click.Group):
    """A command group that imports the module of a command on its first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return all command names in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return the command, or return None if the name is unknown."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the command list of the help text without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command; for an unknown name, fail and suggest the most similar name."""
        if args and args[0] not in COMMANDS:
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"unknown command {args[0]!r}" + (f"; did you mean {close[0]!r}?" if close else "; see `ratchet --help`"))
        return super().resolve_command(ctx, args)


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print the version, and the code digest by which training jobs recognise their plans, and exit."""
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import version

    from trainers.code_digest import code_digest

    show(f"ratchet {version('ratchet')} (training code {code_digest()[:12]})")
    context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the digest of the training code.",
)
def cli() -> None:
    """Continuously improve a self-hosted LLM from its production traffic.

    All state of an installation is in the folder RATCHET_HOME (default: ./.ratchet).
    """


def exit_code(error: RatchetError) -> int:
    """Return the exit code: 2 for an invalid request or configuration, 3 for a temporary failure, 1 for any other failure."""
    if isinstance(error, ConfigError | Rejected):
        return 2
    if isinstance(error, Conflict | Retryable):
        return 3
    return 1


def main(args: list[str] | None = None) -> Any:
    """Run the command line. A RatchetError is printed as one message without a traceback, and determines the exit code."""
    os.umask(0o077)  # output files contain users' conversations
    disable_telemetry(os.environ)  # before a command imports a library that would send statistics
    try:
        return cli.main(args=args, prog_name="ratchet", standalone_mode=True)
    except RatchetError as error:
        kind = {2: "error", 3: "retry later"}.get(exit_code(error), "failed" if isinstance(error, Permanent) else "error")
        show(f"{kind}: ", fg="red", bold=True, newline=False, error=True)
        show(str(error), error=True)
        sys.exit(exit_code(error))
    except BrokenPipeError:
        sys.exit(141)


if __name__ == "__main__":
    main()
