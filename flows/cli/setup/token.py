"""`ratchet token`: the credentials with which applications, reviewers and the router send records to the receiver of a line."""

from __future__ import annotations

from pathlib import Path

import click

from ratchet.contracts.data.senders import Role
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import loop_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.config.load import load_loop
from ratchet.materializer.receive.credentials import CredentialStore

_name = click.argument("name")
_ISSUABLE = [role.value for role in Role if role is not Role.ROUTER]


def _store(loop: str, quiet: bool) -> CredentialStore:
    installation = open_installation()
    return open_credentials(installation.home, load_loop(named_loop(installation, loop, quiet)).line.name)


class _Group(click.Group):
    """Names `add` for what other tools call it. By its spelling, `create` would resemble `rotate`, which replaces a credential."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in ("create", "new", "issue", "generate"):
            ctx.fail(f"unknown command {args[0]!r}; did you mean 'add'?")
        return super().resolve_command(ctx, args)


@click.group(cls=_Group)
def token() -> None:
    """Manage the credentials of a line's receiver.

    LOOP is the path of a loop file, or the name of a line. A credential has a name and roles, which determine what it may send. The running
    receiver follows each change without a restart.
    """


@token.command()
@loop_argument
@click.argument("roles", nargs=-1, required=True, type=click.Choice(_ISSUABLE))
@click.option("--name", help="Name of the credential, for example that of the application. Default: the first role.")
@click.option("--trusted", is_flag=True, help="Its ratings and corrections count for the traces of all users.")
@json_option
def add(loop: str, roles: tuple[str, ...], name: str | None, trusted: bool, as_json: bool) -> None:
    """Create a credential with ROLES for the line of LOOP, and print the path of the file with its token.

    Hand the token over, then delete the file. The receiver stores only a digest of it.
    """
    chosen = name or roles[0]
    _show_file(chosen, _store(loop, as_json).add(chosen, [Role(role) for role in roles], trusted), as_json)


def _show_file(name: str, file: Path, as_json: bool) -> None:
    """Print the path of a credential's token file."""
    if as_json:
        print_json({"name": name, "file": str(file)})
    else:
        show(str(file))


@token.command(name="list")
@loop_argument
@json_option
def list_credentials(loop: str, as_json: bool) -> None:
    """List the credentials of the line of LOOP."""
    known = _store(loop, as_json).read().credentials
    if as_json:
        print_json(
            [
                {**one.sender.model_dump(mode="json"), "tokens": [f"{made.created:%Y-%m-%d %H:%M:%S}" for made in one.tokens]}
                for one in known
            ]
        )
        return
    rows = [
        [
            one.sender.name,
            ", ".join(one.sender.roles),
            "yes" if one.sender.vouches else "no",
            ", ".join(f"{made.created:%Y-%m-%d %H:%M}" for made in one.tokens),
        ]
        for one in known
    ]
    table("Credentials", ["name", "roles", "trusted", "tokens created (UTC)"], rows)


@token.command()
@loop_argument
@_name
@json_option
def rotate(loop: str, name: str, as_json: bool) -> None:
    """Create a new token for the credential NAME, and print the path of its file. The old tokens stay valid until they are revoked."""
    _show_file(name, _store(loop, as_json).rotate(name), as_json)
    say(f"the old tokens of {name} stay valid until `ratchet token revoke {loop} {name} --old`")


@token.command()
@loop_argument
@_name
@click.option("--old", is_flag=True, help="Keep the newest token.")
@json_option
def revoke(loop: str, name: str, old: bool, as_json: bool) -> None:
    """Revoke the credential NAME, or only its tokens before the newest."""
    _store(loop, as_json).revoke(name, old_only=old)
    if as_json:
        print_json({"name": name, "revoked": "old" if old else "all"})
        return
    say(f"revoked {'the old tokens of ' if old else ''}{name}")
