"""Entry point of the command line. Imports the module of a command only when needed, so that `ratchet --help` is fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import click

from ratchet.contracts.errors import ConfigError, Conflict, Permanent, RatchetError, Rejected, Retryable, Unwritable
from ratchet.flows.cli.terminal import show
from ratchet.flows.config import variables
from ratchet.runtime.telemetry import disable_telemetry

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("ratchet.flows.cli.setup.starter", "Create a starter loop file."),
    "sources": ("ratchet.flows.cli.setup.sources", "Try a file, folder or API of traces before a line reads it."),
    "check": ("ratchet.flows.cli.setup.check", "Validate a loop file and show how much evidence its decisions need."),
    "adopt": ("ratchet.flows.cli.setup.adopt", "Register the model in production as version 0 of a line."),
    "takeover": ("ratchet.flows.cli.setup.takeover", "Let a line belong to another loop file."),
    "doctor": ("ratchet.flows.cli.setup.doctor", "Check packages, storage, services and configuration."),
    "token": ("ratchet.flows.cli.setup.token", "Manage the credentials of a line's receiver."),
    "serve": ("ratchet.flows.cli.serve", "Run the service: schedules, event triggers, approvals and rollouts."),
    "status": ("ratchet.flows.cli.look.status", "Show lines, champions, cycles and pending approvals."),
    "logs": ("ratchet.flows.cli.look.logs", "Show what a cycle did, and follow it."),
    "jobs": ("ratchet.flows.cli.look.jobs", "List the training jobs of all lines."),
    "history": ("ratchet.flows.cli.look.history", "List all cycles and versions of a line."),
    "diff": ("ratchet.flows.cli.look.diff", "Compare two versions of a line."),
    "explain": ("ratchet.flows.cli.look.explain", "Explain the decisions of a cycle from the ledger."),
    "card": ("ratchet.flows.cli.look.card", "Show the dataset card of a cycle."),
    "model": ("ratchet.flows.cli.look.model", "Copy the model of a version, verified."),
    "report": ("ratchet.flows.cli.look.explain", "Write the report of a line as one HTML file."),
    "open": ("ratchet.flows.cli.look.browser", "Open a report or a page of the Prefect UI in a browser."),
    "approve": ("ratchet.flows.cli.operate.approvals", "Approve a pending request."),
    "reject": ("ratchet.flows.cli.operate.approvals", "Reject a pending request; the cycle ends."),
    "cancel": ("ratchet.flows.cli.operate.rollback", "Cancel the open cycle; the champion keeps serving."),
    "rollback": ("ratchet.flows.cli.operate.rollback", "Roll back to the previous version."),
    "trigger": ("ratchet.flows.cli.operate.openings", "Open a cycle now."),
    "retry": ("ratchet.flows.cli.operate.openings", "Open a new cycle after an ended one."),
    "freeze": ("ratchet.flows.cli.operate.openings", "Let no new cycle of a line open."),
    "unfreeze": ("ratchet.flows.cli.operate.openings", "Let cycles of a line open again."),
    "names": ("ratchet.flows.cli.operate.served_names", "Show the model names of a line, and end a former one."),
    "ingest": ("ratchet.flows.cli.operate.run", "Ingest traces and feedback into the lake."),
    "quarantine": ("ratchet.flows.cli.operate.quarantine", "List, show and replay records that could not be stored."),
    "plan": ("ratchet.flows.cli.operate.plan", "Show which training method the next cycle would use, and why."),
    "run": ("ratchet.flows.cli.operate.run", "Run one cycle now."),
    "erase": ("ratchet.flows.cli.operate.erase", "Erase the data of people, and show what was trained on them."),
    "gc": ("ratchet.flows.cli.operate.gc", "Delete files that nothing refers to, and data whose retention has ended."),
    "review": ("ratchet.flows.cli.operate.review", "Ask people for the right answers that a line needs most."),
    "teacher": ("ratchet.flows.cli.operate.teacher", "Ask another model for the right answers that a line lacks."),
    "dataset": ("ratchet.flows.cli.operate.dataset", "Export training sets for trainers elsewhere."),
    "candidate": ("ratchet.flows.cli.operate.candidate", "Judge and roll out a model that was trained elsewhere."),
    "judge": ("ratchet.flows.cli.operate.judge", "Export answers for people to grade, and read their grades back."),
    "verify": ("ratchet.flows.cli.admin.anchor", "Verify the ledger: its hash chains and its signed exports."),
    "anchor": ("ratchet.flows.cli.admin.anchor", "Export the signed heads of the ledger."),
    "k8s": ("ratchet.flows.cli.admin.k8s", "Render manifests, check the cluster, guard gangs and show job logs."),
    "prefect": ("ratchet.flows.cli.admin.prefect", "Print prefect.yaml for a work pool of an existing Prefect server."),
    "proxy": ("ratchet.flows.cli.admin.proxy", "Print the configuration of a proxy that bypasses the router while it is down."),
    "example": ("ratchet.flows.cli.admin.example", "Write the files of the quickstart, make its model, and play its users."),
    "demo": ("ratchet.flows.cli.admin.demo", "Run the complete loop on this machine with simulated users."),
    "dev": ("ratchet.flows.cli.admin.dev", "Tools for developing Ratchet: a local Kubernetes test cluster."),
    "completion": ("ratchet.flows.cli.completion", "Print the completion script for a shell."),
}
"""Command -> its module and its purpose, in the order of the help text."""

ALIASES: dict[str, str] = {"validate": "check", "list": "status", "ls": "status", "audit": "verify", "ui": "open"}
"""Names of other tools that do the same as a command. The help text does not list them."""

HINTS: dict[str, str] = {
    "stop": "`ratchet serve --stop LOOP.toml` stops the service and all its processes; `ratchet cancel LOOP.toml` ends the open cycle",
    "start": "`ratchet serve LOOP.toml` starts the service",
    "deploy": "`ratchet serve LOOP.toml` runs the service, which rolls out a better version by itself; `ratchet approve` allows a rollout",
    "train": "`ratchet trigger LINE` opens a cycle, which trains a version",
    "pause": "`ratchet freeze LINE --why TEXT` lets no new cycle open",
    "resume": "`ratchet unfreeze LINE --why TEXT` lets cycles open again",
    "dlq": "`ratchet quarantine` lists, shows and replays records that could not be stored",
    "restart": "`ratchet retry LINE/NUMBER` opens a new cycle after an ended one; `ratchet serve LOOP.toml` starts the service",
}
"""Names of other tools without a command that does the same -> what to do instead."""


WRITES = ("adopt", "ingest", "quarantine", "run", "erase", "gc", "review", "teacher", "candidate", "judge")
"""Commands that write to the lake or to the artifacts. Where the service has several pods, they run in the one that leads."""

SECTIONS: dict[str, str] = {
    "setup": "Set up",
    "serve": "Set up",
    "look": "Look",
    "operate": "Operate",
    "admin": "Administer",
    "completion": "Administer",
}
"""Part of this package -> the section of the help text that lists its commands."""

SIMILAR = 0.75
"""Similarity, in [0, 1], from which a command is suggested for an unknown one."""


class LazyGroup(click.Group):
    """A command group that imports the module of a command on its first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return all command names in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return the command, or return None if the name is unknown."""
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        module = vars(importlib.import_module(COMMANDS[name][0]))
        return next(one for one in module.values() if isinstance(one, click.Command) and one.name == name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the command list of the help text without importing any command."""
        for title in dict.fromkeys(SECTIONS.values()):
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (module, text) in COMMANDS.items() if SECTIONS[module.split(".")[3]] == title])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command. For an unknown name, fail and say what to use instead, or suggest a similar name."""
        if args and args[0] not in COMMANDS and args[0] not in ALIASES:
            import difflib

            close = difflib.get_close_matches(args[0], [*COMMANDS, *ALIASES, *HINTS], n=1, cutoff=SIMILAR)
            name = ALIASES.get(close[0], close[0]) if close else ""
            ctx.fail(f"unknown command {args[0]!r}; {_instead(name)}")
        _, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.name in WRITES and os.environ.get(variables.STANDBY) and not {"-h", "--help"} & set(rest):
            from ratchet.flows.config.home import Home
            from ratchet.flows.service.standby import refuse_if_waiting

            refuse_if_waiting(Home.from_environment())
        return command.name if command else None, command, rest  # with the name of the command instead of its alias


def _instead(name: str) -> str:
    """Return what to do instead of an unknown command; `name` is the most similar known name, or empty."""
    return HINTS.get(name) or (f"did you mean {name!r}?" if name else "see `ratchet --help`")


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print the version, and the code digest by which training jobs recognise their plans, and exit."""
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import version

    from ratchet.trainers.code_digest import code_digest

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
    """Return the exit code: 2 for an invalid request or configuration, 3 for a temporary failure, 1 for any other failure.

    A file or folder that cannot be written counts as configuration.
    """
    if isinstance(error, ConfigError | Rejected | Unwritable):
        return 2
    if isinstance(error, Conflict | Retryable):
        return 3
    return 1


def main(args: list[str] | None = None) -> Any:
    """Run the command line. A RatchetError is printed as one message without a traceback, and determines the exit code."""
    os.umask(0o077)  # output files contain users' conversations
    disable_telemetry(os.environ)  # before a command imports a library that would send statistics
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # the search for plugins reads the metadata of every installed package
    try:
        return cli.main(args=args, prog_name="ratchet", standalone_mode=True)
    except RatchetError as error:
        _end(error)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        if error.filename is None:
            raise
        _end(_of_file(error))
    except ValueError as error:
        from pydantic import ValidationError

        from ratchet.contracts.wording import first_problem

        if not isinstance(error, ValidationError):
            raise
        told = first_problem(error)
        _end(Permanent(f"a stored {error.title} is not valid: {told}; `ratchet verify` shows whether the ledger was changed"))


def _end(error: RatchetError) -> NoReturn:
    """Print an error and exit with its code."""
    kind = {1: "failed", 2: "error", 3: "retry later"}[exit_code(error)]
    show(f"{kind}: ", fg="red", bold=True, newline=False, error=True)
    show((error.detail if isinstance(error, Rejected) else "") or str(error), error=True)  # without the code that reports count
    sys.exit(exit_code(error))


def _of_file(error: OSError) -> RatchetError:
    """Return the error for a file that a user has named and that a command cannot open."""
    from ratchet.runtime.file_errors import unwritable

    if isinstance(error, FileNotFoundError):
        return ConfigError(f"{error.filename} does not exist, or its folder does not; name another path")
    return unwritable(f"open {error.filename}", error, "name another path, or change its permissions")


if __name__ == "__main__":
    main()
