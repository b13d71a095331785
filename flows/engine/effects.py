"""The effect of each step, performed through ports.

Every function may be called again after a crash and then finds its earlier result. Datasets, artifacts, jobs, servers, registry and
routes are all idempotent by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from pydantic import ValidationError

from ratchet.contracts.cycle import Append
from ratchet.contracts.errors import Conflict, Permanent
from ratchet.contracts.evaluation import CheckResult, EarlierAnswers, EvalReport, Result, verdict_of
from ratchet.contracts.ids import Digest, checkpoint_name, cycle_stream, digest, effect_name, rollout_stream, version_tag
from ratchet.contracts.jobs.training import Adjustment, Attempt, Checkpoint, JobSpec, JobState, ResumePoint, TrainingPlan
from ratchet.contracts.model import strange_files
from ratchet.contracts.ports import Check, ScalingServer
from ratchet.contracts.rows import GivenModel, RolloutOpened, row_of
from ratchet.contracts.schema import parse, stamped
from ratchet.contracts.serving import Backend, ModelVersion, Route
from ratchet.contracts.steps import (
    AcceptResult,
    EvaluateResult,
    FreezeResult,
    JudgeResult,
    PlanResult,
    ProbeResult,
    PromoteResult,
    RegisterResult,
    RollOutResult,
    Step,
    StepResult,
    TrainResult,
)
from ratchet.contracts.wording import first_problem
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.triggers import edition_history, edition_number, evaluation_level
from ratchet.flows.engine.asking.teaching import ask_before
from ratchet.flows.engine.choice.adapters import served_form
from ratchet.flows.engine.choice.choosing import choose_plan, drafts, probed_champion, slice_cautions
from ratchet.flows.engine.choice.search import last_winner, with_search
from ratchet.flows.engine.choice.training_curves import accepted_line, read_event_logs
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.model_cards import card_of


def freeze(context: LineContext, cycle: CycleView, key: str) -> FreezeResult:
    """Freeze the current holdout edition first, ask the teacher if there is one, then freeze the snapshot of all other data."""
    number = edition_number(context.line_view().evaluations, cycle.loop.holdout.rotate_after)
    edition = context.datasets.edition(number)
    asks = cycle.loop.teacher is not None and cycle.given is None  # a given model learns nothing from answers
    as_of, asked = ask_before(context, cycle, key, edition) if asks else (cycle.opened_at, None)
    snapshot = context.datasets.freeze(effect_name(cycle.id, key), as_of, edition)
    return FreezeResult(edition=edition, snapshot=snapshot, teacher=asked)


def probe(context: LineContext, cycle: CycleView, key: str) -> ProbeResult:
    """Sample answers of the start model and of the champion to training prompts, unless probe.prompts is 0."""
    if cycle.loop.probe.prompts == 0:
        return ProbeResult(report=None)
    client, snapshot = context.client(context.server.ensure(cycle.start)), cycle.result(FreezeResult).snapshot
    champion = probed_champion(context, cycle.baseline, cycle.start)
    return ProbeResult(report=context.datasets.probe(effect_name(cycle.id, key), snapshot, client, context.progress, champion))


def plan(context: LineContext, cycle: CycleView, key: str) -> PlanResult:
    """Assemble the training set, choose a method that fits the machines, and build the plan, once per cycle.

    The result's plan is None if nothing is to be trained.
    """
    frozen, probed = cycle.result(FreezeResult), cycle.result(ProbeResult).report
    dataset = context.datasets.assemble(effect_name(cycle.id, key), frozen.snapshot, probed)
    settings = cycle.loop.training
    draft = drafts(context, cycle.loop, cycle.id, cycle.start.model.whole, cycle.loop.line.seed + cycle.number, dataset)
    cautions = slice_cautions(context, cycle.loop, dataset, frozen.edition)
    choice, training = choose_plan(context, dataset.facts, settings, draft, cautions)
    if training is not None and settings.search.budget:
        training = with_search(context, training, dataset, settings, draft, last_winner(context, cycle.line, cycle.number))
    return PlanResult(choice=choice, dataset=dataset, plan=training, trainers=context.versions.get("trainer", ()))


def train(context: LineContext, cycle: CycleView, key: str) -> TrainResult:
    """Start one incarnation, unless the executor has already restarted the job by itself.

    The incarnation resumes from the best accepted checkpoint of its attempt. An adjusted attempt may also use checkpoints of the previous
    attempt. If a checkpoint's files do not match the accepted digest, the next best checkpoint is used.
    """
    attempt, incarnation = (int(part) for part in key.split("/")[1:])
    spec = job_of(context, cycle, attempt)
    begun = TrainResult(attempt=attempt, incarnation=incarnation, job=spec.name, adjustment=cycle.adjustments.get(attempt))
    if context.executor.restarts:
        seen = context.executor.observe(spec.name)
        if seen.incarnation >= incarnation:
            return begun  # the cluster restarted it from the step that was pinned then; the event log records which one
        if seen.state is JobState.ENDED and seen.outcome is None:
            context.executor.reconcile(spec.name)  # the job ended before the restart was seen: its result must be stored first
    resume, refused = lay_resume_point(context, cycle, spec)
    context.executor.submit(spec, incarnation)
    return begun.model_copy(update={"resume": resume, "refused": refused})


def job_of(context: LineContext, cycle: CycleView, attempt: int) -> JobSpec:
    """Build the job of an attempt of the cycle's plan. Repeated calls return the same job."""
    training, settings, trial = cycle.plan_of(attempt) or _plan(cycle), cycle.loop.training, cycle.trial_of(attempt)
    adjustment = cycle.adjustments.get(attempt, Adjustment())
    timeout = trial.timeout if trial else settings.timeout
    minted = Attempt(number=attempt, timeout=timeout, nodes=settings.nodes, gpus=settings.gpus, adjustment=adjustment)
    return context.trainers[training.method].job(training, minted)


def lay_resume_point(context: LineContext, cycle: CycleView, spec: JobSpec) -> tuple[ResumePoint | None, tuple[str, ...]]:
    """Pin the best accepted checkpoint whose files are intact. Return it, or None, and the rejected ones with their errors."""
    refused: list[str] = []
    for point in cycle.resumable(spec.attempt):
        try:
            context.executor.pin(spec, point)
        except Permanent as error:
            refused.append(f"{point.path}: {error}"[:300])
        else:
            return point, tuple(refused)
    return None, tuple(refused)


def accept(context: LineContext, cycle: CycleView, key: str) -> AcceptResult:  # noqa: ARG001 -- all effects have one signature
    """Accept the final checkpoint as a model version, after its files are verified against its claimed digests.

    Raises Permanent if the job published no checkpoint, or if the digests or the plan differ.
    """
    if cycle.given is not None:
        return _accept_given(context, cycle, cycle.given)
    training, last = _plan(cycle), cycle.last
    if last is None:
        raise Permanent(f"{cycle.id} has trained nothing")
    bound = context.artifacts.resolve(checkpoint_name(training.id, last.attempt, last.number))
    if bound is None:
        raise Permanent(f"the job of attempt {last.attempt} reports success but published no checkpoint; check its log")
    checkpoint = parse(Checkpoint, context.artifacts.get(bound))
    folder = context.artifacts.fetch(checkpoint.files, context.scratch / "models" / checkpoint.files)
    found = context.read_model(folder, checkpoint.files, None)  # the whole model, whatever base the job claims
    if strange := strange_files(folder):
        raise Permanent(f"checkpoint {checkpoint.id[:12]} contains files that no trained model may contain: {', '.join(strange[:5])}")
    if found.others != training.start.others:
        raise Permanent(
            f"checkpoint {checkpoint.id[:12]} changes files of the start model that hold no weights (configuration, tokenizer, chat "
            "template or generation config); training may change the weights only"
        )
    if found != checkpoint.model or checkpoint.plan != training.id:
        raise Permanent(f"checkpoint {checkpoint.id[:12]} does not match its job's claim: its files' digests or its plan differ")
    model = served_form(context, checkpoint, training.start, cycle.loop.serving.adapters)
    version = ModelVersion(
        line=cycle.line, number=cycle.number, tag=version_tag(checkpoint.id), model=model, cycle=cycle.id, plan=training.id
    )
    return AcceptResult(checkpoint=checkpoint, version=version)


def _accept_given(context: LineContext, cycle: CycleView, given: GivenModel) -> AcceptResult:
    """Accept the model that an operator gave, after its files are compared with those that the cycle was opened with."""
    folder = context.artifacts.fetch(given.model.files, context.scratch / "models" / given.model.files)
    if context.read_model(folder, given.model.files, given.model.parent) != given.model:
        raise Permanent(f"the stored files of the given model are not those that {cycle.id} was opened with")
    tag = version_tag(digest([given.model.id, cycle.id]))
    version = ModelVersion(line=cycle.line, number=cycle.number, tag=tag, model=given.model, cycle=cycle.id)
    return AcceptResult(checkpoint=None, version=version)


def evaluate(context: LineContext, cycle: CycleView, key: str) -> EvaluateResult:
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
        edition = cycle.result(FreezeResult).edition
        report = context.evaluator.evaluate(edition, sides[0], sides[1], context.progress, level, earlier)
        bound = context.artifacts.bind(name, context.artifacts.put(stamped(report)))
    try:
        return EvaluateResult(digest=bound, report=parse(EvalReport, context.artifacts.get(bound)))
    except ValidationError as error:
        raise Permanent(f"the evaluation report is invalid and cannot be used: {first_problem(error)}") from error


EARLIER_CYCLES = 50
"""Number of past cycles whose champions a candidate is compared with on the golden set."""


def _earlier_champions(context: LineContext, cycle: CycleView) -> list[EarlierAnswers]:
    """Return stored answers of each champion of the past cycles, except recalled ones and the candidate's own champion.

    They are the newest ones. An evaluation that stopped early asked fewer golden prompts, so among evaluations with the golden set of this
    cycle, those that asked the most of it come first. The answers for the check `safety` are those of the newest evaluation that asked.
    """
    found: dict[str, EarlierAnswers] = {}
    safety: dict[str, Digest] = {}
    most: dict[str, int] = {}
    golden = cycle.result(FreezeResult).edition.golden
    left_out = {cycle.baseline.tag, *context.line_view().recalled}
    for number in range(max(1, cycle.number - EARLIER_CYCLES), cycle.number):
        past = context.cycle_view(cycle_stream(cycle.line, number))
        report, tag = past.report, past.baseline.tag
        if report is not None and tag not in left_out:
            count = report.count("golden")
            asked = count.asked if count is not None and past.result(FreezeResult).edition.golden == golden else 0
            if asked >= most.get(tag, 0):
                found[tag], most[tag] = EarlierAnswers(version=tag, answers=report.answers), asked
            if report.safety is not None:
                safety[tag] = report.safety.answers
    return [one.model_copy(update={"safety": safety.get(tag)}) for tag, one in found.items()]


def judge(context: LineContext, cycle: CycleView, key: str) -> JudgeResult:  # noqa: ARG001
    """Run every gate check on the evaluation report and combine the results into the verdict. No check passes without data.

    A check that raises, or that returns something else than a result, is inconclusive. Raises Permanent if the report compares other
    models than the cycle's champion and candidate, or if it is about another holdout edition.
    """
    report, edition = cycle.result(EvaluateResult).report, cycle.result(FreezeResult).edition
    if report.candidate != _candidate(cycle).model.id or report.champion != cycle.baseline.model.id:
        raise Permanent("the report does not compare this cycle's champion and candidate; it cannot be used")
    if report.edition != edition.number:
        raise Permanent(f"the report is about edition {report.edition}, but the cycle has edition {edition.number}")
    checks = tuple(_checked(check, report) for check in context.checks)
    return JudgeResult(verdict=verdict_of(checks, cycle.result(EvaluateResult).digest, context.versions.get("check", ())))


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


def register(context: LineContext, cycle: CycleView, key: str) -> RegisterResult:  # noqa: ARG001
    """Register the candidate with lineage tags, metrics and training curves, and point the alias `candidate` at it."""
    version, evaluated = _candidate(cycle), cycle.result(EvaluateResult)
    whole = version.model.whole.files  # a user of the registry loads it without the base model
    folder = context.artifacts.fetch(whole, context.scratch / "models" / whole)
    tags = {
        "ratchet.cycle": cycle.id,
        **_lineage(cycle),
        "ratchet.report": evaluated.digest,
        "ratchet.model": version.model.id,
        **({"ratchet.adapter": version.model.files, "ratchet.base": version.model.parent} if version.model.parent else {}),
    }
    metrics = {
        f"gate.{c.name}.{side}": value
        for c in evaluated.report.comparisons
        for side, value in (("champion", c.champion), ("candidate", c.candidate))
    }
    checkpoint, steps = cycle.checkpoint, None
    if checkpoint is not None:
        metrics |= checkpoint.metrics
        steps = accepted_line(cycle, read_event_logs(cycle, context.artifacts), checkpoint.attempt)
    reference = context.registry.register(version, folder, tags, metrics, steps or [])
    context.registry.describe(cycle.line, version.tag, card_of(context.artifacts, version, cycle, context.line_view()))
    context.registry.alias(cycle.line, "candidate", version.tag)
    return RegisterResult(reference=reference)


def _lineage(cycle: CycleView) -> dict[str, str]:
    """Return the tags that say where the candidate comes from."""
    if cycle.given is not None:
        return {"ratchet.given_by": cycle.opened.actor, "ratchet.given_from": cycle.given.folder}
    training = _plan(cycle)
    return {
        "ratchet.plan": training.id,
        "ratchet.method": str(training.method),
        "ratchet.dataset": training.dataset,
        "ratchet.snapshot": cycle.result(FreezeResult).snapshot.content,
        "ratchet.parent": cycle.start.tag,
    }


def roll_out(context: LineContext, cycle: CycleView, key: str) -> RollOutResult:  # noqa: ARG001
    """Start the candidate's server and open the rollout's stream. The rollout's ticks then change the weights.

    Raises Permanent if nothing could decide: the router does not attribute answers to versions, and no prompts are mirrored.
    """
    candidate = _candidate(cycle)
    if not context.router.attribution and not cycle.loop.rollout.mirror:
        raise Permanent(
            "the router does not attribute answers to versions, and rollout.mirror is 0, so nothing could decide the rollout; set "
            "rollout.mirror, or use a router with attribution"
        )
    context.server.ensure(candidate)
    opened = RolloutOpened(
        cycle=cycle.id,
        champion=cycle.champion,
        candidate=candidate,
        settings=cycle.loop.rollout,
        metrics=context.versions.get("metrics", ()),
        salt=context.new_salt(),
    )
    stream = rollout_stream(cycle.id)
    try:
        context.ledger.append([Append(stream=stream, after=0, rows=(row_of("opened", opened),))], None, context.clock.now())
    except Conflict:
        if not context.ledger.read(stream):
            raise
    return RollOutResult(rollout=stream)


def promote(context: LineContext, cycle: CycleView, key: str) -> PromoteResult:
    """Route all sessions to the candidate. The `champion` row is written later, with the end of the cycle.

    The reconciler updates the registry's alias, so that an unavailable registry delays neither a promotion nor a rollback.
    """
    version = _candidate(cycle)
    scale(context, version, 100)
    context.router.set(sole_route(context, version, effect_name(cycle.id, key)))
    return PromoteResult(version=version.tag)


def scale(context: LineContext, version: ModelVersion, share: float, wait: bool = True) -> bool:
    """Give a version as many servers as its share of the sessions, in percent, needs, if the server can. Return whether that changed.

    Raises Retryable if `wait` and they do not all answer.
    """
    server = context.server
    return server.capabilities.scales and cast(ScalingServer, server).scale(version, share, wait)


def loading(context: LineContext, *versions: ModelVersion) -> set[str]:
    """Return the tags of those versions of which no server answers, where `ensure` would wait for minutes: on servers that scale.

    A tick, or a repair under the line's lease, must not wait that long, because a rollback needs the lease.
    """
    if not context.server.capabilities.scales:
        return set()
    return {version.tag for version in versions} - {endpoint.tag for endpoint in context.server.running()}


def sole_route(context: LineContext, version: ModelVersion, annotation: str) -> Route:
    """Return a route that sends all sessions to one version. Its server is started if necessary."""
    endpoint = context.server.ensure(version)
    backend = Backend(tag=endpoint.tag, url=endpoint.url, model=endpoint.model, weight=100)
    served, former = served_names(context)
    return Route(line=context.line, served_model=served, backends=(backend,), annotation=annotation, former_names=former)


def served_names(context: LineContext) -> tuple[str, tuple[str, ...]]:
    """Return the model name of the line and its former names, by which clients may still call it.

    The ledger decides and not the loop file: a cycle has a stored one, so two of them may differ at the same time.
    """
    line = context.line_view()
    return line.served_model or context.loop.line.served_model, line.former_names


def _plan(cycle: CycleView) -> TrainingPlan:
    if cycle.trained_plan is None:
        raise Permanent(f"{cycle.id} has no training plan")
    return cycle.trained_plan


def _candidate(cycle: CycleView) -> ModelVersion:
    return cycle.result(AcceptResult).version


EFFECTS: Mapping[Step, Callable[[LineContext, CycleView, str], StepResult]] = {
    Step.FREEZE: freeze,
    Step.PROBE: probe,
    Step.PLAN: plan,
    Step.TRAIN: train,
    Step.ACCEPT: accept,
    Step.EVALUATE: evaluate,
    Step.JUDGE: judge,
    Step.REGISTER: register,
    Step.ROLL_OUT: roll_out,
    Step.PROMOTE: promote,
}
"""Maps each step with a result to its effect: (line context, cycle, effect key) -> the result, which the `done` row records."""
