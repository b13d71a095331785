"""`ratchet token`: the credentials with which applications, reviewers and the router send records to the receiver of a line."""

from __future__ import annotations

from pathlib import Path

import click

from ratchet.contracts.data.senders import Role
from ratchet.flows.cli.output import json_option, print_json, table
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
from ratchet.materializer.receive.credentials import CredentialStore

_loop = click.argument("loop", type=click.Path(path_type=Path))
_name = click.argument("name")
_ISSUABLE = [role.value for role in Role if role is not Role.ROUTER]


def _store(loop: Path) -> CredentialStore:
    return open_credentials(Home.from_environment(), load_loop(loop).line.name)


@click.group()
def token() -> None:
    """Manage the credentials of a line's receiver.

    A credential has a name and roles, which determine what it may send. The running receiver follows each change without a restart.
    """


@token.command()
@_loop
@click.argument("roles", nargs=-1, required=True, type=click.Choice(_ISSUABLE))
@click.option("--name", help="Name of the credential, for example that of the application. Default: the first role.")
@click.option("--trusted", is_flag=True, help="Its ratings and corrections count for the traces of all users.")
@json_option
def add(loop: Path, roles: tuple[str, ...], name: str | None, trusted: bool, as_json: bool) -> None:
    """Create a credential with ROLES for the line of LOOP, and print the path of the file with its token.

    Hand the token over, then delete the file. The receiver stores only a digest of it.
    """
    chosen = name or roles[0]
    _show_file(chosen, _store(loop).add(chosen, [Role(role) for role in roles], trusted), as_json)


def _show_file(name: str, file: Path, as_json: bool) -> None:
    """Print the path of a credential's token file."""
    if as_json:
        print_json({"name": name, "file": str(file)})
    else:
        show(str(file))


@token.command(name="list")
@_loop
@json_option
def list_credentials(loop: Path, as_json: bool) -> None:
    """List the credentials of the line of LOOP."""
    known = _store(loop).read().credentials
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
@_loop
@_name
@json_option
def rotate(loop: Path, name: str, as_json: bool) -> None:
    """Create a new token for the credential NAME, and print the path of its file. The old tokens stay valid until they are revoked."""
    _show_file(name, _store(loop).rotate(name), as_json)
    say(f"the old tokens of {name} stay valid until `ratchet token revoke {loop} {name} --old`")


@token.command()
@_loop
@_name
@click.option("--old", is_flag=True, help="Keep the newest token.")
@json_option
def revoke(loop: Path, name: str, old: bool, as_json: bool) -> None:
    """Revoke the credential NAME, or only its tokens before the newest."""
    _store(loop).revoke(name, old_only=old)
    if as_json:
        print_json({"name": name, "revoked": "old" if old else "all"})
        return
    say(f"revoked {'the old tokens of ' if old else ''}{name}")
