"""What each step does, through ports. Every function may be called again after a crash and finds what it did before:
datasets, artifacts, jobs, servers, registry and routes are all idempotent by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from contracts.cycle import Append, Row, Step
from contracts.data import HoldoutEdition, ProbeReport, Snapshot
from contracts.errors import Conflict, Permanent
from contracts.evaluation import EvalReport, verdict_of
from contracts.ids import canonical, checkpoint_name, effect_name, rollout_stream, version_tag
from contracts.serving import Backend, ModelVersion, Route
from contracts.training import Adjustment, Attempt, Checkpoint, JobSpec, TrainingPlan
from flows.core.diary import accepted_line
from flows.core.triggers import edition_number
from flows.core.views import CycleView
from flows.engine.choosing import choose_plan, drafts
from flows.engine.diaries import read_diaries
from flows.engine.house import House

Output = dict[str, Any]


def freeze(house: House, cycle: CycleView, key: str) -> Output:
    """The holdout edition in force is set apart first, then everything else is frozen."""
    number = edition_number(house.line_view().evaluations, cycle.loop.holdout.rotate_after)
    edition = house.datasets.edition(number)
    snapshot = house.datasets.freeze(effect_name(cycle.id, key), cycle.opened_at, edition)
    return {"edition": edition.model_dump(mode="json"), "snapshot": snapshot.model_dump(mode="json")}


def probe(house: House, cycle: CycleView, key: str) -> Output:
    """The start model's own answers; an empty output where the loop file asks for none."""
    if cycle.loop.probe.prompts == 0:
        return {}
    client = house.client(house.server.ensure(cycle.start))
    report = house.datasets.probe(effect_name(cycle.id, key), _snapshot(cycle), client, house.progress)
    return report.model_dump(mode="json")


def plan(house: House, cycle: CycleView, key: str) -> Output:
    """Choice and plan, computed once, of a method whose job can be built for the machines."""
    asked = cycle.done[Step.PROBE]
    report = ProbeReport.model_validate(asked) if asked else None
    dataset = house.datasets.assemble(effect_name(cycle.id, key), _snapshot(cycle), report)
    settings = cycle.loop.training
    draft = drafts(house, cycle.loop, cycle.id, cycle.start.model, cycle.loop.line.seed + cycle.number, dataset)
    choice, training = choose_plan(house, dataset.facts, settings, draft)
    return {
        "choice": choice.model_dump(mode="json"),
        "dataset": dataset.model_dump(mode="json"),
        "plan": training.model_dump(mode="json") if training else None,
    }


def train(house: House, cycle: CycleView, key: str) -> Output:
    """Starts one incarnation, unless the executor has restarted the job by itself. It resumes from the last step that the ledger accepted
    for its attempt, or that it took over with an adjustment; where that step's files are not what was accepted, from the one before it."""
    attempt, incarnation = (int(part) for part in key.split("/")[1:])
    spec = job_of(house, cycle, attempt)
    adjustment = cycle.adjustments.get(attempt, Adjustment())
    output: Output = {"attempt": attempt, "incarnation": incarnation, "job": spec.name}
    if adjustment != Adjustment():
        output["adjustment"] = adjustment.model_dump(mode="json")
    if house.executor.restarts and house.executor.observe(spec.name).incarnation >= incarnation:
        return output  # it runs already, from what was pinned when the cluster restarted it; its diary says from which step
    output |= lay_resume_point(house, cycle, spec)
    house.executor.submit(spec, incarnation)
    return output


def job_of(house: House, cycle: CycleView, attempt: int) -> JobSpec:
    """The job of an attempt of the cycle's plan: the same however often it is asked for."""
    training, settings = _plan(cycle), cycle.loop.training
    adjustment = cycle.adjustments.get(attempt, Adjustment())
    minted = Attempt(number=attempt, timeout=settings.timeout, nodes=settings.nodes, gpus=settings.gpus, adjustment=adjustment)
    return house.trainers[training.method].job(training, minted)


def lay_resume_point(house: House, cycle: CycleView, spec: JobSpec) -> Output:
    """Pins the best accepted step whose files are whole, and says which, and which were not."""
    refused: list[str] = []
    for point in cycle.resumable(spec.attempt):
        try:
            house.executor.pin(spec, point)
        except Permanent as error:
            refused.append(f"{point.path}: {error}"[:300])
        else:
            return {"resume": point.model_dump(mode="json")} | ({"refused": refused} if refused else {})
    return {"refused": refused} if refused else {}


def accept(house: House, cycle: CycleView, key: str) -> Output:  # noqa: ARG001 -- all effects have one signature
    """A finished checkpoint becomes a model version only if its bytes are the model that it claims to be."""
    training, last = _plan(cycle), cycle.incarnations[-1]
    bound = house.artifacts.resolve(checkpoint_name(training.id, last.attempt, last.number))
    if bound is None:
        raise Permanent(f"the job of attempt {last.attempt} says it is done but published no checkpoint; look at its log")
    checkpoint = Checkpoint.model_validate_json(house.artifacts.get(bound))
    folder = house.artifacts.fetch(checkpoint.files, house.scratch / "models" / checkpoint.files)
    found = house.read_model(folder, checkpoint.files, checkpoint.model.parent)
    if found != checkpoint.model or checkpoint.plan != training.id:
        raise Permanent(f"checkpoint {checkpoint.id[:12]} is not what its job claims: its files have other digests")
    version = ModelVersion(
        line=cycle.line, number=cycle.number, tag=version_tag(checkpoint.id), model=checkpoint.model, cycle=cycle.id, plan=training.id
    )
    return {"checkpoint": checkpoint.model_dump(mode="json"), "version": version.model_dump(mode="json")}


def evaluate(house: House, cycle: CycleView, key: str) -> Output:
    """Champion against candidate, over HTTP. The report is bound to the step's name, so a repeat does not ask again."""
    name = effect_name(cycle.id, key)
    bound = house.artifacts.resolve(name)
    if bound is None:
        champion, candidate = cycle.champion, _candidate(cycle)
        sides = [(version.model, house.client(house.server.ensure(version))) for version in (champion, candidate)]
        report = house.evaluator.evaluate(_edition(cycle), sides[0], sides[1], house.progress)
        bound = house.artifacts.bind(name, house.artifacts.put(canonical(report)))
    return {"digest": bound, "report": json.loads(house.artifacts.get(bound))}


def judge(house: House, cycle: CycleView, key: str) -> Output:  # noqa: ARG001
    """Every check on the report; no check passes without data."""
    report = EvalReport.model_validate(cycle.done[Step.EVALUATE]["report"])
    if report.candidate != _candidate(cycle).model.id or report.champion != cycle.champion.model.id:
        raise Permanent("the report compares other models than this cycle's; it cannot be used")
    checks = tuple(check.check(report) for check in house.checks)
    return verdict_of(checks, cycle.done[Step.EVALUATE]["digest"]).model_dump(mode="json")


def register(house: House, cycle: CycleView, key: str) -> Output:  # noqa: ARG001
    """A copy for people to find: version, lineage tags, metrics, and the curves of the training that led to it."""
    version, training = _candidate(cycle), _plan(cycle)
    folder = house.artifacts.fetch(version.model.files, house.scratch / "models" / version.model.files)
    tags = {
        "ratchet.cycle": cycle.id,
        "ratchet.plan": training.id,
        "ratchet.method": str(training.method),
        "ratchet.dataset": training.dataset,
        "ratchet.snapshot": str(cycle.done[Step.FREEZE]["snapshot"]["content"]),
        "ratchet.parent": cycle.start.tag,
        "ratchet.report": str(cycle.done[Step.EVALUATE]["digest"]),
        "ratchet.model": version.model.id,
    }
    report = EvalReport.model_validate(cycle.done[Step.EVALUATE]["report"])
    metrics = {
        f"gate.{c.name}.{side}": value for c in report.comparisons for side, value in (("champion", c.champion), ("candidate", c.candidate))
    }
    attempt = cycle.checkpoint.attempt if cycle.checkpoint else 0
    steps = accepted_line(cycle, read_diaries(cycle, house.artifacts), attempt)
    reference = house.registry.register(version, folder, tags, {**metrics, **(cycle.checkpoint.metrics if cycle.checkpoint else {})}, steps)
    house.registry.alias(cycle.line, "candidate", version.tag)
    return {"reference": reference}


def roll(house: House, cycle: CycleView, key: str) -> Output:  # noqa: ARG001
    """Opens the rollout's own stream; its ticks do the rest."""
    candidate = _candidate(cycle)
    if not house.router.attribution:
        raise Permanent("the router does not attribute answers to versions; without attribution there is no rollout")
    house.server.ensure(candidate)
    data = {
        "cycle": cycle.id,
        "champion": cycle.champion.model_dump(mode="json"),
        "candidate": candidate.model_dump(mode="json"),
        "settings": cycle.loop.rollout.model_dump(mode="json"),
    }
    stream = rollout_stream(cycle.id)
    try:
        house.ledger.append([Append(stream=stream, after=0, rows=(Row(kind="opened", data=data),))], None, house.clock.now())
    except Conflict:
        if not house.ledger.read(stream):
            raise
    return {"rollout": stream}


def promote(house: House, cycle: CycleView, key: str) -> Output:
    """The route follows; the ledger's `champion` row is written with the cycle's end. The registry's alias is left to the
    reconciler: a registry that is away must not hold up a promotion, or a rollback."""
    version = _candidate(cycle)
    house.router.set(sole_route(house, version, effect_name(cycle.id, key)))
    return {"version": version.tag}


def sole_route(house: House, version: ModelVersion, annotation: str) -> Route:
    """All sessions to one version."""
    endpoint = house.server.ensure(version)
    backend = Backend(tag=endpoint.tag, url=endpoint.url, model=endpoint.model, weight=100)
    return Route(line=house.line, served_model=house.loop.line.served_model, backends=(backend,), annotation=annotation)


def _snapshot(cycle: CycleView) -> Snapshot:
    return Snapshot.model_validate(cycle.done[Step.FREEZE]["snapshot"])


def _edition(cycle: CycleView) -> HoldoutEdition:
    return HoldoutEdition.model_validate(cycle.done[Step.FREEZE]["edition"])


def _plan(cycle: CycleView) -> TrainingPlan:
    if cycle.plan is None:
        raise Permanent(f"{cycle.id} has no plan to train")
    return cycle.plan


def _candidate(cycle: CycleView) -> ModelVersion:
    if cycle.candidate is None:
        raise Permanent(f"{cycle.id} has no accepted checkpoint")
    return cycle.candidate


EFFECTS: dict[Step, Callable[[House, CycleView, str], Output]] = {
    Step.FREEZE: freeze,
    Step.PROBE: probe,
    Step.PLAN: plan,
    Step.TRAIN: train,
    Step.ACCEPT: accept,
    Step.EVALUATE: evaluate,
    Step.JUDGE: judge,
    Step.REGISTER: register,
    Step.ROLL: roll,
    Step.PROMOTE: promote,
}
