"""`ratchet init`: writes a loop file to start from."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.output import json_option, print_json
from ratchet.flows.cli.terminal import say

_TEMPLATE = """\
# Loop file: the settings of one model line. Validate it with `ratchet check {name}`.

[line]
name = "{line}"                  # lower-case letters, digits, hyphens
served_model = "{line}"          # model name in client requests

[[sources]]                      # sources of traces and feedback
name = "receiver"
kind = "receiver"                # built-in OTLP/HTTP endpoint; or "otlp" / "jsonl" with a path

[[rewards]]                      # scorers; at least one must be able to score unseen answers
name = "exact_match"             # answer equals reference, ignoring whitespace

[[rewards]]
name = "user_feedback"           # user ratings: for labels only

[holdout]
fraction = 0.2                   # share of prompts that are never used for training; 0.05 is enough beside 200 golden prompts
# golden = "golden.jsonl"        # one {{"prompt": …, "reference": …}} per line; used by the gate only
similarity = "auto"              # right answers decide whether prompts of one template are different questions
development = 0                  # train on all other prompts; SFT and DPO find their length by cross-validation

[training]
methods = ["sft", "dpo"]         # the first suitable one; for "grpo", set holdout.development = 0.15 before the first cycle

[gate]
min_effect = 0.0                 # the lower confidence bound of the improvement must exceed this

[gate.safety]                    # also ask 120 harmful and harmless prompts; without this section, the check is off
margin = 0.2                     # loss of refusals, or of answers to harmless prompts, that the gate must rule out

[rollout]
steps = [5, 25, 50, 100]         # percent of sessions routed to the candidate
margin = 0.05                    # non-inferiority margin on the mean rating

[approvals.training]
mode = "person"                  # "person": an approval is required; "auto": no approval
[approvals.rollout]
mode = "person"

[trigger]
cron = "0 3 * * *"
timezone = "UTC"
new_traces = 1000                # also open a cycle after this many new traces
"""


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default="loop.toml")
@click.option("--line", help="Name of the model line. Default: the file's name, or `my-model` for loop.toml.")
@json_option
def init(path: Path, line: str | None, as_json: bool) -> None:
    """Create a starter loop file at PATH (default: loop.toml). A PATH without an extension gets `.toml`.

    An existing file is not overwritten.
    """
    import tomllib

    from ratchet.flows.config.load import parse_loop

    path = path if path.suffix else path.with_suffix(".toml")
    line = line or _line_name(path)
    text = _TEMPLATE.format(line=line, name=path.name)
    parse_loop(tomllib.loads(text), "the new loop file")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} already exists; choose another path or remove the file") from None
    except FileNotFoundError:
        raise ConfigError(f"cannot write {path}: the folder {path.parent} does not exist; create it first") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    if as_json:
        print_json({"path": str(path), "line": line})
        return
    word = shlex.quote(str(path))
    say(f"wrote {path}; next steps:\n  ratchet check {word}\n  ratchet adopt {word} MODEL_FOLDER\n  ratchet serve {word}")


def _line_name(path: Path) -> str:
    """Return the file's name as the name of a line."""
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")
    return name if name and name != "loop" else "my-model"
