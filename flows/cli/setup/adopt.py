"""`ratchet adopt`: registers the model in production as version 0 of a line, and serves it."""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import loop_argument
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, watched
from ratchet.flows.cli.terminal import say

if TYPE_CHECKING:
    from ratchet.contracts.ports.progress import Progress
    from ratchet.contracts.rows import HubSource
    from ratchet.contracts.serving import ModelVersion
    from ratchet.flows.composition.model_hub import HubModel
    from ratchet.flows.engine.context import LineContext


@click.command()
@loop_argument
@click.argument("model")
@actor_option
@json_option
@click.option("--force", is_flag=True, help="Adopt the model although its files cannot be loaded, or its answers cannot end.")
@click.option("--accept-licence", metavar="NAME", help="The licence of a model of a hub, which you accept. Without it, the command asks.")
@click.option(
    "--token-env", default="HF_TOKEN", show_default=True, metavar="VARIABLE", help="Environment variable with the token for the hub."
)
def adopt(loop: str, model: str, by: str, as_json: bool, force: bool, accept_licence: str | None, token_env: str) -> None:
    """Register MODEL as version 0 of the line of LOOP and serve it.

    LOOP is the path of a loop file, or the name of a line. MODEL is a folder in Hugging Face format with safetensors weights, or
    hub:OWNER/NAME@REVISION, which is downloaded. It becomes the first champion of the line. A line adopts one model only, so a model with
    which nothing can work is refused without --force.
    """
    from ratchet.flows.composition.model_hub import PREFIX, hub_name, look_up

    hub_model, source = None, None
    if model.startswith(PREFIX):
        name = hub_name(model)
        hub_model = look_up(name, token_env)
        source = _accepted(hub_model, name.revision, accept_licence, as_json)
    with ExitStack() as held, watched(as_json, f"adopting {model} for the line of {loop} …") as progress:
        from ratchet.flows.composition.before_training import ModelFindings, look_at_model
        from ratchet.flows.engine.context import TURN_SECONDS
        from ratchet.flows.engine.line import adopt as adopt_model
        from ratchet.flows.engine.line import note_name
        from ratchet.flows.engine.reconcile import reconcile

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, loop, as_json))
        kept = installation.home.root / "hub" / context.line
        if hub_model is not None:
            held.enter_context(_alone(kept))
        findings = ModelFindings([], [])
        version = _adopted_before(context, hub_model) if hub_model is not None else None
        if version is None:
            folder = Path(model) if hub_model is None else _downloaded(hub_model, kept, progress, token_env)
            progress("looking at tokenizer and chat template …", 0, 0)
            with suppress(Retryable):  # `ratchet check` says so
                findings = look_at_model(folder, context.loop.serving) if any(folder.glob("*.safetensors")) else findings
            if findings.problems and not force and context.line_view().base is None:
                raise Permanent(
                    f"{model}: {'; '.join(findings.problems)}. A line adopts one model only, and cannot change it later; mend the folder "
                    "first, or adopt it as it is with --force"
                )
            version = adopt_model(context, folder, by, source)
        if hub_model is not None:
            shutil.rmtree(kept, ignore_errors=True)  # the artifacts have the model now
        repairs = [*note_name(context), *reconcile(context, TURN_SECONDS)]
        is_served = version.tag in {endpoint.tag for endpoint in context.server.running()}
    if as_json:
        print_json({**version.model_dump(mode="json"), "url": context.router.url(), "mended": repairs} | findings._asdict())
    else:
        for line in repairs:
            say(line)
        for one in [*findings.problems, *findings.warnings]:
            say(f"warning: {model}: {one}")
    if not is_served:
        raise Permanent(
            f"line {context.line}: {version.tag} is adopted by {by} as version 0, but its model server does not run; remove the cause, "
            f"then run `ratchet serve {loop}`"
        )
    if not as_json:
        served = f"{context.loop.line.served_model!r} at {context.router.url()}/v1"
        say(f"line {context.line}: {version.tag} adopted by {by} as version 0; served as {served}")


def _accepted(model: HubModel, revision: str, given: str | None, as_json: bool) -> HubSource:
    """Show the model and its licence, and return where it comes from, if the user accepts the licence."""
    from ratchet.contracts.rows import HubSource

    terms = f"licence {model.licence}" + (f" ({model.link})" if model.link else "")
    size = f"{model.size / 1e9:.2f} GB" if model.size >= 1e9 else f"{model.size / 1e6:.1f} MB"
    say(f"{model.repository} at commit {model.commit}: {len(model.files)} files, {size}, {terms}")
    if model.gated:
        say("its owner has asked for consent to terms on the model's page")
    if model.left_out:
        rest = f" and {len(model.left_out) - 8} others" if len(model.left_out) > 8 else ""
        say(f"not downloaded: {', '.join(model.left_out[:8])}{rest}")
    if given is None and not as_json and sys.stdin.isatty():
        given = model.licence if click.confirm(f"Do you accept the {terms}?", err=True) else None
    if given != model.licence:
        told = "was not accepted" if given is None else f"is not {given!r}"
        raise ConfigError(
            f"the licence of {model.repository} {told}: read it, and pass --accept-licence {model.licence!r}; the acceptance is recorded"
        )
    return HubSource(repository=model.repository, revision=revision, commit=model.commit, licence=model.licence, link=model.link)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a line's downloads for the duration of the block. Raises Retryable if another adoption holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Retryable(f"another adoption for the line {folder.name!r} is under way; wait for its end") from error
        yield


def _adopted_before(context: LineContext, model: HubModel) -> ModelVersion | None:
    """Return the line's adopted model if it is this one. Raises Permanent if the line has adopted another one."""
    line = context.line_view()
    if line.base is None or (line.source and line.source.commit == model.commit):
        return line.base
    raise Permanent(
        f"line {line.line!r} has already adopted {line.base.tag}; a line adopts one model only: create a new line for another model"
    )


def _downloaded(model: HubModel, kept: Path, progress: Progress, token_env: str) -> Path:
    """Download the model into `kept`, and return its folder."""
    from ratchet.flows.composition.model_hub import download

    return download(model, kept / model.repository.replace("/", "--") / model.commit, progress, token_env)
