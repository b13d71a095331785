"""Folded cycles in a given state, for tests of decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from ratchet.contracts.cycle import ApprovalKind, Entry, Row
from ratchet.contracts.data.datasets import TrainingSet
from ratchet.contracts.evaluation import CheckResult, Result, verdict_of
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.hash_chain import GENESIS, seal_row
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Choice, Method, TrainingPlan
from ratchet.contracts.rows import CycleOpened, row_of
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import ENDS, STEPS, JudgeResult, PlanResult, State, Step, StepResult, step_of_result
from ratchet.flows.core.folds.cycle import AUTO, CycleView, Done, Incarnation
from tests.simulation.simulated_line import FACTS, loop_for

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def entry(row: Row, seq: int = 1, stream: str = "cycle/sim/0001") -> Entry:
    """Return a row as the ledger returns it."""
    return seal_row(stream, seq, row, NOON, 1, GENESIS)


def done_row(key: str, data: dict[str, Any]) -> Done:
    """Return the `done` row of an effect with this content."""
    return Done(entry(Row(kind="done", key=key, data=data), 2))


def done(*results: StepResult) -> dict[str, Done]:
    """Return the `done` rows of steps with these results."""
    keys = [str(step_of_result(type(one))) for one in results]
    return {key: done_row(key, one.model_dump(mode="json")) for key, one in zip(keys, results, strict=True)}


def knowing(*results: StepResult, **fields: Any) -> Any:
    """Return an object with these results and fields, for code that reads nothing else of a cycle."""
    found = {type(one): one for one in results}
    return SimpleNamespace(get=found.get, result=found.__getitem__, **fields)


def plan_result(method: Method = Method.DPO, plan: TrainingPlan | None = None, **dataset: Any) -> PlanResult:
    """Return the result of a plan that chose a method, with `dataset` of its training set."""
    given: dict[str, Any] = {name: digest(name) for name in ("snapshot", "pairs", "prompts", "demonstrations", "content")}
    training_set = TrainingSet(**({"name": "sim", "probe": None, "facts": FACTS, **given} | dataset))
    choice = Choice(method=method, reason="the figures", rules=(), facts=FACTS)
    return PlanResult(choice=choice, dataset=training_set, plan=plan, trainers=())


def judge_result(*results: Result) -> JudgeResult:
    """Return the result of a gate whose checks have these results."""
    checks = tuple(CheckResult(check=f"c{i}", result=result, reason="figures") for i, result in enumerate(results))
    return JudgeResult(verdict=verdict_of(checks, digest("report")))


def _steps_until(state: State) -> list[Step]:
    """Return the steps that a cycle in this state has behind it."""
    last = next((step for step in Step if STEPS[step].after is state), None)
    return [] if last is None or state in ENDS else list(Step)[: list(Step).index(last) + 1]


def cycle(state: State, people: str = "yes", **fields: Any) -> CycleView:
    """Return the first cycle of the simulated line in a state, with `fields` of its view. The rows of its steps are empty unless given."""
    version = ModelVersion(line="sim", number=0, tag="v0", model=fake_model("base"), cycle=None)
    loop = fields.pop("loop", None) or loop_for(people)
    values: dict[str, Any] = {"line": "sim", "number": 1, "loop": loop, "loop_digest": digest(loop), "folder": "", "file": "", "reason": ""}
    opened = row_of("opened", CycleOpened(**values, champion=version, start=version))
    steps = _steps_until(state)
    rows = {str(step): done_row(str(step), {}) for step in steps if STEPS[step].result is not None and step is not Step.TRAIN}
    known = {key: row for key, row in done(plan_result(), judge_result(Result.PASS)).items() if key in rows}
    values = {
        "intended": frozenset(),
        "answers": {kind: AUTO for kind in ApprovalKind if any(STEPS[step].approval is kind for step in steps)},
        "incarnations": (run(1, 1, Outcome.DONE),) if Step.ACCEPT in steps else (),
    }
    values |= {**fields, "done": {**rows, **known, **fields.get("done", {})}}
    return CycleView(id="cycle/sim/0001", seq=1, state=state, first=entry(opened), **values)


def training(*incarnations: Incarnation, **fields: Any) -> CycleView:
    """Return a cycle in training with these incarnations."""
    return cycle(State.ATTEMPT, incarnations=incarnations, **fields)


def run(attempt: int, number: int, outcome: Outcome | None = None) -> Incarnation:
    """Return an incarnation of the training job; it runs if `outcome` is None."""
    return Incarnation(attempt, number, "job", outcome, "because")
