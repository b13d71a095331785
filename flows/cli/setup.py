"""`ratchet init`, `check` and `adopt`: from nothing to a line that serves."""

from __future__ import annotations

from pathlib import Path

import click

from contracts.errors import ConfigError
from flows.cli.show import actor, installation, json_option, loop_argument, print_json, say, table, watched
from flows.engine.house import House

_TEMPLATE = """\
# A loop file: everything that a person decides about one model line. `ratchet check {name}` explains it.

[line]
name = "{line}"                  # lower-case letters, digits, hyphens
served_model = "{line}"          # the model name that clients ask for

[[sources]]                      # where traces and feedback come from
name = "receiver"
kind = "receiver"                # our OTLP/HTTP endpoint; or otlp / jsonl with a path

[[rewards]]                      # scorers; at least one must be able to score unseen answers
name = "exact_match"             # answer equals reference, but for blanks

[[rewards]]
name = "user_feedback"           # thumbs of users: for labels only

[holdout]
fraction = 0.2                   # of all prompts, for ever
# golden = "golden.jsonl"        # {{"prompt": …, "reference": …}} a line; only the gate sees it

[gate]
min_effect = 0.0                 # the candidate must be better by more than this, with confidence

[rollout]
steps = [1, 5, 25, 100]          # percent of sessions
margin = 0.05                    # non-inferiority margin on the mean rating

[approvals.training]
mode = "person"                  # or "auto": nobody is asked, and the ledger says so
[approvals.rollout]
mode = "person"

[trigger]
cron = "0 3 * * *"
timezone = "UTC"
new_traces = 1000                # or as soon as so many new traces have come
"""


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default="loop.toml")
@click.option("--line", default="my-model", show_default=True, help="Name of the model line.")
def init(path: Path, line: str) -> None:
    """Write a loop file to start from to PATH."""
    from flows.config.load import parse_loop

    text = _TEMPLATE.format(line=line, name=path.name)
    import tomllib

    parse_loop(tomllib.loads(text), "the new loop file")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; name another file, or remove it first") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    say(f"wrote {path}; next:\n  ratchet check {path}\n  ratchet adopt {path} MODEL_FOLDER\n  ratchet serve {path}")


@click.command()
@loop_argument
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--by", default=actor, show_default="your login name", help="Who adopts it; kept in the ledger.")
@json_option
def adopt(loop: Path, model: Path, by: str, as_json: bool) -> None:
    """Name MODEL, a Hugging Face folder (safetensors), as the version 0 of the line: the first champion. Serves it at once."""
    from flows.engine.house import TURN_SECONDS
    from flows.engine.line import adopt as name_first
    from flows.engine.reconcile import reconcile

    with watched(as_json) as progress:
        house = installation(progress).house(loop)
        version = name_first(house, model, by)
        mended = reconcile(house, TURN_SECONDS)
    if as_json:
        print_json({**version.model_dump(mode="json"), "url": house.router.url(), "mended": mended})
        return
    for line in mended:
        say(line)
    served = f"{house.loop.line.served_model!r} at {house.router.url()}/v1"
    say(f"line {house.line}: {version.tag} is version 0, adopted by {by}; it answers as {served}")


@click.command()
@loop_argument
@json_option
def check(loop: Path, as_json: bool) -> None:
    """Check LOOP: keys, scorers, sources, servers; and what the gate and the rollout will need to decide."""
    from flows.engine.wiring import installed

    house = installation().house(loop)
    findings = [*_rewards(house), *_sources(house), *_serving(house), *_golden(house), *_power(house)]
    installed("ratchet.servers", house.loop.serving.kind)
    bad = [text for level, _, text in findings if level == "error"]
    if as_json:
        print_json({"line": house.line, "ok": not bad, "findings": [{"level": a, "about": b, "text": c} for a, b, c in findings]})
    else:
        marks = {"ok": "✓", "note": "·", "error": "✗"}
        table(f"{loop}: line {house.line}", ["", "about", ""], [[marks[a], b, c] for a, b, c in findings])
    if bad:
        raise ConfigError(f"{loop}: " + "; ".join(bad))


Finding = tuple[str, str, str]


def _rewards(house: House) -> list[Finding]:
    found: list[Finding] = [("ok", "reward", f"{v.name} {v.version}, tier {v.tier}, weight {v.weight:g}") for v in house.rewards.versions]
    if not house.rewards.unseen():
        found.append(("error", "reward", "no scorer for unseen answers: nothing could judge a candidate; add exact_match or final_number"))
    return found


def _sources(house: House) -> list[Finding]:
    found: list[Finding] = []
    for source in house.loop.sources:
        path = house.folder / source.path if source.path else None
        if path is None:
            found.append(("ok", "source", f"{source.name}: OTLP/HTTP on loopback, started by `ratchet serve`"))
        elif path.exists():
            found.append(("ok", "source", f"{source.name}: {path}"))
        else:
            found.append(("error", "source", f"{source.name}: {path} does not exist"))
    if not house.loop.sources:
        found.append(("error", "source", "no source: add [[sources]]"))
    return found


def _serving(house: House) -> list[Finding]:
    can = house.server.capabilities
    said = ", ".join(f"{name} {'yes' if has else 'no'}" for name, has in can.model_dump().items())
    found: list[Finding] = [("ok", "server", f"{house.loop.serving.kind}: {said}")]
    if not can.sampling and house.loop.probe.prompts:
        found.append(("error", "server", "it cannot sample, so there is no probe; set probe.prompts = 0 or use another server"))
    if not house.router.attribution:
        found.append(("error", "router", "it does not attribute answers to versions; without attribution there is no rollout"))
    return found


def _golden(house: House) -> list[Finding]:
    golden = house.loop.holdout.golden
    if golden is None:
        return [("note", "gate", "no golden set: the gate rests on the holdout alone")]
    path = house.folder / golden
    if not path.exists():
        return [("error", "gate", f"the golden set {path} does not exist")]
    lines = sum(1 for line in path.read_bytes().splitlines() if line.strip())
    return [("ok", "gate", f"golden set of {lines} prompts")]


def _power(house: House) -> list[Finding]:
    """What can be shown, and how long it takes: printed before anybody pays for it."""
    from flows.core.triggers import evaluation_level
    from gates.judge import ratings_to_decide
    from gates.statistics import detectable_effect

    loop = house.loop
    found: list[Finding] = []
    for n in (loop.gate.min_prompts, 300, 1000):
        effect = detectable_effect(n, evaluation_level(loop))
        found.append(("note", "gate", f"{n} prompts show a true gain of {effect:.3f} with power 0.8 (differences of deviation 0.5)"))
    ratings = ratings_to_decide(loop.rollout)
    found.append(("note", "rollout", f"non-inferiority within {loop.rollout.margin:g} needs about {ratings} ratings if both are equal"))
    cursor = house.datasets.cursor()
    line = house.line_view()
    if cursor.feedback and cursor.newest and line.rows:
        days = max((cursor.newest - line.rows[0].at).total_seconds() / 86_400, 1e-6)
        wait = ratings / (cursor.feedback / days)
        found.append(("note", "rollout", f"at the feedback seen so far ({cursor.feedback} in {days:.2f} days) that takes {wait:.2g} days"))
    return found
