"""Bad evidence never passes a check of the gate and never advances a rollout.

Each case is one kind of bad evidence for one check or for one decision of a rollout. A check without cells fails the
tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.evaluation import EvalReport, Result
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.ids import digest, rollout_stream
from ratchet.contracts.loop import GateSettings, RewardSettings, RolloutSettings, SafetySettings, SuiteSettings
from ratchet.contracts.mirror import MirrorAsk, MirrorOutcome, MirrorPrompt, MirrorPrompts
from ratchet.contracts.serving import Arm, Evidence, ModelVersion
from ratchet.contracts.steps import AcceptResult, EvaluateResult, FreezeResult
from ratchet.flows.core.rollouts.rollout import candidate_share
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.effects import judge
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.engine.rollouts.rollout import tick
from ratchet.gates.checks import checks
from ratchet.gates.rollout_judge import EvidenceJudge
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cycles import knowing
from tests.unit.gates import reports
from tests.unit.gates.reports import GOOD, comparison, count, counts_for, safety, suite, swapped

SUITES = {"own": SuiteSettings(file="own.jsonl", reward=RewardSettings(name="exact_match"), margin=0.2)}
GATE = GateSettings(min_prompts=50, min_slice=10, safety=SafetySettings(), suites=SUITES)
NAN, INFINITE = math.nan, math.inf
KINDS = (
    "missing",
    "not a number",
    "few",
    "stale",
    "error",
    "conflicting",
    "vanished slice",
    "refused requests",
    "dark arm",
    "sample ratio",
)
Changes = dict[str, Any]


def report(**changes: Any) -> EvalReport:
    """A good report with a suite, with some changes."""
    return reports.report(**({"suites": (suite(),)} | changes))


def failed(side: str, reason: str, n: int) -> Changes:
    """A model failed on `n` of 200 prompts, all of the holdout."""
    key = {"candidate": "candidate_failed", "champion": "champion_failed"}[side]
    counts = (count("holdout", 100, answered_by_both=100 - n, **{key: n}), *counts_for(GOOD)[1:])
    return {"failures": {f"{side}:{reason}": n}, "answered_by_both": 200 - n, "counts": counts}


def vanished(name: str) -> Changes:
    """The candidate failed on all prompts of a set or slice, which has no comparison."""
    counts = [c if c.name != name else count(name, c.asked, answered_by_both=0, candidate_failed=c.asked) for c in counts_for(GOOD)]
    answered = sum(c.answered_by_both for c in counts if not c.name.startswith("slice:"))
    return {"comparisons": tuple(c for c in GOOD if c.name != name), "counts": tuple(counts), "answered_by_both": answered}


COMMON: dict[str, list[Changes]] = {
    "missing": [{"counts": ()}, {"asked": 0, "answered_by_both": 0, "comparisons": (), "counts": ()}],
    "not a number": [{"asked": NAN}, {"answered_by_both": -1}],
    "few": [{"answered_by_both": 49, "counts": counts_for(GOOD, answered=49)}, {"answered_by_both": 49}],
    "stale": [{"champion": digest("an older champion")}, {"candidate": digest("another candidate")}, {"edition": 2}],
    "error": [failed("champion", "HTTP 500", 5), failed("candidate", "ReadTimeout", 5), failed("candidate", "unscored", 5)],
    "conflicting": [{"answered_by_both": 201}, {"failures": {"candidate:HTTP 500": -5}}, {"failures": {"candidate:HTTP 500": 201}}],
    "vanished slice": [
        vanished("slice:a"),
        vanished("golden"),
        {"counts": (*counts_for(GOOD), count("slice:c", 12, answered_by_both=0, candidate_failed=12))},
        {"counts": (*counts_for(GOOD), count("slice:c", 1, answered_by_both=0, candidate_failed=1))},
        {"counts": (*counts_for(GOOD), count("slice:c", 12, answered_by_both=1, champion_failed=11))},
    ],
    "refused requests": [failed("candidate", "HTTP 400", 5), failed("candidate", "HTTP 422", 100)],
    "dark arm": [failed("candidate", "ConnectError", 100), failed("champion", "ConnectError", 100)],
    "sample ratio": [
        {"asked": 300, "counts": counts_for(GOOD)},
        {"counts": counts_for(GOOD)[1:]},
        {"comparisons": swapped(comparison("golden", 0.02, 0.18, 150))},
    ],
}
"""Bad evidence that concerns the whole report. No check passes on it."""


def bad(name: str, *args: Any, **named: Any) -> Changes:
    """A report with a changed comparison, or with one that cannot be built."""
    return {"comparison": (name, args, named)}


def without(name: str) -> Changes:
    return {"comparisons": tuple(c for c in GOOD if c.name != name), "counts": counts_for(GOOD)}


def stopped(why: str | None, **changes: Any) -> Changes:
    """A report that stopped after two of five looks, whose intervals have the level of an evaluation without looks."""
    fields = {"planned": 5, "prompts": 1000, "clusters": 1000, "compared": (100, 200), "level": GOOD[0].difference.level, "stopped": why}
    return {"looks": fields | changes}


def earlier(name: str, low: float, high: float, estimate: float = 0.0) -> dict[str, Any]:
    """The fields of a comparison with an earlier champion, valid or not."""
    difference = {"estimate": (low + high) / 2 + estimate, "low": low, "high": high, "level": 0.99, "n": 100}
    fields = {"name": name, "n": 100, "champion": 0.5, "candidate": 0.5 + difference["estimate"], "difference": difference}
    return {"version": "v-earlier", "comparison": fields}


def ended(champion: float, candidate: float, n: int = 200) -> dict[str, Any]:
    """The fields of a comparison of the shares of cut answers, valid or not."""
    change = candidate - champion
    interval = {"estimate": change, "low": change - 0.05, "high": change + 0.05, "level": 0.95, "n": n}
    return {"name": "cut", "n": n, "champion": champion, "candidate": candidate, "difference": interval}


def of_suite(**changes: Any) -> Changes:
    """The fields of a report of a suite with a changed comparison or interval, valid or not."""
    fields = suite().model_dump()
    for key, value in changes.items():
        (fields["comparison"]["difference"] if key in ("estimate", "low", "high") else fields["comparison"])[key] = value
    return {"suites": (fields,)}


def shown(side: str, **changes: Any) -> Changes:
    """The fields of a report of the check `safety` with a changed comparison or interval, valid or not."""
    fields = safety().model_dump()
    for key, value in changes.items():
        (fields[side]["difference"] if key in ("estimate", "low", "high") else fields[side])[key] = value
    return {"safety": fields}


def unanswered(name: str, side: str, n: int) -> Changes:
    """A model gave no answer to `n` of 60 harmful or harmless prompts."""
    counts = [
        count(one, 60, **({"answered_by_both": 60 - n, f"{side}_failed": n} if one == name else {})) for one in ("refused", "answered")
    ]
    return {"counts": tuple(counts)}


OWN: dict[str, dict[str, list[Changes]]] = {
    "coverage": {
        "missing": [without("slice:a"), without("golden")],
        "not a number": [{"failures": {"candidate:HTTP 500": NAN}}],
        "few": [{"comparisons": swapped(comparison("slice:a", 0.0, 0.2, 9)), "counts": counts_for(GOOD)}],
        "error": [{"failures": {"candidate:ReadTimeout": 3, "candidate:unscored": 2}}],
        "conflicting": [{"counts": (*counts_for(GOOD), count("slice:a", 100))}],
    },
    "quality": {
        "missing": [without("overall"), {"comparisons": ()}],
        "not a number": [bad("overall", NAN, NAN), bad("overall", 0.05, NAN), bad("overall", 0.05, 0.15, estimate=NAN),
                         bad("overall", INFINITE, INFINITE)],
        "few": [bad("overall", 0.05, 0.15, n=3)],
        "error": [bad("overall", 0.0, 0.1), bad("overall", -0.2, -0.1)],
        "conflicting": [bad("overall", 0.15, 0.05), bad("overall", 0.05, 0.15, estimate=-0.3), bad("overall", 0.05, 0.15, n=201),
                        {"comparisons": (*GOOD, comparison("overall", -0.2, -0.1))},
                        stopped("success"), stopped("futility"), stopped(None), stopped("success", compared=(300, 200)),
                        stopped("success", compared=(100, 2000)), stopped("success", planned=1)],
    },
    "slices": {
        "missing": [without("slice:a")],
        "not a number": [bad("slice:a", NAN, NAN), bad("slice:a", NAN, 0.1), bad("slice:a", -INFINITE, INFINITE)],
        "few": [{"comparisons": swapped(comparison("slice:a", 0.0, 0.2, 9)), "counts": counts_for(GOOD)}],
        "error": [bad("slice:a", -0.4, -0.2), bad("slice:a", -0.4, 0.1)],
        "conflicting": [{"comparisons": (*GOOD, comparison("slice:a", -0.4, -0.2, 100))}],
    },
    "erosion": {
        "missing": [{"earlier_common": 100}, {"earlier_common": 100, "earlier": (earlier("slice:a", -0.1, 0.1),)}],
        "not a number": [{"earlier": (earlier("golden", -0.1, 0.1, estimate=NAN),)}, {"earlier_common": NAN}],
        "few": [{"answered_by_both": 49}],
        "error": [{"earlier": (earlier("golden", -0.4, -0.2),)}],
        "conflicting": [{"earlier": (earlier("golden", 0.2, -0.2),)}, {"earlier_common": -1}],
    },
    "agreement": {
        "missing": [without("golden"), without("holdout")],
        "not a number": [bad("golden", NAN, NAN), bad("holdout", NAN, NAN)],
        "few": [{"comparisons": swapped(comparison("golden", 0.02, 0.18, 2)), "counts": counts_for(GOOD)}],
        "error": [bad("golden", -0.2, -0.05, n=100)],
        "conflicting": [bad("golden", 0.2, 0.05, n=100), bad("golden", 0.02, 0.18, n=150)],
    },
    "length": {
        "missing": [{"lengths": {}}, {"lengths": {"champion": 100.0}}, {"lengths": {"candidate": 100.0}}],
        "not a number": [{"lengths": {"champion": 100.0, "candidate": NAN}}, {"lengths": {"champion": INFINITE, "candidate": INFINITE}}],
        "few": [{"answered_by_both": 49}],
        "error": [{"lengths": {"champion": 100.0, "candidate": 1000.0}}, {"lengths": {"champion": 100.0, "candidate": 0.0}}],
        "conflicting": [{"lengths": {"champion": 100.0, "candidate": -1.0}}],
    },
    "cut": {
        "missing": [{"cut": None}],
        "not a number": [{"cut": ended(NAN, NAN)}, {"cut": ended(0.0, INFINITE)}],
        "few": [{"cut": ended(0.0, 0.0, 9)}],
        "error": [{"cut": ended(0.0, 0.2)}, {"cut": ended(1.0, 1.0)}],
        "conflicting": [{"cut": ended(0.0, 0.0, 201)}, {"cut": ended(0.0, -0.5)}, {"cut": ended(2.0, 0.0)}],
    },
    "safety": {
        "missing": [{"safety": None}, {"safety": safety(refused=None)}, {"safety": safety(answered=None)}],
        "not a number": [shown("refused", candidate=NAN), shown("answered", low=NAN), shown("refused", low=-INFINITE)],
        "few": [{"safety": safety(n=9)}],
        "error": [{"safety": safety(8)}, {"safety": safety(0, 40)},
                  {"safety": safety(**unanswered("refused", "candidate", 2))}],
        "conflicting": [shown("refused", candidate=0.5), shown("answered", champion=2.0, candidate=2.0), shown("refused", n=61),
                        shown("refused", name="answered"), shown("refused", low=0.1)],
        "dark arm": [{"safety": safety(n=58, **unanswered("answered", "champion", 2))},
                     {"safety": safety(refused=None, answered=None, **unanswered("refused", "champion", 60))}],
    },
    "suites": {
        "missing": [{"suites": ()}, {"suites": (suite(comparison=None),)}, {"suites": (suite(name="other"),)}],
        "not a number": [of_suite(candidate=NAN), of_suite(low=NAN), of_suite(low=-INFINITE)],
        "few": [{"suites": (suite(n=9),)}],
        "error": [{"suites": (suite(20),)}, {"suites": (suite(60),)}, {"suites": (suite(candidate_failed=2),)}],
        "conflicting": [of_suite(candidate=0.5), of_suite(champion=2.0, candidate=2.0), of_suite(n=61), of_suite(low=0.1)],
        "dark arm": [{"suites": (suite(n=58, champion_failed=2),)}, {"suites": (suite(comparison=None, champion_failed=60),)}],
    },
}  # fmt: skip
"""Bad evidence in the figures that one check reads."""
CELLS = [
    (check.name, kind, changes)
    for check in checks(GATE)
    for kind in KINDS
    for changes in [*COMMON[kind], *OWN.get(check.name, {}).get(kind, ())]
]


def built(changes: Changes) -> Any:
    """Return a report with the changes. Raises ValueError if its figures are invalid."""
    if "comparison" in changes:
        name, args, named = changes["comparison"]
        return report(comparisons=swapped(comparison(name, *args, **named)), counts=counts_for(GOOD))
    return report(**changes)


def verdict(given: Any, *names: str) -> Result:
    """Let the gate's step judge a report with some checks, for a cycle about the models of the good report."""
    version = ModelVersion(line="l", number=1, tag="v", model=fake_model("m"), cycle=None)
    sides = {}
    for side in ("champion", "candidate"):
        model = SimpleNamespace(id=getattr(report(), side))
        sides[side] = SimpleNamespace(**{**version.__dict__, "model": model})
    edition = HoldoutEdition(line="l", number=1, prompts=digest("p"), size=200, golden=None, golden_size=0, normaliser=1, fraction=0.2)
    accepted, frozen = AcceptResult.model_construct(version=sides["candidate"]), FreezeResult.model_construct(edition=edition)
    results = (frozen, accepted, EvaluateResult(report=given, digest=digest("report")))
    context: Any = SimpleNamespace(checks=tuple(check for check in checks(GATE) if check.name in names), versions={})
    cycle = knowing(*results, id="cycle/l/0001", baseline=sides["champion"])
    return judge(context, cycle, "verdict").verdict.result


def test_every_check_of_the_gate_has_cells_of_its_own() -> None:
    names = {check.name for check in checks(GATE)}
    assert set(OWN) == names
    assert all(set(COMMON) == set(KINDS) and {"missing", "not a number", "few", "error", "conflicting"} <= set(OWN[name]) for name in names)


def test_good_evidence_passes_every_check() -> None:
    assert {verdict(report(), check.name) for check in checks(GATE)} == {Result.PASS}


@pytest.mark.parametrize(("name", "kind", "changes"), CELLS, ids=[f"{name}-{kind}-{n}" for n, (name, kind, _) in enumerate(CELLS)])
def test_bad_evidence_passes_no_check(name: str, kind: str, changes: Changes) -> None:
    try:
        given = built(changes)
    except ValueError:
        return  # such a report cannot exist, and the step that evaluates ends the cycle
    if kind == "stale":
        with pytest.raises(Permanent):
            verdict(given, name)
        return
    assert verdict(given, name) is not Result.PASS, "the check by itself"
    assert verdict(given, *OWN) is not Result.PASS


# ---- rollout ----

STEPS = (5.0, 25.0, 100.0)
SETTINGS = RolloutSettings(
    steps=STEPS, margin=0.1, error_margin=0.03, min_requests=50, min_seconds=60, max_seconds=600, dark=200, maturity=5, holdback=5
)
OLD, NEW = "old", "new"
Figures = dict[str, Any]


def figures(n: int, **changes: Any) -> Figures:
    """Figures of a good version with `n` requests, all rated."""
    good = {"requests": n, "errors": 0, "refused": 0, "sessions": n, "latency_p50_ms": 10.0, "latency_p95_ms": 20.0}
    return good | {"rated": tuple((1, 1.0) for _ in range(n)), "latencies": ((24, n),) if n else ()} | changes


class Traffic:
    """Metrics and counts of the router for a steady traffic of 10 requests per second, with faults that a test can switch on."""

    def __init__(self) -> None:
        self.share = 0.0
        self.fault: Fault | None = None

    def good(self, champion: str, candidate: str, since: datetime, until: datetime) -> dict[str, Any]:
        n = min(int((until - since).total_seconds() * 10), 1200)
        new = round(n * self.share / 100)
        sides = {"champion": {"tag": champion, **figures(n - new)}, "candidate": {"tag": candidate, **figures(new)}}
        return {"since": since, "until": until, **sides}

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        fields = self.good(champion, candidate, since, until)
        if self.fault:
            self.fault(fields)
        return Evidence(**{**fields, "champion": Arm(**fields["champion"]), "candidate": Arm(**fields["candidate"])})

    def forwarded(self, tags: tuple[str, str], since: datetime, until: datetime) -> Mapping[str, int]:
        fields = self.good(*tags, since, until)
        return {fields[side]["tag"]: fields[side]["requests"] for side in ("champion", "candidate")}


Fault = Callable[[dict[str, Any]], None]


def change(side: str, **changes: Any) -> Fault:
    """Set figures of one arm. A function gets the arm's figures."""

    def fault(fields: dict[str, Any]) -> None:
        arm = fields[side]
        arm |= {name: value(arm) if callable(value) else value for name, value in changes.items()}

    return fault


def empty(side: str) -> Fault:
    return change(side, **figures(0, latency_p50_ms=None, latency_p95_ms=None))


def some(name: str, share: float) -> Fault:
    """A share of the candidate's requests is counted as `name`."""
    return change("candidate", **{name: lambda arm: round(arm["requests"] * share)})


def raising(error: Exception) -> Fault:
    def fault(_fields: dict[str, Any]) -> None:
        raise error

    return fault


def swap_tags(fields: dict[str, Any]) -> None:
    fields["champion"]["tag"], fields["candidate"]["tag"] = fields["candidate"]["tag"], fields["champion"]["tag"]


def set_window(**shift: float) -> Fault:
    def fault(fields: dict[str, Any]) -> None:
        fields |= {name: fields[name] + timedelta(seconds=seconds) for name, seconds in shift.items()}

    return fault


def resplit(share: float) -> Fault:
    """The sessions are split in another way than the route says, with the same requests in total."""

    def fault(fields: dict[str, Any]) -> None:
        n = fields["champion"]["requests"] + fields["candidate"]["requests"]
        fields["candidate"] |= figures(round(n * share))
        fields["champion"] |= figures(n - round(n * share))

    return fault


BAD_TRAFFIC: dict[str, dict[str, Fault]] = {
    "missing": {
        "no metrics": raising(Retryable("the lake is not readable")),
        "no latencies by answer": change("candidate", latencies=()),
        "no latencies by answer of the champion": change("champion", latencies=()),
        "no latency": change("candidate", latency_p50_ms=None, latency_p95_ms=None),
        "no latency of the champion": change("champion", latency_p50_ms=None, latency_p95_ms=None),
        "no requests": lambda fields: (empty("champion")(fields), empty("candidate")(fields), None)[-1],
    },
    "not a number": {
        "ratings": change("candidate", rated=((1, NAN),) * 500),
        "infinite ratings": change("candidate", rated=((1, INFINITE),) * 500),
        "latency": change("candidate", latency_p50_ms=NAN, latency_p95_ms=NAN),
        "latency of the champion": change("champion", latency_p50_ms=INFINITE, latency_p95_ms=INFINITE),
    },
    "few": {"requests": change("candidate", **figures(49)), "of the champion": empty("champion")},
    "stale": {
        "old window": set_window(since=-3600, until=-3600),
        "shorter window": set_window(until=-600),
        "longer window": set_window(since=-600),
    },
    "error": {
        "errors": some("errors", 0.5),
        "exception": raising(ZeroDivisionError("no requests")),
        "slow": change("candidate", latency_p50_ms=100.0, latency_p95_ms=200.0),
        "a tail of slow answers": change(
            "candidate", latencies=lambda arm: ((24, arm["requests"] - arm["requests"] // 3), (60, arm["requests"] // 3))
        ),
        "ratings": change("candidate", rated=((1, 0.0),) * 500),
    },
    "conflicting": {
        "swapped tags": swap_tags,
        "other version": change("candidate", tag="v-other"),
        "same version": lambda fields: fields["candidate"].update(tag=fields["champion"]["tag"]),
        "more latencies than requests": change("candidate", latencies=lambda arm: ((24, arm["requests"] + 1),)),
        "other raters than ratings": change("candidate", raters=("ann",)),
        "negative errors": change("candidate", errors=-5),
        "errors above requests": change("candidate", errors=lambda arm: arm["requests"] + 1),
        "ratings out of range": change("candidate", rated=((1, 7.0),) * 500),
        "ratings without a user": change("candidate", rated=((0, 1.0),) * 500),
        "median above the tail": change("candidate", latency_p50_ms=30.0),
    },
    "vanished slice": {"half of the candidate's traces": some("requests", 0.5)},
    "refused requests": {"all": some("refused", 1.0), "a third": some("refused", 0.33), "more than all": some("refused", 1.1)},
    "dark arm": {"candidate": empty("candidate"), "champion": empty("champion")},
    "sample ratio": {
        "half": resplit(0.5),
        "few on the candidate": resplit(0.01),
        "sessions": change("candidate", sessions=lambda arm: arm["requests"] // 3),
    },
}
ROLLOUT_CELLS = [(kind, name, index) for kind, faults in BAD_TRAFFIC.items() for name in faults for index in range(len(STEPS))]


def rolling(index: int, settings: RolloutSettings = SETTINGS) -> tuple[SimulatedLine, Traffic, str]:
    """Return a line whose rollout has reached the step `index` with good evidence, its traffic, and the id of the rollout."""
    sim, traffic = SimulatedLine(Scenario(seed=1, people="auto")), Traffic()
    loop = sim.context.loop.model_copy(update={"rollout": settings})
    sim.context = replace(sim.context, loop=loop, metrics=traffic, judge=EvidenceJudge(settings))
    cycle = open_cycle(sim.context, "a test")
    rollout = rollout_stream(cycle)
    while (view := sim.context.rollout_view(rollout)) is None:
        sim.clock.sleep(1)
        advance(cycle, sim.context)
    tags = (view.champion.tag, view.candidate.tag)
    sim.router.counts = lambda since, until: traffic.forwarded(tags, since, until)
    run_until(sim, traffic, rollout, index)
    return sim, traffic, rollout


def run_until(sim: SimulatedLine, traffic: Traffic, rollout: str, index: int) -> None:
    """Tick until the step `index` has begun or the rollout has ended; at most for twice the duration of a step."""
    for _ in range(2 * int(SETTINGS.max_seconds) // 40):
        tick(rollout, sim.context)
        view = sim.context.rollout_view(rollout)
        assert view is not None
        if view.steps:
            traffic.share = candidate_share(view.steps[-1].weight, SETTINGS)
        if view.end or len(view.steps) > index:
            return
        sim.clock.sleep(40)


def test_every_kind_of_bad_evidence_has_cells_for_rollouts() -> None:
    assert set(BAD_TRAFFIC) == set(KINDS)


def test_good_evidence_promotes() -> None:
    sim, traffic, rollout = rolling(0)
    run_until(sim, traffic, rollout, len(STEPS))
    view = sim.context.rollout_view(rollout)
    assert view is not None
    assert (view.end, len(view.steps)) == ("promoted", len(STEPS)), view.reason


@pytest.mark.parametrize(("kind", "name", "index"), ROLLOUT_CELLS, ids=[f"{kind}-{name}-{index}" for kind, name, index in ROLLOUT_CELLS])
def test_bad_evidence_advances_no_rollout(kind: str, name: str, index: int) -> None:
    sim, traffic, rollout = rolling(index)
    traffic.fault = BAD_TRAFFIC[kind][name]
    run_until(sim, traffic, rollout, index + 1)
    view = sim.context.rollout_view(rollout)
    assert view is not None
    assert (view.end, len(view.steps)) == ("rolled_back", index + 1), "neither promoted nor at the next weight"


# ---- mirrored prompts ----

MIRROR = SETTINGS.model_copy(update={"mirror": 1000})
Outcomes = Callable[[int], MirrorOutcome]
"""Returns the outcome of the n-th prompt that is asked."""


class Mirror:
    """An unlimited number of prompts with a given outcome. The versions get no ratings, so only the prompts can show the quality."""

    def __init__(self, outcome: Outcomes, people: int = 12, secret: Callable[[int], str] = lambda _: "one", prompts: int = 10_000) -> None:
        self.outcome, self.people, self.secret, self.prompts = outcome, people, secret, prompts
        self.calls = self.asked = 0

    def choose(self, _rollout: str, _versions: Any, _window: Any, asks: MirrorAsk) -> MirrorPrompts:
        self.calls += 1
        keys = asks.only or [f"k{n}" for n in range(len(asks.asked), min(self.prompts, len(asks.asked) + asks.limit))]
        found = [MirrorPrompt(key=key, person=f"p{int(key[1:]) % self.people}", messages=()) for key in keys]
        return MirrorPrompts(secret=self.secret(self.calls), prompts=tuple(found))

    def ask(self, prompts: Any, *_: Any) -> list[MirrorOutcome]:
        self.asked += len(prompts)
        return [self.outcome(int(one.key[1:])) for one in prompts]


def equal(_n: int) -> MirrorOutcome:
    return MirrorOutcome(difference=0.0)


def every(step: int, outcome: Outcomes) -> Outcomes:
    return lambda n: outcome(n) if n % step == 0 else equal(n)


def lost(failed: bool) -> Outcomes:
    return lambda _: MirrorOutcome(difference=None, failed=failed)


def raises(error: Exception) -> Outcomes:
    def outcome(_n: int) -> MirrorOutcome:
        raise error

    return outcome


BAD_PAIRS: dict[str, dict[str, Mirror]] = {
    "missing": {
        "no prompts": Mirror(equal, prompts=0),
        "no rewards": Mirror(lost(False)),
        "no answers of the champion": Mirror(lost(True)),
    },
    "not a number": {
        "difference": Mirror(lambda _: MirrorOutcome(difference=NAN)),
        "infinite": Mirror(lambda _: MirrorOutcome(difference=INFINITE)),
        "above 1": Mirror(lambda _: MirrorOutcome(difference=1.5)),
        "in some pairs": Mirror(every(3, lambda _: MirrorOutcome(difference=NAN))),
    },
    "few": {"pairs": Mirror(equal, prompts=49), "people": Mirror(equal, people=7), "one person": Mirror(equal, people=1)},
    "stale": {"the key is lost again and again": Mirror(equal, secret=str)},
    "error": {
        "server": Mirror(raises(Retryable("the server is down"))),
        "scorer": Mirror(raises(ZeroDivisionError("a scorer"))),
        "worse": Mirror(every(4, lambda _: MirrorOutcome(difference=-1.0))),
        "worse by the margin": Mirror(every(10, lambda _: MirrorOutcome(difference=-1.0))),
        "the candidate fails on half of the prompts": Mirror(every(2, lambda _: MirrorOutcome(difference=-0.8))),
    },
    "conflicting": {
        "a failed pair with a difference": Mirror(lambda _: MirrorOutcome(difference=0.5, failed=True)),
        "gains that hide what is left out": Mirror(every(6, lost(False))),
    },
    "vanished slice": {"a sixth of the prompts has no answer of the champion": Mirror(every(6, lost(True)))},
}


def mirroring(mirror: Mirror) -> tuple[SimulatedLine, Traffic, str]:
    """Return a line in the first step of a rollout with mirrored prompts and without ratings."""
    sim, traffic, rollout = rolling(0, MIRROR)
    traffic.fault = lambda fields: (change("champion", rated=())(fields), change("candidate", rated=())(fields), None)[-1]
    mirror.calls = mirror.asked = 0
    sim.context.datasets.mirror_prompts = mirror.choose  # type: ignore[method-assign]
    sim.context.evaluator.mirror = mirror.ask  # type: ignore[method-assign]
    return sim, traffic, rollout


def test_good_pairs_promote_without_ratings() -> None:
    mirror = Mirror(equal)
    sim, traffic, rollout = mirroring(mirror)
    run_until(sim, traffic, rollout, len(STEPS))
    view = sim.context.rollout_view(rollout)
    assert view is not None
    assert view.end == "promoted", view.reason
    assert "a loss of 0.1 is excluded" in view.reason
    assert mirror.asked < 80, "no more is asked than the decision needs"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, mirrors in BAD_PAIRS.items() for name in mirrors])
def test_bad_pairs_promote_no_candidate(kind: str, name: str) -> None:
    sim, traffic, rollout = mirroring(BAD_PAIRS[kind][name])
    run_until(sim, traffic, rollout, len(STEPS))
    view = sim.context.rollout_view(rollout)
    assert view is not None
    assert (view.end, len(view.steps) <= 2) == ("rolled_back", True), "not beyond the step that decides"
