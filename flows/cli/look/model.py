"""`ratchet model`: copies a version's model out of the installation, and prints its model card."""

from __future__ import annotations

from pathlib import Path

import click

from ratchet.contracts.errors import Permanent
from ratchet.flows.cli.lines import named_line
from ratchet.flows.cli.names import line_argument, named_version
from ratchet.flows.cli.new_folder import new_folder, refuse_existing
from ratchet.flows.cli.output import json_option, open_installation, print_json, watched
from ratchet.flows.cli.terminal import say, show


@click.group()
def model() -> None:
    """Copy the models of a line, and show their cards."""


@model.command()
@click.argument("version")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--merged", is_flag=True, help="Copy the whole model, with the adapter merged into its base model.")
@json_option
def fetch(version: str, folder: Path, merged: bool, as_json: bool) -> None:
    """Copy the model of VERSION to the new FOLDER, and verify it.

    VERSION is LINE/champion, LINE/previous, LINE/NUMBER for the candidate of a cycle, LINE/0 for the adopted model, or a tag. Every file is
    compared with its digest, and the whole with the ledger. If the model is an adapter, its base model is copied to FOLDER/base; with
    --merged, FOLDER gets one whole model instead.
    """
    refuse_existing(folder)
    with watched(as_json, f"copying the model of {version} …"):
        from ratchet.contracts.model import model_ref
        from ratchet.flows.composition.artifacts import open_artifacts

        installation = open_installation()
        made = named_version(installation, version).version
        artifacts = open_artifacts(installation.home)
        copied = made.model.whole if merged else made.model
        with new_folder(folder) as part:
            artifacts.fetch(copied.files, part)
            if model_ref(part, copied.files, copied.parent) != copied.alone:
                raise Permanent(f"the files of {made.tag} are not those that the ledger names; `ratchet verify` looks for damage")
            if copied.parent is not None:
                artifacts.fetch(copied.parent, part / "base")
    if as_json:
        told = {"folder": str(folder), "version": made.tag, "line": made.line, "number": made.number, "cycle": made.cycle}
        print_json(told | {"model": copied.id, "adapter": copied.parent is not None})
        return
    say(f"{made.tag}, version {made.number} of the line {made.line}, verified against the ledger")
    show(str(folder))


@model.command()
@line_argument()
@click.argument("version", default="champion")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Output file. Default: standard output.")
@json_option
def card(line: str, version: str, out: Path | None, as_json: bool) -> None:
    """Show the model card of a version of LINE as Markdown.

    VERSION is champion, previous, the number of a cycle, or 0 for the adopted model. The card lists the version's training data, method
    and cost, the measurements, who approved it, and the facts that are not known. It comes from the ledger and has no text of a user. The
    registry has it as the description of the version.
    """
    from ratchet.flows.composition.artifacts import open_artifacts
    from ratchet.flows.engine.model_cards import card_of

    installation = open_installation()
    name = named_line(installation, line, as_json, reads=True)
    made = named_version(installation, f"{name}/{version}")
    page = card_of(open_artifacts(installation.home), made.version, made.cycle, installation.line(name))
    if out is not None:
        out.write_text(page, encoding="utf-8")
    if as_json:
        print_json({"version": made.version.tag, "line": name, "number": made.version.number, "card": page})
    else:
        show(page if out is None else str(out), newline=out is not None)
