"""`ratchet review`: asks people for the right answers that a line needs most, and takes their answers in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.new_folder import new_folder, refuse_existing
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.core.asking.review_forms import FORMS

if TYPE_CHECKING:
    from ratchet.flows.engine.asking.dataset_export import ExportedSet
    from ratchet.flows.engine.asking.review import Chosen
    from ratchet.flows.engine.context import LineContext

SHOWN = 10
"""Number of questions that the command shows."""


@click.group()
def review() -> None:
    """Ask people for the right answers that a line needs most.

    The questions are those that the model answers wrong, that users ask often, and that nobody has answered right.
    """


@review.command()
@line_argument()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for the files.")
@click.option("--count", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number of questions.")
@click.option("--format", "form", type=click.Choice(FORMS), default="jsonl", show_default=True, help="Format of the questions.")
@actor_option
@json_option
def export(line: str, out: Path, count: int, form: str, by: str, as_json: bool) -> None:
    """Write the questions of LINE whose right answers would teach most.

    LINE is the name of a line or the path of its loop file. The files contain texts of users, masked as in the lake, and the export is
    recorded in the ledger: `ratchet erase` does not reach them. No held-out and no golden prompt is among the questions, and no
    conversation with tools.
    """
    refuse_existing(out)
    with watched(as_json, f"choosing questions of {line} …") as progress:
        from ratchet.flows.engine.asking.dataset_export import set_of_now
        from ratchet.flows.engine.asking.review import choose

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json))
        found = set_of_now(context)
        chosen = choose(context, found.snapshot, count)
        if chosen.questions:
            _write(context, found, chosen, form, out, by)
    gain = sum(one.expected_gain for one in chosen.questions)
    if as_json:
        print_json({"folder": str(out), "questions": len(chosen.questions), "requests": chosen.requests, "expected_gain": gain})
        return
    if not chosen.questions:
        say("no question needs an answer: each that is answered wrong has a known right answer, or no answer could be judged as wrong")
        return
    rows = [
        [str(one.messages[-1].get("content"))[:60], f"{one.requests:,}", f"{one.wrong:.0%}", one.slice or "–", f"{one.expected_gain:.4f}"]
        for one in chosen.questions[:SHOWN]
    ]
    table(f"Questions of {context.line} in {out}", ["question", "requests", "wrong", "slice", "expected gain"], rows)
    few = " No other question of the training side is answered wrong and has no right answer." if len(chosen.questions) < count else ""
    measuring = sum(one.measures for one in chosen.questions)
    apart = f" {measuring} of them are development prompts, whose answers measure how long to train." if measuring else ""
    show(
        f"{len(chosen.questions)} questions of {chosen.requests:,} requests.{few}{apart} If the model learns all right answers and nothing "
        f"else, its accuracy rises by {gain:.3f}. `ratchet review results {context.line}` says later what was learned."
    )


def _write(context: LineContext, found: ExportedSet, chosen: Chosen, form: str, out: Path, by: str) -> None:
    """Write the files and record the export before they get their name."""
    from ratchet.contracts.ids import digest
    from ratchet.flows.core.asking.review_forms import CONFIG, as_lines, as_tasks
    from ratchet.flows.engine.asking.dataset_export import Written, note_export

    files = {"questions.jsonl": as_lines(chosen.questions)}
    if form == "label-studio":
        files = {"tasks.json": as_tasks(chosen.questions), "config.xml": CONFIG}
    with new_folder(out) as part:
        for name, text in files.items():
            (part / name).write_text(text, encoding="utf-8")
        gains = {one.prompt_id: one.expected_gain for one in chosen.questions}
        (part / "gains.json").write_text(json.dumps(gains, indent=1) + "\n", encoding="utf-8")
        digests = {name: digest(text.encode()) for name, text in files.items()}
        note_export(context, found, Written(by, f"review {form}", out, dict.fromkeys(files, len(chosen.questions)), digests))


@review.command("import")
@line_argument()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--reviewer", metavar="NAME", help="The reviewer of answers that name none.")
@actor_option
@json_option
def import_(line: str, file: Path, reviewer: str | None, by: str, as_json: bool) -> None:
    """Take in the answers of FILE as right answers to questions of LINE.

    FILE is a file of `ratchet review export` with `answer` and `reviewer` filled in, or an export of Label Studio in JSON. Reviewers are
    stored under a pseudonym. Where reviewers disagree, the rules for conflicting answers decide. The same file again changes nothing.
    """
    with watched(as_json, f"taking in answers for {line} …") as progress:
        from ratchet.flows.core.asking.review import agreement
        from ratchet.flows.core.asking.review_forms import read_answers
        from ratchet.flows.engine.asking.dataset_export import set_of_now
        from ratchet.flows.engine.asking.review import known_questions, take_in
        from ratchet.flows.engine.context import TURN_SECONDS

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json))
        try:
            text = file.read_text(encoding="utf-8-sig")  # Excel and Notepad begin a file with a mark
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from error
        answers, unanswered = read_answers(text, str(file), reviewer, _changed(file))
        if not answers:
            raise ConfigError(f"{file} has no answer; fill in `answer` of the questions")
        gains = _gains(file)
        answers, unknown = known_questions(context, set_of_now(context), answers)
        if not answers:
            raise ConfigError(
                f"{file}: none of its {len(unknown)} questions is among those that {context.line} can be taught; export again"
            )
        report = take_in(context, answers, gains, by, TURN_SECONDS)
        same, pairs = agreement(answers)
    new = report.feedback.kept
    if as_json:
        told = {"answers": len(answers), "unanswered": unanswered, "unknown": unknown, "new": new, "same": same, "pairs": pairs}
        print_json(told | {"report": report.model_dump(mode="json")})
        return
    people = len({one.reviewer for one in answers})
    say(f"answers: {len(answers)}, of them new: {new}; reviewers: {people}; questions without an answer: {unanswered}")
    if unknown:
        left = ", ".join(one[:12] for one in unknown[:5])
        say(f"not taken in: answers to {len(unknown)} questions that are held out, golden, erased or unknown: {left}")
    if pairs:
        say(f"reviewers of the same question agree in {same} of {pairs} pairs ({same / pairs:.0%})")
    if report.feedback.quarantined:
        say(f"{report.feedback.quarantined} answers are in quarantine: `ratchet quarantine list {context.line}`")


def _changed(file: Path) -> str:
    """Return when the file was changed last, the time of answers that name none: the same file again is no new answer, a changed one is."""
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat()


def _gains(file: Path) -> dict[str, float]:
    """Return the expected gains of the export in whose folder the file is; empty if it is elsewhere.

    Raises ConfigError if they are not the shares that the export wrote.
    """
    path = file.parent / "gains.json"
    if not path.exists():
        return {}
    try:
        found = {str(key): float(value) for key, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not what the export wrote ({error}); restore it, or move the answers to another folder") from error
    if not all(0 <= value <= 1 for value in found.values()):
        raise ConfigError(f"{path} has a gain that is no share; restore it, or move the answers to another folder")
    return found


@review.command()
@line_argument()
@json_option
def results(line: str, as_json: bool) -> None:
    """Show what LINE has learned from the answers of reviewers: rewards of the reviewed questions, version by version."""
    with watched(as_json, f"reading the data of {line} …") as progress:
        from ratchet.flows.engine.asking.dataset_export import set_of_now
        from ratchet.flows.engine.asking.review import imports
        from ratchet.flows.engine.asking.review import results as results_of

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json))
        taken = imports(context)
        found = results_of(context, set_of_now(context), [one.questions for _, one in taken]) if taken else []
    if as_json:
        print_json({"imports": [{"at": at, **one.model_dump(mode="json")} for at, one in taken], "versions": found})
        return
    rows = [[at, one.actor, f"{one.answers:,}", str(one.reviewers), f"{one.expected:.3f}"] for at, one in taken]
    table(f"Answers of reviewers of {context.line}", ["when (UTC)", "by", "answers", "reviewers", "expected gain"], rows)
    show_learned(found, "reviewed questions")


def show_learned(found: Sequence[Mapping[str, Any]], asked: str) -> None:
    """Show the mean reward of the questions with new answers, which are called `asked`, and of the others, version by version."""
    told = [[one["version"], *(_mean(one[part]) for part in ("reviewed", "others"))] for one in found]
    if told:
        table("Mean reward (requests)", ["version", asked, "other questions"], told)


def _mean(part: dict[str, float]) -> str:
    return f"{part['mean']:.3f} ({part['requests']:,})" if part["requests"] else "–"
