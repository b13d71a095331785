"""Requests to a line from users and triggers: adopt, open a cycle, answer an approval request, roll back, cancel, freeze.

Each request appends ledger rows by compare-and-set.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.contracts.cycle import Answer, Append, ApprovalKind, Row
from ratchet.contracts.errors import Conflict, Permanent, Rejected
from ratchet.contracts.ids import approval_stream, cycle_stream, digest, line_stream, version_tag
from ratchet.contracts.jobs.training import Method, TrainingPlan
from ratchet.contracts.model import ModelRef, model_ref, refuse_code
from ratchet.contracts.rows import Adopted, CycleNoted, CycleOpened, FileTaken, GivenModel, HubSource, Request, ServedAs, row_of
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import State
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView, fold_line
from ratchet.flows.core.requests import ApprovalView, fold_approval
from ratchet.flows.core.triggers import cycle_is_due
from ratchet.flows.engine.context import LineContext

if TYPE_CHECKING:
    from ratchet.contracts.ports import Ledger


def adopt(context: LineContext, folder: Path, actor: str, source: HubSource | None = None) -> ModelVersion:
    """Adopt the model in `folder` as the line's version 0 and first champion. Adopting the same model again changes nothing.

    `source` is where it was downloaded.

    Raises Permanent if `folder` is not a folder or contains code, or if the line has already adopted another model.
    """
    line = context.line_view()
    model = stored_model(context, folder)
    version = ModelVersion(line=line.line, number=0, tag=version_tag(digest(model.id)), model=model, cycle=None)
    if line.base is not None:
        if line.base.model == model:
            return line.base
        raise Permanent(
            f"line {line.line!r} has already adopted {line.base.tag}; a line adopts one model only: create a new line for another model"
        )
    row = row_of(
        "adopted", Adopted(version=version, actor=actor, folder=str(context.folder), file=context.file, source=source), version.tag
    )
    named = row_of("served_as", ServedAs(name=context.loop.line.served_model))
    context.ledger.append([Append(stream=line_stream(line.line), after=line.seq, rows=(row, named))], None, context.clock.now())
    return version


def not_adopted(context: LineContext) -> Rejected:
    """Return the error of a request that needs a model of the line."""
    file = shlex.quote(str(context.folder / context.file)) if context.file else "LOOP.toml"
    return Rejected("not_adopted", f"line {context.line!r} has no model yet: run `ratchet adopt {file} MODEL_FOLDER`")


def stored_model(context: LineContext, folder: Path) -> ModelRef:
    """Copy a model folder into the artifacts. Raises Permanent if it is not a folder, contains code, or links to files outside of it."""
    if not folder.is_dir():
        raise Permanent(
            f"{folder} is not a folder; pass the folder of a model (config.json, *.safetensors, tokenizer). "
            "A model of a hub is adopted by its name: `ratchet adopt LOOP hub:OWNER/NAME@REVISION`"
        )
    if not any(folder.iterdir()):
        raise Permanent(f"{folder} is empty; pass the folder of a model (config.json, *.safetensors, tokenizer)")
    _refuse_foreign_links(folder)
    refuse_code(folder)
    context.progress(f"copying model {folder} …", 0, 0)
    return model_ref(folder, context.artifacts.put_folder(folder, follow_links=True))


def note_name(context: LineContext) -> list[str]:
    """Record the `served_model` of the loop file as the line's model name. Return one text if it has changed.

    `context` must have the present content of the loop file. Clients may call the line by the former name until `end_name`. The route in
    force still has the former names until it is set again.
    """
    line, name = context.line_view(), context.loop.line.served_model
    if line.base is None or line.served_model == name:
        return []
    former = line.served_model or unrecorded_name(context, line)
    row = ServedAs(name=name, former=(former,) if former and not line.served_model and former != name else ())
    with contextlib.suppress(Conflict):  # another process has changed the line; the next call finds out what is left
        context.ledger.append(
            [Append(stream=line_stream(line.line), after=line.seq, rows=(row_of("served_as", row),))], None, context.clock.now()
        )
    names = ", ".join(repr(one) for one in context.line_view().former_names)
    if not names:
        return []
    return [f"callers use the model name {name!r} from now on; {names} still get answers until `ratchet names {line.line} --end NAME`"]


def unrecorded_name(context: LineContext, line: LineView) -> str:
    """Return the model name of a line whose rows record none: that of the route in force, or else of its newest cycle; or empty text."""
    route = context.router.read(line.line)
    if route is not None:
        return route.served_model
    newest = context.cycle_view(cycle_stream(line.line, line.cycles)) if line.cycles else None
    return newest.loop.line.served_model if newest else ""


def end_name(ledger: Ledger, name: str, former: str, actor: str, reason: str, now: datetime) -> LineView:
    """End a former model name of a line: clients that use it get no answers once the route is set again. Return the view after it.

    Raises Rejected if the line has no such former name; its present name cannot be ended.
    """
    for left in reversed(range(_TRIES)):
        line = fold_line(name, ledger.read(line_stream(name)))
        if former == line.served_model:
            raise Rejected("present_name", f"{former!r} is the present model name of line {name!r}; change line.served_model first")
        if former not in line.former_names:
            known = ", ".join(repr(one) for one in line.former_names) or "none"
            raise Rejected("no_name", f"line {name!r} has no former model name {former!r}; its former names: {known}")
        row = row_of("name_ended", Request(actor=actor, reason=reason), former)
        try:
            ledger.append([Append(stream=line_stream(name), after=line.seq, rows=(row,))], None, now)
            break
        except Conflict:
            if not left:
                raise
    return fold_line(name, ledger.read(line_stream(name)))


def take_over(context: LineContext, former: Path | None, actor: str, reason: str) -> None:
    """Record that the loop file of `context` is the one of its line, instead of `former`. Raises Rejected for an unknown line."""
    line = context.line_view()
    if not line.rows:
        raise Rejected("no_line", f"there is no line {line.line!r} yet; `ratchet adopt LOOP.toml MODEL_FOLDER` creates it")
    taken = FileTaken(folder=str(context.folder), file=context.file, former=str(former or ""), actor=actor, reason=reason)
    row = row_of("file_taken", taken)
    context.ledger.append([Append(stream=line_stream(line.line), after=line.seq, rows=(row,))], None, context.clock.now())


def _refuse_foreign_links(folder: Path) -> None:
    """Raise Permanent if a link in the model folder is broken or points out of it, except into the blobs of a Hugging Face cache."""
    real = folder.resolve()
    inside = [real, *([real.parents[1] / "blobs"] if real.parent.name == "snapshots" else [])]
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not any(path.resolve().is_relative_to(place) for place in inside):
            raise Permanent(f"{path} is a link to {path.resolve()}, which is outside of the model folder; copy the file into the folder")
        if not path.exists():
            raise Permanent(f"{path} is a link to a file that does not exist; download the model completely")


def open_cycle(context: LineContext, reason: str, actor: str = "", given: GivenModel | None = None) -> str:
    """Open the line's next cycle, store the loop file's content in it, and return its stream name.

    `actor` is the operator who requested the cycle, if there is one. With a `given` model, the cycle trains none. Raises Rejected if no
    model is adopted, if the line is frozen, if a cycle is open, or if another process changes the line at the same time.
    """
    line = context.line_view()
    champion = line.clean_champion
    if line.champion is None or champion is None or line.base is None:
        raise not_adopted(context)
    if line.open_cycle is not None:
        raise Rejected("cycle_open", f"{line.open_cycle} is still open; `ratchet status` shows what it waits for")
    if line.frozen is not None:
        raise Rejected("frozen", f"line {line.line!r} is {line.frozen}; to open cycles again, run `ratchet unfreeze {line.line}`")
    # New traces are counted from the last cycle that could train on them.
    cycle, traces = cycle_stream(line.line, line.cycles + 1), context.datasets.cursor().traces if given is None else line.last_traces
    opened = CycleOpened(
        line=line.line,
        number=line.cycles + 1,
        loop=context.loop,
        loop_digest=digest(context.loop),
        folder=str(context.folder),
        file=context.file,
        champion=line.champion,
        start=start_of(context, line, champion) if given is None else champion,
        reason=reason,
        baseline=champion if champion != line.champion else None,
        actor=actor,
        given=given,
    )
    noted = row_of("cycle_opened", CycleNoted(traces=traces, reason=reason, actor=actor), cycle)
    rows = [
        Append(stream=cycle, after=0, rows=(row_of("opened", opened),)),
        Append(stream=line_stream(line.line), after=line.seq, rows=(noted,)),
    ]
    try:
        context.ledger.append(rows, None, context.clock.now())
    except Conflict as error:
        raise Rejected(
            "cycle_open", f"another process changed line {line.line!r} at the same time; check `ratchet status` and retry"
        ) from error
    return cycle


PAST_CYCLES = 20
"""Number of past cycles in which a held candidate is looked for."""


def trainings(context: LineContext, version: ModelVersion) -> Iterator[TrainingPlan | None]:
    """Yield the plans that led to a version, from the adopted model on, the newest one first. None: it was trained elsewhere."""
    while version.cycle is not None:
        cycle = context.cycle_view(version.cycle)
        yield next((plan for plan in cycle.plans if plan.id == version.plan), None)
        version = cycle.start


def start_of(context: LineContext, line: LineView, champion: ModelVersion) -> ModelVersion:
    """Return the version that a cycle opened now trains from, by `line.start_from`. `champion` is the one that it is compared with.

    A held candidate qualifies if it was compared with this champion, scored higher on average, and is not recalled.
    """
    wanted = context.loop.line.start_from
    if line.base is not None and (wanted == "base" or (wanted == "auto" and _learns_all_again(context, champion))):
        return line.base
    if wanted == "held":
        for number in range(line.cycles, max(0, line.cycles - PAST_CYCLES), -1):
            past = context.cycle_view(cycle_stream(line.line, number))
            if past.baseline.tag != champion.tag:
                break
            if past.state is State.HELD and past.candidate is not None and past.candidate.tag not in line.recalled and _is_higher(past):
                return past.candidate
    return champion


def _learns_all_again(context: LineContext, champion: ModelVersion) -> bool:
    """Whether a training from the base model learns what the champion has learned, because the line keeps all evidence for SFT."""
    keeps = context.loop.retention.traces is None and context.loop.retention.feedback is None
    if not keeps or Method.SFT.value not in context.loop.training.methods:
        return False
    return all(plan is not None and plan.method is Method.SFT for plan in trainings(context, champion))


def _is_higher(cycle: CycleView) -> bool:
    """Whether the candidate's mean score is above that of the champion, over golden set and holdout together."""
    overall = cycle.report.comparison("overall") if cycle.report else None
    return overall is not None and overall.difference.estimate > 0


def open_if_due(context: LineContext, scheduled: bool) -> tuple[str | None, str]:
    """Open a cycle if one is due. Return the opened cycle or None, and the reason in either case."""
    wanted, reason = cycle_is_due(context.line_view(), context.datasets.cursor(), context.loop.trigger, scheduled, context.clock.now())
    if not wanted:
        return None, reason
    try:
        return open_cycle(context, reason), reason
    except Rejected as error:
        return None, error.detail


def retry_cycle(context: LineContext, number: int, actor: str) -> str:
    """Open a new cycle after the ended cycle `number`, although no new traces arrived, and return its stream name.

    Raises Rejected as `open_cycle`, and if the line has no such cycle.
    """
    rows = context.ledger.read(cycle_stream(context.line, number))
    if not rows:
        raise Rejected("no_cycle", f"line {context.line!r} has no cycle {number}; `ratchet history {context.line}` lists its cycles")
    return open_cycle(context, f"retry of {number}", actor, fold_cycle(rows).given)


def approvals(ledger: Ledger, line: str) -> list[ApprovalView]:
    """List all approval requests of a line, oldest first."""
    return [fold_approval(ledger.read(stream)) for stream in ledger.streams(f"approval/{line}/")]


def cycle_requests(ledger: Ledger, cycle: CycleView) -> dict[ApprovalKind, ApprovalView]:
    """Return the approval requests of a cycle that were made so far."""
    return {kind: fold_approval(rows) for kind in ApprovalKind if (rows := ledger.read(approval_stream(cycle.id, kind)))}


def answer(ledger: Ledger, request: ApprovalView, given: Answer, now: datetime) -> tuple[Answer | None, bool]:
    """Record an answer to an approval request. The first answer wins.

    Return a pair: the answer that counts (None if the request expired without one), and whether the given answer was recorded.
    """
    if request.awaiting and now < request.expires:
        row = row_of("answered", given, request.kind)
        try:
            ledger.append([Append(stream=request.id, after=request.seq, rows=(row,))], None, now)
            return given, True
        except Conflict:
            request = fold_approval(ledger.read(request.id))
    return request.answer, False


def ask_rollback(ledger: Ledger, name: str, actor: str, reason: str, now: datetime) -> LineView:
    """Request a rollback of the line to its previous champion, or of its running rollout. The service carries it out within seconds.

    Return the view of the line from which the rollback starts. A second request has no effect while the first one is open.
    Raises Rejected if the line has neither an open cycle nor a previous champion, and if another request has changed the champion or ended
    the open cycle meanwhile: this request would then go back one version further.
    """
    first = fold_line(name, ledger.read(line_stream(name)))
    row = row_of("rollback_asked", Request(actor=actor, reason=reason))
    line = first
    for _ in range(_TRIES):
        if line.rollback_asked:
            return line
        if (line.champion, line.open_cycle) != (first.champion, first.open_cycle):
            serves = line.champion.tag if line.champion else "no version"
            raise Rejected(
                "line_changed",
                f"line {name!r} has just changed by another request, and serves {serves}; look at `ratchet status {name}`, and repeat this "
                "one only if that version must go, too",
            )
        if line.open_cycle is None and line.previous is None:
            raise Rejected("nothing_to_roll_back", f"line {name!r} serves its adopted model and no rollout is running")
        with contextlib.suppress(Conflict):
            ledger.append([Append(stream=line_stream(name), after=line.seq, rows=(row,))], None, now)
            return line
        line = fold_line(name, ledger.read(line_stream(name)))
    raise Conflict(f"the stream of line {name!r} changes all the time; try again")


def ask_cancel(ledger: Ledger, name: str, actor: str, reason: str, now: datetime) -> None:
    """Request the end of the line's open cycle. The champion keeps serving. Raises Rejected if no cycle is open."""
    line = fold_line(name, ledger.read(line_stream(name)))
    if line.open_cycle is None:
        raise Rejected("no_open_cycle", f"line {name!r} has no open cycle")
    if line.cancel_asked is None:
        row = row_of("cancel_asked", Request(actor=actor, reason=reason), line.open_cycle)
        ledger.append([Append(stream=line_stream(name), after=line.seq, rows=(row,))], None, now)


_TRIES = 20
"""Tries to append a row to a line whose stream other processes write at the same time."""


def freeze(ledger: Ledger, name: str, actor: str, reason: str, now: datetime) -> bool:
    """Freeze the line: no new cycle opens until it is unfrozen. The open cycle, serving and ingest continue.

    Return whether this call froze it. False: it was frozen before, and the first reason stays. Raises Rejected for an unknown line.
    """
    return _set_frozen(ledger, name, row_of("frozen", Request(actor=actor, reason=reason)), now)


def unfreeze(ledger: Ledger, name: str, actor: str, reason: str, now: datetime) -> bool:
    """End the freeze of the line. Return whether this call ended it. Raises Rejected for an unknown line."""
    return _set_frozen(ledger, name, row_of("unfrozen", Request(actor=actor, reason=reason)), now)


def _set_frozen(ledger: Ledger, name: str, row: Row, now: datetime) -> bool:
    """Append the row unless the line is in its state already. Another process may write the stream, so a conflict is tried again."""
    for left in reversed(range(_TRIES)):
        line = fold_line(name, ledger.read(line_stream(name)))
        if not line.rows:
            raise Rejected("no_line", f"there is no line {name!r}; `ratchet status` lists the lines")
        if (line.frozen is not None) == (row.kind == "frozen"):
            return False
        try:
            ledger.append([Append(stream=line_stream(name), after=line.seq, rows=(row,))], None, now)
        except Conflict:
            if not left:
                raise
        else:
            return True
    return False
