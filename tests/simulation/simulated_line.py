"""A simulated line for tests: the real core and engine on fake ports, with a virtual clock and seeded operator actions."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from ratchet.contracts.cycle import Answer, Append, ApprovalKind, Identity, Row
from ratchet.contracts.errors import Rejected
from ratchet.contracts.evaluation import Result
from ratchet.contracts.fakes import (
    FakeCheck,
    FakeClient,
    FakeClock,
    FakeDatasets,
    FakeEvaluator,
    FakeExecutor,
    FakeJudge,
    FakeMetrics,
    FakeRegistry,
    FakeRewards,
    FakeRouter,
    FakeServer,
    FakeTrainer,
    FakeWorld,
    Faults,
    MemoryLedger,
    fake_model,
    no_faults,
)
from ratchet.contracts.ids import Digest, digest, line_stream, rollout_stream, version_tag
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Choice, Method, Proposal
from ratchet.contracts.loop import Loop
from ratchet.contracts.rows import GivenModel
from ratchet.contracts.serving import ModelVersion, Route
from ratchet.flows.core.folds.cycle import fold_cycle
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.core.requests import fold_approval
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.line import answer, approvals, ask_cancel, ask_rollback, open_cycle
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.engine.rollouts.rollout import tick
from ratchet.trainers.health import REMEDIES
from tests.builders import make_facts

FACTS = make_facts(pairs=100, pairs_by_tier={"verifiable": 100}, champion_reward=0.5, best_of_k=0.8, off_policy=0.0)


DEVELOPMENT = 40
"""Number of development prompts of a line with a search."""


def _scores(seed: int, plan: Digest) -> list[float]:
    """Return scores that differ clearly by plan and seed, so that searches choose different trials."""
    draw = random.Random(f"scores {seed} {plan}")
    quality = draw.choice((0.2, 0.5, 0.8))
    return [float(draw.random() < quality) for _ in range(DEVELOPMENT)]


class Crash(BaseException):
    """Simulates the sudden end of the process."""


@dataclass(frozen=True)
class Scenario:
    """The events of one simulated run."""

    seed: int
    method: Method = Method.DPO
    outcomes: tuple[Outcome, ...] = ()
    """The outcomes of the first incarnations; later ones end with DONE."""
    asks: tuple[Proposal | None, ...] = ()
    """The adjustments that failed jobs propose for the next attempt, by attempt; later attempts propose none."""
    attempts: int = 2
    """The value of `training.max_attempts` in the loop file."""
    restarts: bool = False
    """Whether the executor restarts preempted jobs by itself, as a cluster does."""
    difference: float = 0.2
    """The reward difference, candidate minus champion, that the evaluator reports."""
    bad_canary: bool = False
    """Whether the judge rolls back at the largest concurrent weight."""
    dark: bool = False
    """Whether the traces of all requests are lost."""
    quiet: bool = False
    """Whether no traffic arrives."""
    search: bool = False
    """Whether the plan has a search over three recipes."""
    people: str = "yes"
    """How operators answer requests for approval: yes | no | never | auto (the loop file needs no approval)."""
    rollback_at: int | None = None
    """The turn in which an operator requests a rollback."""
    cancel_at: int | None = None
    """The turn in which an operator requests the end of the cycle."""
    upgrade_at: int | None = None
    """The turn in which another release with other training code replaces the service."""
    given: tuple[str, ...] | None = None
    """What a model that was trained elsewhere changes besides its weights; None: the cycle trains a model."""
    jumps: tuple[tuple[int, float], ...] = ()
    """(turn, seconds): when the machine's clock is set, and by how much."""


def scenario(seed: int) -> Scenario:
    """Return the scenario that is drawn from the seed."""
    draw = random.Random(seed)
    outcomes = [Outcome.PREEMPTED, Outcome.LOST, Outcome.FAILED, Outcome.PERMANENT, Outcome.DONE]
    watch = random.Random(f"watch {seed}")
    return Scenario(
        seed=seed,
        asks=tuple(_asks(watch) for _ in range(4)),
        attempts=watch.randint(2, 4),
        restarts=watch.random() < 0.5,
        method=draw.choice([Method.DPO, Method.DPO, Method.GRPO, Method.NONE]),
        outcomes=tuple(draw.choices(outcomes, [4, 4, 2, 0.5, 4], k=draw.randrange(5))),
        search=watch.random() < 0.3,
        difference=draw.choice([0.2, 0.2, 0.2, 0.0, -0.2]),
        bad_canary=draw.random() < 0.2,
        dark=draw.random() < 0.1,
        people=draw.choices(["yes", "no", "never", "auto"], [6, 1, 1, 2])[0],
        rollback_at=draw.randrange(60) if draw.random() < 0.15 else None,
        cancel_at=draw.randrange(60) if draw.random() < 0.1 else None,
        upgrade_at=watch.randrange(40) if watch.random() < 0.15 else None,
        given=random.Random(f"given {seed}").choice([None] * 10 + [(), ("chat template",)]),
    )


def _asks(draw: random.Random) -> Proposal | None:
    rule = draw.choice([None, "kl", "not_finite", "memory"])
    return Proposal(rule=rule, adjustment=REMEDIES[rule], good=draw.randint(0, 2)) if rule else None


def loop_for(people: str, attempts: int = 2, search: bool = False) -> Loop:
    """Return the loop file of the simulated line."""
    mode = "auto" if people == "auto" else "person"
    return Loop.model_validate(
        {
            "line": {"name": "sim", "served_model": "sim"},
            "sources": [{"name": "in", "kind": "receiver"}],
            "rewards": [{"name": "exact_match"}],
            "approvals": {"training": {"mode": mode, "expires": 500}, "rollout": {"mode": mode, "expires": 500}},
            "rollout": {"steps": [5, 25, 100], "max_seconds": 2000, "dark": 300, "maturity": 5},
            "training": {"max_attempts": attempts, "max_restarts": 3}
            | ({"search": {"budget": 1_000_000}, "dpo": {"steps": "auto"}} if search else {}),
        }
    )


class LeasedExecutor(FakeExecutor):
    """An executor that is reconciled only while the line's lease is held."""

    context: LineContext

    def reconcile(self, name: str) -> None:
        """Assert that the lease is held, then reconcile."""
        lease = self.context.ledger.holder(line_stream("sim"))
        assert lease is not None, f"{name} is reconciled without the lease"
        assert lease.expires > self.context.clock.now(), f"{name} is reconciled without the lease"
        super().reconcile(name)


class SimulatedLine:
    """One simulated line: the line context on fake ports, the operators and the clock of one scenario."""

    def __init__(self, scenario: Scenario, faults: Faults = no_faults) -> None:
        self.scenario = scenario
        self.clock = FakeClock()
        self.world = FakeWorld()
        self.ledger = MemoryLedger()
        self.turn = 0
        self.note = ""
        self.salts = itertools.count()
        self.upgraded_at: datetime | None = None
        world, loop = self.world, loop_for(scenario.people, scenario.attempts, scenario.search)
        self.router = FakeRouter(world)
        self.router.watch = self.check_route
        self.router.counts = self._sent
        self.executor = LeasedExecutor(world, self._outcome, restarts=scenario.restarts)
        self.executor.propose = self._asks
        self.executor.scores = partial(_scores, scenario.seed) if scenario.search else None
        self.context = LineContext(
            loop=loop,
            folder=Path(),
            ledger=self.ledger,
            clock=self.clock,
            artifacts=world.artifacts,
            sources=(),
            datasets=FakeDatasets(world, FACTS, DEVELOPMENT if scenario.search else 0),
            rewards=FakeRewards(),
            choose=lambda facts, _settings, _unseen: Choice(method=scenario.method, reason="scripted", rules=(), facts=facts),
            trainers={"dpo": FakeTrainer("dpo"), "grpo": FakeTrainer("grpo")},
            code=digest("code"),
            executor=self.executor,
            server=FakeServer(world),
            client=lambda _endpoint: FakeClient(),
            evaluator=FakeEvaluator(world, scenario.difference),
            checks=(FakeCheck(),),
            registry=FakeRegistry(world),
            router=self.router,
            metrics=FakeMetrics(self._traffic),
            judge=FakeJudge(roll_back_when_largest=scenario.bad_canary),
            scratch=Path("scratch"),
            progress=lambda _what, _done, _total: None,
            holder="one",
            read_model=lambda _path, files, _parent: next(m for m in self._models() if m.files == files),
            new_salt=lambda: f"salt {scenario.seed} {next(self.salts)}",
            heartbeat=False,
        )
        self.executor.context = self.context
        base = ModelVersion(line="sim", number=0, tag=version_tag(digest("base")), model=fake_model("base"), cycle=None)
        adopted = Row(
            kind="adopted", key=base.tag, data={"version": base.model_dump(mode="json"), "actor": "ada", "folder": "", "file": ""}
        )
        self.ledger.append([Append(stream=line_stream("sim"), after=0, rows=(adopted,))], None, self.clock.now())
        world.faults = self.ledger.faults = faults

    def _models(self):
        plans = {spec.plan for spec in self.executor.specs.values()}
        return [fake_model("base"), fake_model("given"), *[fake_model(f"trained {plan}") for plan in plans]]

    def _outcome(self, attempt: int, incarnation: int) -> Outcome:
        index = incarnation - 1 + (attempt - 1) * 2
        return self.scenario.outcomes[index] if index < len(self.scenario.outcomes) else Outcome.DONE

    def _asks(self, attempt: int, _incarnation: int) -> Proposal | None:
        return self.scenario.asks[attempt - 1] if attempt <= len(self.scenario.asks) else None

    def _traffic(self, since, until) -> tuple[int, int]:
        seconds = max(0, int((until - since).total_seconds()))
        return (0, 0) if self.scenario.dark or self.scenario.quiet else (seconds * 3, seconds)

    def _sent(self, since, until) -> dict[str, int]:
        seconds = 0 if self.scenario.quiet else max(0, int((until - since).total_seconds()))
        rollout = self.context.rollout_view(rollout_stream(self.cycle_stream()))
        return {rollout.champion.tag: seconds * 3, rollout.candidate.tag: seconds}

    def cycle_stream(self) -> str:
        """Return the stream of the line's first cycle."""
        return "cycle/sim/0001"

    def live(self, turns: int = 400) -> None:
        """Run turns until the cycle has ended and the derived copies are up to date.

        A new process continues after each crash. Raises AssertionError if the cycle has not ended after `turns` turns.
        """
        opened = False
        settled = 0
        for self.turn in range(turns):
            self.clock.sleep(7)
            self.clock.time += timedelta(seconds=sum(by for turn, by in self.scenario.jumps if turn == self.turn))
            if self.turn == self.scenario.upgrade_at:
                self.upgraded_at = self.clock.now()
                self.context = replace(_reborn(self.context, self.turn), code=digest("code of another release"))
            try:
                opened = opened or self._open()
                self._people()
                self._work()
                settled = settled + 1 if self.ended() else 0
                if settled > 2:
                    return
            except Crash:
                self.context = _reborn(self.context, self.turn)
        raise AssertionError(f"not ended after {turns} turns: {self.view().state}")

    def _open(self) -> bool:
        try:
            differs = self.scenario.given
            given = None if differs is None else GivenModel(model=fake_model("given"), folder="/models/given", differs=differs)
            open_cycle(self.context, "simulated", "ada" if given else "", given)
        except Rejected:
            assert self.ledger.read(self.cycle_stream())
        return True

    def _work(self) -> None:
        view = self.view()
        if not view.ended:
            rollout = self.context.rollout_view(rollout_stream(view.id))
            if rollout is not None and not rollout.end:
                tick(rollout.id, self.context)
            advance(view.id, self.context)
        if view.ended or self.turn % 3 == 0:  # less often than a turn, as in the service: each reconciliation also advances the job
            reconcile(self.context)

    def _people(self) -> None:
        if self.scenario.people in ("yes", "no"):
            for request in approvals(self.ledger, "sim"):
                if request.awaiting:
                    given = Answer(approve=self.scenario.people == "yes", actor="ada", identity=Identity.CLAIMED, via="cli", note=self.note)
                    answer(self.ledger, request, given, self.clock.now())
        if self.scenario.rollback_at == self.turn:
            with contextlib.suppress(Rejected):
                ask_rollback(self.ledger, "sim", "ada", "simulated", self.clock.now())

        if self.scenario.cancel_at == self.turn:
            with contextlib.suppress(Rejected):
                ask_cancel(self.ledger, "sim", "ada", "simulated", self.clock.now())

    def view(self):
        """Return the current state of the cycle, folded from its rows."""
        return fold_cycle(self.ledger.read(self.cycle_stream()))

    def ended(self) -> bool:
        """Return whether the cycle has ended."""
        return self.view().ended

    def check_route(self, route: Route) -> None:
        """Assert that each serving version is the adopted base or has a passing report and the required approvals."""
        line = fold_line("sim", self.ledger.read(line_stream("sim")))
        for backend in route.backends:
            if backend.weight > 0 and backend.tag != line.base.tag:
                view = self.view()
                assert view.candidate.tag == backend.tag
                assert view.verdict is not None
                assert view.verdict.result is Result.PASS
                for kind in ApprovalKind if self.scenario.given is None else (ApprovalKind.ROLLOUT,):
                    assert view.answers[kind].approve
                    if self.scenario.people != "auto" or self.scenario.given:
                        request = fold_approval(self.ledger.read(f"approval/sim/0001/{kind}"))
                        assert request.answer.actor == "ada"


def _reborn(context: LineContext, turn: int) -> LineContext:
    context.clock.sleep(61)  # the lease of the dead process expires
    return replace(context, holder=f"process {turn}")


def seeded_faults(seed: int, rate: float = 0.08) -> Callable[[str], None]:
    """Return a fault function that raises Crash at random points, drawn from the seed."""
    draw = random.Random(f"faults {seed}")

    def strike(where: str) -> None:
        if draw.random() < rate:
            raise Crash(where)

    return strike


def nth_fault(n: int) -> Callable[[str], None]:
    """Return a fault function that raises Crash only at its n-th call (counted from 0)."""
    count = 0

    def strike(where: str) -> None:
        nonlocal count
        count += 1
        if count == n + 1:
            raise Crash(where)

    return strike
