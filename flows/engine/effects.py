"""The effect of each step, performed through ports.

Every function may be called again after a crash and then finds its earlier result. Datasets, artifacts, jobs, servers, registry and
routes are all idempotent by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from ratchet.contracts.cycle import Append, Row, Step
from ratchet.contracts.data.datasets import HoldoutEdition, ProbeReport, Snapshot
from ratchet.contracts.errors import Conflict, Permanent
from ratchet.contracts.evaluation import CheckResult, EarlierAnswers, EvalReport, Result, verdict_of
from ratchet.contracts.ids import checkpoint_name, cycle_stream, effect_name, rollout_stream, version_tag
from ratchet.contracts.jobs.training import Adjustment, Attempt, Checkpoint, JobSpec, JobState, TrainingPlan
from ratchet.contracts.ports import Check
from ratchet.contracts.schema import parse, stamped, unstamped
from ratchet.contracts.serving import Backend, ModelVersion, Route
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.triggers import edition_history, edition_number, evaluation_level
from ratchet.flows.engine.choosing import choose_plan, drafts
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.search import last_winner, with_search
from ratchet.flows.engine.training_curves import accepted_line, read_event_logs

Output = dict[str, Any]
"""The data of an effect's `done` row, as JSON values."""


def freeze(context: LineContext, cycle: CycleView, key: str) -> Output:
    """Freeze the current holdout edition first, then the snapshot of all other data."""
    number = edition_number(context.line_view().evaluations, cycle.loop.holdout.rotate_after)
    edition = context.datasets.edition(number)
    snapshot = context.datasets.freeze(effect_name(cycle.id, key), cycle.opened_at, edition)
    return {"edition": edition.model_dump(mode="json"), "snapshot": snapshot.model_dump(mode="json")}


def probe(context: LineContext, cycle: CycleView, key: str) -> Output:
    """Sample answers of the start model to training prompts. The output is empty if probe.prompts is 0."""
    if cycle.loop.probe.prompts == 0:
        return {}
    client = context.client(context.server.ensure(cycle.start))
    report = context.datasets.probe(effect_name(cycle.id, key), _snapshot(cycle), client, context.progress)
    return report.model_dump(mode="json")


def plan(context: LineContext, cycle: CycleView, key: str) -> Output:
    """Assemble the training set, choose a method that fits the machines, and build the plan, once per cycle.

    The output's plan is None if nothing is to be trained.
    """
    asked = cycle.done[Step.PROBE]
    report = ProbeReport.model_validate(asked) if asked else None
    dataset = context.datasets.assemble(effect_name(cycle.id, key), _snapshot(cycle), report)
    settings = cycle.loop.training
    draft = drafts(context, cycle.loop, cycle.id, cycle.start.model, cycle.loop.line.seed + cycle.number, dataset)
    choice, training = choose_plan(context, dataset.facts, settings, draft)
    if training is not None and settings.search.budget:
        training = with_search(context, training, dataset, settings, draft, last_winner(context, cycle.line, cycle.number))
    return {
        "choice": choice.model_dump(mode="json"),
        "dataset": dataset.model_dump(mode="json"),
        "plan": training.model_dump(mode="json") if training else None,
        "trainers": context.versions_of("trainer"),
    }


def train(context: LineContext, cycle: CycleView, key: str) -> Output:
    """Start one incarnation, unless the executor has already restarted the job by itself.

    The incarnation resumes from the best accepted checkpoint of its attempt. An adjusted attempt may also use checkpoints of the previous
    attempt. If a checkpoint's files do not match the accepted digest, the next best checkpoint is used.
    """
    attempt, incarnation = (int(part) for part in key.split("/")[1:])
    spec = job_of(context, cycle, attempt)
    adjustment = cycle.adjustments.get(attempt, Adjustment())
    output: Output = {"attempt": attempt, "incarnation": incarnation, "job": spec.name}
    if adjustment != Adjustment():
        output["adjustment"] = adjustment.model_dump(mode="json")
    if context.executor.restarts:
        seen = context.executor.observe(spec.name)
        if seen.incarnation >= incarnation:
            return output  # the cluster restarted it from the step that was pinned then; the event log records which one
        if seen.state is JobState.ENDED and seen.outcome is None:
            context.executor.reconcile(spec.name)  # the job ended before the restart was seen: its result must be stored first
    output |= lay_resume_point(context, cycle, spec)
    context.executor.submit(spec, incarnation)
    return output


def job_of(context: LineContext, cycle: CycleView, attempt: int) -> JobSpec:
    """Build the job of an attempt of the cycle's plan. Repeated calls return the same job."""
    training, settings, trial = cycle.plan_of(attempt) or _plan(cycle), cycle.loop.training, cycle.trial_of(attempt)
    adjustment = cycle.adjustments.get(attempt, Adjustment())
    timeout = trial.timeout if trial else settings.timeout
    minted = Attempt(number=attempt, timeout=timeout, nodes=settings.nodes, gpus=settings.gpus, adjustment=adjustment)
    return context.trainers[training.method].job(training, minted)


def lay_resume_point(context: LineContext, cycle: CycleView, spec: JobSpec) -> Output:
    """Pin the best accepted checkpoint whose files are intact.

    Return the pinned checkpoint under `resume`, and the rejected ones with their errors under `refused`. Absent keys mean none.
    """
    refused: list[str] = []
    for point in cycle.resumable(spec.attempt):
        try:
            context.executor.pin(spec, point)
        except Permanent as error:
            refused.append(f"{point.path}: {error}"[:300])
        else:
            return {"resume": point.model_dump(mode="json")} | ({"refused": refused} if refused else {})
    return {"refused": refused} if refused else {}


def accept(context: LineContext, cycle: CycleView, key: str) -> Output:  # noqa: ARG001 -- all effects have one signature
    """Accept the final checkpoint as a model version, after its files are verified against its claimed digests.

    Raises Permanent if the job published no checkpoint, or if the digests or the plan differ.
    """
    training, last = _plan(cycle), cycle.last
    if last is None:
        raise Permanent(f"{cycle.id} has trained nothing")
    bound = context.artifacts.resolve(checkpoint_name(training.id, last.attempt, last.number))
    if bound is None:
        raise Permanent(f"the job of attempt {last.attempt} reports success but published no checkpoint; check its log")
    checkpoint = parse(Checkpoint, context.artifacts.get(bound))
    folder = context.artifacts.fetch(checkpoint.files, context.scratch / "models" / checkpoint.files)
    found = context.read_model(folder, checkpoint.files, checkpoint.model.parent)
    if found != checkpoint.model or checkpoint.plan != training.id:
        raise Permanent(f"checkpoint {checkpoint.id[:12]} does not match its job's claim: its files' digests or its plan differ")
    version = ModelVersion(
        line=cycle.line, number=cycle.number, tag=version_tag(checkpoint.id), model=checkpoint.model, cycle=cycle.id, plan=training.id
    )
    return {"checkpoint": checkpoint.model_dump(mode="json"), "version": version.model_dump(mode="json")}


def evaluate(context: LineContext, cycle: CycleView, key: str) -> Output:
    """Evaluate the candidate and the champion, or the version that stands for a recalled champion, over HTTP.

    The report is bound to the step's name, so a repeat sends no requests. The confidence level follows from the ended cycles of the line.
    No other cycle ends while this one is open, so a repeat after a crash has the same level.

    Raises Permanent if the figures of the report are invalid or contradict each other.
    """
    name = effect_name(cycle.id, key)
    bound = context.artifacts.resolve(name)
    if bound is None:
        champion, candidate = cycle.baseline, _candidate(cycle)
        sides = [(version.model, context.client(context.server.ensure(version))) for version in (champion, candidate)]
        level = evaluation_level(cycle.loop, edition_history(context.line_view(), cycle.loop.holdout.rotate_after))
        earlier = _earlier_champions(context, cycle)
        report = context.evaluator.evaluate(_edition(cycle), sides[0], sides[1], context.progress, level, earlier)
        bound = context.artifacts.bind(name, context.artifacts.put(stamped(report)))
    content = unstamped(context.artifacts.get(bound), "EvalReport")
    try:
        EvalReport.model_validate(content)
    except ValidationError as error:
        raise Permanent(f"the evaluation report is invalid and cannot be used: {error.errors()[0]['msg']}") from error
    return {"digest": bound, "report": content}


EARLIER_CYCLES = 50
"""Number of past cycles whose champions a candidate is compared with on the golden set."""


def _earlier_champions(context: LineContext, cycle: CycleView) -> list[EarlierAnswers]:
    """Return stored answers of each champion of the past cycles, except recalled ones and the candidate's own champion.

    They are the newest ones. An evaluation that stopped early asked fewer golden prompts, so among evaluations with the golden set of this
    cycle, those that asked the most of it come first.
    """
    found: dict[str, EarlierAnswers] = {}
    most: dict[str, int] = {}
    golden = _edition(cycle).golden
    left_out = {cycle.baseline.tag, *context.line_view().recalled}
    for number in range(max(1, cycle.number - EARLIER_CYCLES), cycle.number):
        past = context.cycle_view(cycle_stream(cycle.line, number))
        if Step.EVALUATE in past.done and past.baseline.tag not in left_out:
            tag, report = past.baseline.tag, past.done[Step.EVALUATE]["report"]
            asked = sum(count["asked"] for count in report["counts"] if count["name"] == "golden")
            asked = asked if _edition(past).golden == golden else 0
            if asked >= most.get(tag, 0):
                found[tag], most[tag] = EarlierAnswers(version=tag, answers=report["answers"]), asked
    return list(found.values())


def judge(context: LineContext, cycle: CycleView, key: str) -> Output:  # noqa: ARG001
    """Run every gate check on the evaluation report and combine the results into the verdict. No check passes without data.

    A check that raises, or that returns something else than a result, is inconclusive. Raises Permanent if the report compares other
    models than the cycle's champion and candidate, or if it is about another holdout edition.
    """
    report = EvalReport.model_validate(cycle.done[Step.EVALUATE]["report"])
    if report.candidate != _candidate(cycle).model.id or report.champion != cycle.baseline.model.id:
        raise Permanent("the report does not compare this cycle's champion and candidate; it cannot be used")
    if report.edition != _edition(cycle).number:
        raise Permanent(f"the report is about edition {report.edition}, but the cycle has edition {_edition(cycle).number}")
    checks = tuple(_checked(check, report) for check in context.checks)
    return verdict_of(checks, cycle.done[Step.EVALUATE]["digest"], context.versions.get("check", ())).model_dump(mode="json")


def _checked(check: Check, report: EvalReport) -> CheckResult:
    """Return the result of a check on its own copy of the report, so that no check can change what the next one reads."""
    reason = "it returned no result"
    try:
        result = check.check(report.model_copy(deep=True))
        if isinstance(result, CheckResult):
            return result.model_copy(update={"check": check.name})
    except Exception as error:  # the message may quote a user, so only the type is recorded
        reason = f"it raised {type(error).__name__}"
    return CheckResult(check=check.name, result=Result.INCONCLUSIVE, reason=f"the check failed: {reason}; correct or uninstall it")


def register(context: LineContext, cycle: CycleView, key: str) -> Output:  # noqa: ARG001
    """Register the candidate with lineage tags, metrics and training curves, and point the alias `candidate` at it."""
    version, training = _candidate(cycle), _plan(cycle)
    folder = context.artifacts.fetch(version.model.files, context.scratch / "models" / version.model.files)
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
    steps = accepted_line(cycle, read_event_logs(cycle, context.artifacts), attempt)
    reference = context.registry.register(
        version, folder, tags, {**metrics, **(cycle.checkpoint.metrics if cycle.checkpoint else {})}, steps
    )
    context.registry.alias(cycle.line, "candidate", version.tag)
    return {"reference": reference}


def roll(context: LineContext, cycle: CycleView, key: str) -> Output:  # noqa: ARG001
    """Start the candidate's server and open the rollout's stream. The rollout's ticks then change the weights.

    Raises Permanent if the router does not attribute answers to versions.
    """
    candidate = _candidate(cycle)
    if not context.router.attribution:
        raise Permanent("the router does not attribute answers to versions; a rollout requires attribution")
    context.server.ensure(candidate)
    data = {
        "cycle": cycle.id,
        "champion": cycle.champion.model_dump(mode="json"),
        "candidate": candidate.model_dump(mode="json"),
        "settings": cycle.loop.rollout.model_dump(mode="json"),
        "metrics": context.versions_of("metrics"),
        "salt": context.new_salt(),
    }
    stream = rollout_stream(cycle.id)
    try:
        context.ledger.append([Append(stream=stream, after=0, rows=(Row(kind="opened", data=data),))], None, context.clock.now())
    except Conflict:
        if not context.ledger.read(stream):
            raise
    return {"rollout": stream}


def promote(context: LineContext, cycle: CycleView, key: str) -> Output:
    """Route all sessions to the candidate. The `champion` row is written later, with the end of the cycle.

    The reconciler updates the registry's alias, so that an unavailable registry delays neither a promotion nor a rollback.
    """
    version = _candidate(cycle)
    context.router.set(sole_route(context, version, effect_name(cycle.id, key)))
    return {"version": version.tag}


def sole_route(context: LineContext, version: ModelVersion, annotation: str) -> Route:
    """Return a route that sends all sessions to one version. Its server is started if necessary."""
    endpoint = context.server.ensure(version)
    backend = Backend(tag=endpoint.tag, url=endpoint.url, model=endpoint.model, weight=100)
    return Route(line=context.line, served_model=context.loop.line.served_model, backends=(backend,), annotation=annotation)


def _snapshot(cycle: CycleView) -> Snapshot:
    return Snapshot.model_validate(cycle.done[Step.FREEZE]["snapshot"])


def _edition(cycle: CycleView) -> HoldoutEdition:
    return HoldoutEdition.model_validate(cycle.done[Step.FREEZE]["edition"])


def _plan(cycle: CycleView) -> TrainingPlan:
    if cycle.trained_plan is None:
        raise Permanent(f"{cycle.id} has no training plan")
    return cycle.trained_plan


def _candidate(cycle: CycleView) -> ModelVersion:
    if cycle.candidate is None:
        raise Permanent(f"{cycle.id} has no accepted checkpoint")
    return cycle.candidate


EFFECTS: dict[Step, Callable[[LineContext, CycleView, str], Output]] = {
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
"""Maps each step to its effect: (line context, cycle, effect key) -> the data of the `done` row."""
