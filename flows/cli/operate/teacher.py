"""`ratchet teacher`: asks another model for the right answers that a line lacks, and shows what its answers were worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.operate.review import show_learned
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.core.asking.teaching import BELIEF_COLUMNS, belief_rows, bound, described, round_notes, round_text

if TYPE_CHECKING:
    from ratchet.contracts.loop import TeacherSettings
    from ratchet.flows.engine.asking.teaching import Prepared

SHOWN = 10
"""Number of questions that a dry run shows."""


@click.group()
def teacher() -> None:
    """Ask another model for the right answers that a line lacks.

    The section [teacher] of the loop file names it, its region, its prices and its terms. The questions are those of `ratchet review`.
    """


@teacher.command()
@line_argument()
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and what it costs at most. Nothing is sent.")
@actor_option
@json_option
def ask(line: str, dry_run: bool, by: str, as_json: bool) -> None:
    """Send the questions of LINE that would teach most to its teacher, and take the answers in.

    Each question is sent once to each version of the teacher. The next freeze decides which answers count. A cycle asks by itself.
    """
    with watched(as_json, f"choosing questions of {line} …") as progress:
        from ratchet.flows.engine.asking.dataset_export import snapshot_of_now
        from ratchet.flows.engine.asking.teaching import ask as ask_now
        from ratchet.flows.engine.asking.teaching import prepare, settings_of

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json))
        settings = settings_of(context)
        snapshot = snapshot_of_now(context)
        if dry_run:
            prepared, found = prepare(context, snapshot), None
        else:
            prepared, found = None, ask_now(context, snapshot, actor=by)[1]
    if prepared is not None:
        _show_prepared(prepared, settings, as_json)
    if found is not None and as_json:
        print_json(found.model_dump(mode="json"))
    elif found is not None:
        say(f"{round_text(found)}; {found.kept:,} answers are new in the lake")
        for note in round_notes(found):
            say(note)


def _show_prepared(prepared: Prepared, settings: TeacherSettings, as_json: bool) -> None:
    requests, cost = bound(prepared.questions, prepared.budget)
    if as_json:
        told = {"requests": requests, "highest_cost": cost, "currency": settings.currency, "left_out": prepared.left_out}
        budget = {"requests": prepared.budget.requests, "cost": prepared.budget.cost}
        print_json(told | {"budget_left": budget, "questions": [described(one) for one in prepared.questions]})
        return
    rows = [
        [
            str(one.prompt.messages[-1].get("content"))[:60],
            one.prompt.slice or "–",
            "measures" if one.measures else f"{one.gain:.4f}",
            f"{one.highest:.4f}",
        ]
        for one in prepared.questions[:SHOWN]
    ]
    table(f"Questions for {settings.model} ({settings.region})", ["question", "slice", "expected gain", "highest cost"], rows)
    for reason, count in sorted(prepared.left_out.items()):
        show(f"{count:,} questions would not be sent because {reason}.")
    show(
        f"{requests:,} requests would be sent, for at most {cost:.4f} {settings.currency}; the budgets of {settings.period_days:g} days "
        f"leave {prepared.budget.requests:,} requests and {prepared.budget.cost:.4f} {settings.currency}. Nothing was sent."
    )


@teacher.command()
@line_argument()
@json_option
def results(line: str, as_json: bool) -> None:
    """Show what LINE has asked its teacher, what it cost, how far the teacher agrees with people, and what was learned."""
    with watched(as_json, f"reading the data of {line} …") as progress:
        from ratchet.flows.engine.asking.dataset_export import set_of_now
        from ratchet.flows.engine.asking.review import results as results_of
        from ratchet.flows.engine.asking.teaching import teacher_view

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json))
        rounds = teacher_view(context).rounds
        now = set_of_now(context) if rounds else None
        found = results_of(context, now, [one.questions for _, _, one in rounds]) if now is not None else []
    beliefs = now.snapshot.teachers if now is not None else ()
    if as_json:
        told = [{"at": at.isoformat(), **one.model_dump(mode="json")} for at, _, one in rounds]
        print_json({"rounds": told, "teachers": [one.model_dump(mode="json") for one in beliefs], "versions": found})
        return
    rows = [
        [
            *(f"{at:%Y-%m-%d %H:%M}", one.cycle or one.actor, one.model, f"{one.asked:,}", f"{one.measuring:,}", f"{one.kept:,}"),
            *(f"{one.cost:.4f} {one.currency}", f"{one.expected:.3f}", one.stopped or "–"),
        ]
        for at, _, one in rounds
    ]
    columns = ["when (UTC)", "for", "model", "asked", "measuring", "answers", "cost", "expected gain", "ended early"]
    table(f"Questions of {context.line} to its teacher", columns, rows)
    if beliefs:
        table("Agreement with people, and what became of the answers", list(BELIEF_COLUMNS), [list(row) for row in belief_rows(beliefs)])
    show_learned(found, "questions asked of the teacher")
