"""Tests that the types of the rows keep the stored form of each row, and name what is wrong in a damaged one."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratchet.contracts import rows
from ratchet.contracts.cycle import Answer, ApprovalKind, Row
from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.data.teaching import TeacherOutcome
from ratchet.contracts.errors import Permanent
from ratchet.contracts.extension import ExtensionVersion
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.hash_chain import GENESIS, seal_row
from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.search import Chosen, Trial, TrialEnd
from ratchet.contracts.jobs.training import Adjustment, Proposal, ResumePoint, Usage
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.mirror import Mirrored
from ratchet.contracts.model import Frozen
from ratchet.contracts.rows import RowContent, content_of, row_of
from ratchet.contracts.serving import ModelVersion, StepJudgement, StepResult
from ratchet.contracts.steps import STEPS, State, Step
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.core.folds.rollout import fold_rollout
from ratchet.flows.core.requests import fold_approval
from tests.simulation.simulated_line import Scenario, SimulatedLine, loop_for

NOON = datetime(2026, 1, 1, 12, 0, 0, 250, tzinfo=UTC)
VERSION = ModelVersion(line="sim", number=1, tag="v1", model=fake_model("one"), cycle="cycle/sim/0001")
BEFORE = ModelVersion(line="sim", number=0, tag="v0", model=fake_model("zero"), cycle=None)
GIVEN = rows.GivenModel(model=fake_model("two"), folder="/models/two", differs=("tokenizer",))
PROPOSAL = Proposal(rule="kl", adjustment=Adjustment(kl=2.0), good=1)
USAGE = Usage(started=0.0, used=1.0, idle=0.0, lost=0.0, nodes=1.0, cost=0.0, preemptions=0)
CODE = ExtensionVersion(name="lake", distribution="ratchet", version="0.1.0", code="d")
LOOP = loop_for("yes")
JUDGEMENT = StepJudgement(result=StepResult.WAIT, reasons=("figures",))
TRIAL = Trial(number=1, variant=0, attempt=1, timeout=1.0, reason="first")
ENDED: dict[str, Any] = {"attempt": 1, "incarnation": 2, "reason": "because"}
OPENED: dict[str, Any] = {"line": "sim", "number": 1, "loop_digest": "d", "folder": "/loops", "file": "sim.toml", "reason": "new traces"}
ASKED: dict[str, Any] = {"cycle": "cycle/sim/0001", "subject": "s", "evidence": "e"}


def js(value: Frozen) -> Any:
    """Return a nested object as the rows have it: with all its fields."""
    return value.model_dump(mode="json")


STORED: list[tuple[RowContent, dict[str, Any]]] = [
    (rows.Reason(reason="why"), {"reason": "why"}),
    (rows.Request(actor="ada", reason=""), {"actor": "ada", "reason": ""}),
    (
        rows.CycleOpened(loop=LOOP, champion=VERSION, start=BEFORE, **OPENED),
        {**OPENED, "loop": js(LOOP), "champion": js(VERSION), "start": js(BEFORE)},
    ),
    (
        rows.CycleOpened(loop=LOOP, champion=VERSION, start=BEFORE, baseline=BEFORE, actor="ada", **OPENED),
        {**OPENED, "loop": js(LOOP), "champion": js(VERSION), "start": js(BEFORE), "baseline": js(BEFORE), "actor": "ada"},
    ),
    (
        rows.CycleOpened(loop=LOOP, champion=VERSION, start=BEFORE, given=GIVEN, **OPENED),
        {**OPENED, "loop": js(LOOP), "champion": js(VERSION), "start": js(BEFORE), "given": js(GIVEN)},
    ),
    (rows.EffectIntended(), {}),
    (rows.EffectIntended(adjustment=PROPOSAL.adjustment), {"adjustment": js(PROPOSAL.adjustment)}),
    (rows.FailedTry(error="away"), {"error": "away"}),
    (rows.Away(since=NOON), {"since": "2026-01-01T12:00:00.000250Z"}),
    (rows.Died(since=NOON, until=NOON), {"since": "2026-01-01T12:00:00.000250Z", "until": "2026-01-01T12:00:00.000250Z"}),
    (rows.JobEnd(outcome=Outcome.LOST, **ENDED), {**ENDED, "outcome": "lost"}),
    (
        rows.JobEnd(outcome=Outcome.FAILED, successor=3, usage=USAGE, proposal=PROPOSAL, events="e", **ENDED),
        {**ENDED, "outcome": "failed", "successor": 3, "usage": js(USAGE), "proposal": js(PROPOSAL), "events": "e"},
    ),
    (rows.TrialBegun(trial=TRIAL, variant="DPO", plan="p"), {"trial": js(TRIAL), "variant": "DPO", "plan": "p"}),
    (
        rows.Asked(kind=ApprovalKind.TRAINING, expires=NOON, **ASKED),
        {**ASKED, "kind": "training", "expires": "2026-01-01T12:00:00.000250+00:00"},
    ),
    (rows.Adopted(version=BEFORE, actor="ada", folder="", file=""), {"version": js(BEFORE), "actor": "ada", "folder": "", "file": ""}),
    (rows.ServedAs(name="bot"), {"name": "bot"}),
    (rows.ServedAs(name="bot", former=("old",)), {"name": "bot", "former": ["old"]}),
    (
        rows.FileTaken(actor="ada", reason="moved", folder="/a", file="loop.toml"),
        {"actor": "ada", "reason": "moved", "folder": "/a", "file": "loop.toml"},
    ),
    (
        rows.FileTaken(actor="ada", reason="moved", folder="/a", file="loop.toml", former="/b/loop.toml"),
        {"actor": "ada", "reason": "moved", "folder": "/a", "file": "loop.toml", "former": "/b/loop.toml"},
    ),
    (
        rows.ReviewTaken(actor="ada", answers=3, reviewers=2, questions="q", expected=0.25),
        {"actor": "ada", "answers": 3, "reviewers": 2, "questions": "q", "expected": 0.25},
    ),
    (
        rows.DatasetExported(actor="ada", source="now", format="trl", rows={"sft.jsonl": 2}, snapshot="s", files="f", folder="/out"),
        {
            "actor": "ada",
            "source": "now",
            "format": "trl",
            "rows": {"sft.jsonl": 2},
            "snapshot": "s",
            "files": "f",
            "folder": "/out",
        },
    ),
    (rows.TeacherSent(highest=0.5), {"highest": 0.5}),
    (rows.TeacherSent(highest=0.5, measures=True), {"highest": 0.5, "measures": True}),
    (rows.TeacherGot(outcome=TeacherOutcome.CUT, cost=0.25, detail="long"), {"outcome": "cut", "cost": 0.25, "detail": "long"}),
    (
        rows.TeacherGot(outcome=TeacherOutcome.ANSWERED, cost=0.25, requests=2, input_tokens=3, output_tokens=4, answer="a"),
        {"outcome": "answered", "cost": 0.25, "requests": 2, "input_tokens": 3, "output_tokens": 4, "answer": "a"},
    ),
    (rows.CycleNoted(traces=0, reason="why"), {"traces": 0, "reason": "why"}),
    (rows.CycleNoted(traces=7, reason="why", actor="ada"), {"traces": 7, "reason": "why", "actor": "ada"}),
    (rows.CycleEnd(state=State.HELD, reason="why", evaluated=False), {"state": "held", "reason": "why", "evaluated": False}),
    (
        rows.CycleEnd(state=State.SUPERSEDED, reason="why", evaluated=True, plan_again=True),
        {"state": "superseded", "reason": "why", "evaluated": True, "plan_again": True},
    ),
    (rows.NewChampion(version=VERSION, cycle="cycle/sim/0001"), {"version": js(VERSION), "cycle": "cycle/sim/0001"}),
    (rows.RolledBack(to=None, actor="ada", reason="why"), {"to": None, "actor": "ada", "reason": "why"}),
    (
        rows.RolledBack(to=BEFORE, gone=VERSION, actor="ada", reason="why"),
        {"to": js(BEFORE), "from": js(VERSION), "actor": "ada", "reason": "why"},
    ),
    (
        rows.QuarantineAlarm(read=0, quarantined=0, reasons={}, text="none"),
        {"read": 0, "quarantined": 0, "reasons": {}, "text": "none"},
    ),
    (rows.GarbageCollected(rows={}, files={"jobs": 2}, bytes=0), {"rows": {}, "files": {"jobs": 2}, "bytes": 0}),
    (
        rows.RolloutOpened(cycle="c", champion=BEFORE, candidate=VERSION, settings=LOOP.rollout, metrics=(CODE,), salt="s"),
        {
            "cycle": "c",
            "champion": js(BEFORE),
            "candidate": js(VERSION),
            "settings": js(LOOP.rollout),
            "metrics": [js(CODE)],
            "salt": "s",
        },
    ),
    (rows.WeightSet(index=0, weight=RolloutSettings.model_validate({"steps": [5, 100]}).steps[0]), {"index": 0, "weight": 5.0}),
    (rows.Judged(index=0, weight=5.0, judgement=JUDGEMENT), {"index": 0, "weight": 5.0, "judgement": js(JUDGEMENT)}),
    (rows.MirrorBegun(secret="s", prompts=(("a", "p"),)), {"secret": "s", "prompts": [["a", "p"]]}),
    (
        rows.MirrorEnd(mirrored=Mirrored(asked=1, failed=0, unscored=0, pairs=(("p", 0.5),))),
        {"mirrored": {"asked": 1, "failed": 0, "unscored": 0, "pairs": [["p", 0.5]]}},
    ),
    (rows.IngestBegun(source="lake", format="otlp", sender=None), {"source": "lake", "format": "otlp", "sender": None}),
    (rows.IngestEnd(report=IngestReport(), dialects=(CODE,)), {"report": js(IngestReport()), "dialects": [js(CODE)]}),
]


@pytest.mark.parametrize(("content", "stored"), STORED, ids=[type(one).__name__ for one, _ in STORED])
def test_each_row_is_stored_in_its_form_and_read_back(content: RowContent, stored: dict[str, Any]) -> None:
    row = row_of("kind", content, "key")
    assert canonical(row.data) == canonical(stored)
    assert content_of(type(content), seal_row("line/sim", 1, row, NOON, 1, GENESIS)) == content


def test_the_stored_form_of_every_type_is_tested() -> None:
    declared = {kind for kind in vars(rows).values() if inspect.isclass(kind) and issubclass(kind, RowContent)} - {RowContent}
    assert {type(content) for content, _ in STORED} == declared


TYPES: dict[str, type[Frozen]] = {
    "line adopted": rows.Adopted,
    "line cycle_opened": rows.CycleNoted,
    "line cycle_ended": rows.CycleEnd,
    "line champion": rows.NewChampion,
    "line rollback_asked": rows.Request,
    "line cancel_asked": rows.Request,
    "line rolled_back": rows.RolledBack,
    "cycle opened": rows.CycleOpened,
    "cycle intended": rows.EffectIntended,
    "cycle step_accepted": ResumePoint,
    "cycle job_ended": rows.JobEnd,
    "cycle trial_intended": rows.TrialBegun,
    "cycle trial_ended": TrialEnd,
    "cycle chosen": Chosen,
    "cycle asked": rows.Asked,
    "cycle answered": Answer,
    "cycle ended": rows.Reason,
    "approval asked": rows.Asked,
    "approval answered": Answer,
    "approval expired": rows.Reason,
    "rollout opened": rows.RolloutOpened,
    "rollout judged": rows.Judged,
    "rollout ended": rows.Reason,
}
SCENARIOS = (
    Scenario(seed=1, outcomes=(Outcome.PREEMPTED, Outcome.FAILED), asks=(PROPOSAL,)),
    Scenario(seed=2, search=True),
    Scenario(seed=3, people="never"),
    Scenario(seed=3, people="auto", rollback_at=15),
    Scenario(seed=3, cancel_at=5),
)


def _type(stream: str, row: Row) -> type[Frozen] | None:
    """Return the type of a row; None for rows of a rollout that are empty."""
    if (stream, row.kind) == ("cycle", "done"):
        return STEPS[Step(row.key.split("/")[0])].result
    if stream == "rollout" and row.kind in ("intended", "done"):
        if row.key == "back":
            return rows.Reason if row.kind == "intended" else None
        return rows.WeightSet if row.kind == "done" else None
    return TYPES[f"{stream} {row.kind}"]


def test_every_row_of_a_simulated_line_is_read_and_written_unchanged() -> None:
    seen = set()
    for scenario in SCENARIOS:
        sim = SimulatedLine(scenario)
        sim.live()
        for stream in sim.ledger.streams(""):
            for row in sim.ledger.read(stream):
                sort = stream.split("/")[0]
                seen.add(f"{sort} {row.kind}")
                kind = _type(sort, Row(kind=row.kind, key=row.key))
                assert canonical(row_of(row.kind, content_of(kind, row)).data if kind else {}) == canonical(row.data)
    assert seen - {"cycle done", "rollout intended", "rollout done"} == set(TYPES)


def test_a_damaged_row_is_named_by_row_and_field() -> None:
    def sealed(stream: str, kind: str, data: dict[str, Any]) -> list[Any]:
        return [seal_row(stream, 1, Row(kind=kind, key="k", data=data), NOON + timedelta(seconds=1), 1, GENESIS)]

    with pytest.raises(Permanent, match=r"row 1 of line/sim \(cycle_opened k\) is not a valid CycleNoted: traces: it is required"):
        fold_line("sim", sealed("line/sim", "cycle_opened", {"reason": "why"}))
    with pytest.raises(Permanent, match=r"row 1 of approval/sim/0001/training \(asked k\) is not a valid Asked: expires"):
        fold_approval(sealed("approval/sim/0001/training", "asked", {**ASKED, "kind": "training", "expires": "soon"}))
    rollout = fold_rollout(sealed("rollout/sim/0001", "opened", {"cycle": "c"}))
    with pytest.raises(Permanent, match=r"row 1 of rollout/sim/0001 \(opened k\) is not a valid RolloutOpened: champion"):
        _ = rollout.champion
