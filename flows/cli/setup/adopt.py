"""`ratchet adopt`: registers the model in production as version 0 of a line, and serves it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import loop_argument
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, watched
from ratchet.flows.cli.terminal import say


@click.command()
@loop_argument
@click.argument("model", type=click.Path(path_type=Path))
@actor_option
@json_option
@click.option("--force", is_flag=True, help="Adopt the model although its answers cannot end, or its chat template does not work.")
def adopt(loop: str, model: Path, by: str, as_json: bool, force: bool) -> None:
    """Register MODEL as version 0 of the line of LOOP and serve it.

    LOOP is the path of a loop file, or the name of a line. MODEL is a folder in Hugging Face format with safetensors weights. It becomes
    the first champion of the line. A line adopts one model only, so a model with which nothing can work is refused without --force.
    """
    with watched(as_json, f"adopting {model} for the line of {loop} …") as progress:
        from ratchet.flows.composition.before_training import ModelFindings, look_at_model
        from ratchet.flows.engine.context import TURN_SECONDS
        from ratchet.flows.engine.line import adopt as adopt_model
        from ratchet.flows.engine.line import note_name
        from ratchet.flows.engine.reconcile import reconcile

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, loop, as_json))
        progress("looking at tokenizer and chat template …", 0, 0)
        found = ModelFindings([], [])
        with suppress(Retryable):  # `ratchet check` says so
            found = look_at_model(model) if any(model.glob("*.safetensors")) else found
        if found.problems and not force and context.line_view().base is None:
            raise Permanent(
                f"{model}: {'; '.join(found.problems)}. A line adopts one model only, and cannot change it later; mend the folder first, "
                "or adopt it as it is with --force"
            )
        version = adopt_model(context, model, by)
        repairs = [*note_name(context), *reconcile(context, TURN_SECONDS)]
        is_served = version.tag in {endpoint.tag for endpoint in context.server.running()}
    if as_json:
        print_json({**version.model_dump(mode="json"), "url": context.router.url(), "mended": repairs} | found._asdict())
    else:
        for line in repairs:
            say(line)
        for one in [*found.problems, *found.warnings]:
            say(f"warning: {model}: {one}")
    if not is_served:
        raise Permanent(
            f"line {context.line}: {version.tag} is adopted by {by} as version 0, but its model server does not run; remove the cause, "
            f"then run `ratchet serve {loop}`"
        )
    if not as_json:
        served = f"{context.loop.line.served_model!r} at {context.router.url()}/v1"
        say(f"line {context.line}: {version.tag} adopted by {by} as version 0; served as {served}")
