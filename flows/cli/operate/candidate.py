"""`ratchet candidate`: lets a model that was trained elsewhere go through gate, approval and rollout."""

from __future__ import annotations

from pathlib import Path

import click

from ratchet.contracts.errors import Permanent
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, watched
from ratchet.flows.cli.terminal import say, show


@click.group()
def candidate() -> None:
    """Judge and roll out models that were trained elsewhere."""


@candidate.command()
@line_argument()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--why", required=True, help="Where the model comes from, recorded in the ledger.")
@actor_option
@json_option
def add(line: str, model: Path, why: str, by: str, as_json: bool) -> None:
    """Open a cycle of LINE with the model folder MODEL as its candidate. Nothing is trained.

    MODEL is a folder as `save_pretrained` writes it: the result of your own training, or a new base model. It is copied, compared with the
    champion on the holdout, approved and rolled out like any candidate. If its tokenizer, chat template or generation config differs from
    the champion's, this is shown, and a person must approve the rollout, whatever the loop file says. A running service continues the
    cycle; without one, run `ratchet run`. Fails if a cycle is open or if the line is frozen.
    """
    with watched(as_json, f"opening a cycle of {line} with {model} …") as progress:
        from ratchet.flows.composition.before_training import OWN_SERVERS, broken_files
        from ratchet.flows.engine.given import add_candidate

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json), late=True)
        if context.loop.serving.kind in OWN_SERVERS and any(model.glob("*.safetensors")) and (broken := broken_files(model)):
            raise Permanent(f"{model}: {'; '.join(broken)}")  # else a cycle opens whose candidate no server can load
        cycle, given = add_candidate(context, model, by, why)
    if as_json:
        print_json({"cycle": cycle, "model": given.model.id, "differs": list(given.differs)})
        return
    say(f"{cycle} opened with {model}; follow it with `ratchet logs {cycle.removeprefix('cycle/')} --follow`")
    if given.differs:
        show(f"differs from the champion: {', '.join(given.differs)}; a person must approve the rollout", fg="yellow")
