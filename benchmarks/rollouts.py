"""How often a rollout promotes, rolls back and does not decide, and how much traffic it needs.

The product's own `EvidenceJudge` judges simulated traffic at every look. Users differ in activity (Zipf 1) and in satisfaction, a share of
the requests is rated, and a session of three requests stays with one version. The figures of the former rule (confidence sequences per step
over the means of users; steps 1, 5, 25, 100) were measured in the same world, and stand beside.

`python benchmarks/rollouts.py [--worlds 400] [--seed 1] [--only SECTION] [--quick]`
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import numpy as np

from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.mirror import MIRROR_SHARE, Mirrored
from ratchet.contracts.serving import LATENCY_BASE, Arm, Evidence, StepResult, Stratum
from ratchet.flows.core.rollouts.mirror import BATCH, is_wanted
from ratchet.flows.core.rollouts.rollout import candidate_share, is_largest_concurrent, largest_concurrent
from ratchet.gates.rollout_judge import METRICS, EvidenceJudge
from ratchet.gates.sequential import rating_difference
from ratchet.gates.statistics import normal_quantile

ROOT = Path(__file__).parent
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LOOK = 200
"""Requests of both versions between two looks."""
PER_SESSION = 3
RATED = 0.3
LATENCY_SPREAD = 0.5
"""Standard deviation of the logarithm of a latency."""


@dataclass(frozen=True)
class World:
    """Traffic and candidate."""

    margin: float = 0.05
    loss: float = 0.0
    requests: int = 22_000
    users: int = 240
    spread: float = 0.15
    """Standard deviation of the users' satisfaction."""
    correlation: float = 0.0
    """Correlation of the users' activity with their satisfaction."""
    uneven: float = 0.0
    """Standard deviation of the loss between users."""
    errors: tuple[float, float] = (0.01, 0.01)
    slow: float = 0.0
    """Share of the candidate's answers that take 20 times as long."""
    unit: str = "session"
    mirror: int = 0
    """Maximum number of prompts that are asked again at both versions."""
    exact: bool = False
    """Whether the mean loss of the users of a world is exactly `loss`: they are all the users that a small line has."""
    noise: float = 0.7
    """Share of the mirrored prompts whose two answers are good or bad by chance alone. The others are equally hard for both versions."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the rollout."""


@dataclass(frozen=True)
class Run:
    """A rollout's end."""

    end: str
    why: str
    requests: int
    candidate: int
    """Requests that the candidate got."""
    ratings: int
    """Ratings until the test that decides has ended. The ramp to the last weight, which follows a success, is not counted."""
    pairs: int = 0
    """Mirrored prompts."""


class Traffic:
    """All requests of a world, drawn in advance. `good`, `failed` and `slow` have one row per version."""

    def __init__(self, draw: np.random.Generator, world: World) -> None:
        users, sessions = world.users, -(-world.requests // PER_SESSION)
        activity = draw.permutation(1 / np.arange(1, users + 1))
        often = np.log(activity)
        often = (often - often.mean()) / often.std()
        satisfaction = world.correlation * often + math.sqrt(1 - world.correlation**2) * draw.normal(size=users)
        level = np.clip(0.7 + world.spread * satisfaction, 0, 1)  # before the loss, which would be smaller for the most satisfied users
        loss = world.loss + world.uneven * draw.normal(size=users)
        loss += world.loss - loss.mean() if world.exact else 0.0
        whose = draw.choice(users, sessions, p=activity / activity.sum())
        places = draw.random(users)[whose] if world.unit == "user" else draw.random(sessions)
        self.user, self.place = (np.repeat(one, PER_SESSION)[: world.requests] for one in (whose, places))
        n = world.requests
        self.rated = draw.random(n) < RATED
        chance = draw.random(n)
        self.good = np.array([chance < np.clip(level - side * loss, 0, 1)[self.user] for side in (0, 1)])
        chance = draw.random(n)
        self.failed = np.array([chance < share for share in world.errors])
        ms = 500 * np.exp(LATENCY_SPREAD * draw.normal(size=n))
        late = draw.random(n) < world.slow
        self.ms = np.array([ms, np.where(late, 20 * ms, ms)])
        again = draw.random(n) < world.noise if world.mirror else np.zeros(n, dtype=bool)
        same, apart = (draw.random(n), draw.random((2, n))) if world.mirror else (np.zeros(n), np.zeros((2, n)))
        chances = np.where(again, apart, same)
        reward = [chances[side] < np.clip(level - side * loss, 0, 1)[self.user] for side in (0, 1)]
        self.difference = reward[1].astype(float) - reward[0]
        self.bucket = np.floor(np.log(self.ms) / math.log(LATENCY_BASE)).astype(int)


def window(traffic: Traffic, begin: int, end: int, share: float) -> Stratum:
    """Return the evidence of the requests from `begin` to before `end`, of which the candidate gets `share` percent of the sessions."""
    since = BEGIN + timedelta(seconds=begin)
    candidate = traffic.place[begin:end] < share / 100
    arms = [arm(traffic, np.flatnonzero(candidate == bool(side)) + begin, side) for side in (0, 1)]
    evidence = Evidence.model_construct(since=since, until=BEGIN + timedelta(seconds=end), champion=arms[0], candidate=arms[1])
    return Stratum.model_construct(share=share, fresh=evidence, mature=evidence)


def arm(traffic: Traffic, which: np.ndarray, side: int) -> Arm:
    """Return the evidence of the version `side` on the requests `which`, without the validation, which would take most of the time."""
    failed = traffic.failed[side][which]
    answered = which[~failed]
    rated = which[traffic.rated[which]]
    numbers, sums = np.bincount(traffic.user[rated]), np.bincount(traffic.user[rated], traffic.good[side][rated])
    people = np.flatnonzero(numbers)
    ms = traffic.ms[side][answered]
    p50, p95 = np.quantile(ms, [0.5, 0.95]) if len(ms) else (None, None)
    answers = np.bincount(traffic.bucket[side][answered])
    buckets = np.flatnonzero(answers)
    return Arm.model_construct(
        tag=("old", "new")[side],
        requests=len(which),
        errors=int(failed.sum()),
        refused=0,
        sessions=len(which) and 1 + int(np.count_nonzero(np.diff(which // PER_SESSION))),
        users=int(np.count_nonzero(np.bincount(traffic.user[which]))),
        latency_p50_ms=p50,
        latency_p95_ms=p95,
        rated=tuple(zip(numbers[people].tolist(), sums[people].tolist(), strict=True)),
        raters=tuple(map(str, people.tolist())),
        latencies=tuple(zip(buckets.tolist(), answers[buckets].tolist(), strict=True)),
    )


class Mirror:
    """Prompts that are asked again, in turns of people as the product chooses them (`materializer/mirror.py`)."""

    def __init__(self, traffic: Traffic, users: int) -> None:
        self._traffic = traffic
        self._turns = [0] * users
        self._waiting: list[list[int]] = [[] for _ in range(users)]
        self._known = 0
        self.pairs: list[tuple[str, float]] = []

    def ask(self, used: int, most: int) -> bool:
        """Ask one batch of the first `used` requests, at most up to `most` prompts in all. Return whether there was any to ask."""
        for place in range(self._known, used):
            self._waiting[self._traffic.user[place]].append(place)
        self._known, begin = used, len(self.pairs)
        while len(self.pairs) < min(begin + BATCH, most) and any(self._waiting):
            able = [one for one, left in enumerate(self._waiting) if left]
            person = min(able, key=lambda one: (self._turns[one], self._waiting[one][-1]))
            if self._turns[person] + 1 > 2 + MIRROR_SHARE * (len(self.pairs) + 1):
                break
            self.pairs.append((str(person), float(self._traffic.difference[self._waiting[person].pop()])))
            self._turns[person] += 1
        return len(self.pairs) > begin

    def evidence(self) -> Mirrored:
        """Return the evidence of all pairs so far, without the validation."""
        return Mirrored.model_construct(asked=len(self.pairs), failed=0, unscored=0, pairs=tuple(self.pairs))


def run(draw: np.random.Generator, world: World) -> Run:
    """Roll out a candidate in a simulated world until it is promoted, rolled back, or the requests are used up."""
    settings = RolloutSettings(margin=world.margin, unit=world.unit, mirror=world.mirror, **world.settings)  # type: ignore[arg-type]
    traffic, judge, strata, begin, used, candidate = Traffic(draw, world), EvidenceJudge(settings), [], 0, 0, 0
    mirror = Mirror(traffic, world.users)
    decided: int | None = None  # requests until the step that decides has advanced

    def ended(end: str, why: str = "") -> Run:
        until = decided if decided and end == "promoted" else used
        return Run(end, why, used, candidate, int(traffic.rated[:until].sum()), len(mirror.pairs))

    for index, weight in enumerate(settings.steps):
        share, result = candidate_share(weight, settings), StepResult.WAIT
        while result is StepResult.WAIT:
            if used >= world.requests:
                return ended("undecided")
            used = min(used + LOOK, world.requests)
            seen = [*strata, window(traffic, begin, used, share)]
            candidate = sum(one.fresh.candidate.requests for one in seen)
            largest = is_largest_concurrent(settings, index)
            judgement = judge.judge(largest, used - begin, seen, mirror.evidence())
            while is_wanted(settings, judgement, index, largest_concurrent(settings)) and mirror.ask(used, world.mirror):
                judgement = judge.judge(largest, used - begin, seen, mirror.evidence())
            result = judgement.result
            if result is StepResult.ROLL_BACK:
                return ended("rolled back", judgement.reasons[0])
        strata, begin = seen, used
        if is_largest_concurrent(settings, index):
            decided = used
    return ended("promoted")


ENDS = ("promoted", "rolled back", "undecided")
DECISIONS: tuple[tuple[str, World, dict[str, float]], ...] = (
    ("equal, margin 0.05", World(), {"rolled back": 0.017, "undecided": 0.57}),
    ("equal, margin 0.10", World(margin=0.1), {}),
    ("equal, margin 0.05, busy users more satisfied", World(correlation=0.6), {}),
    ("loss 0.05, margin 0.05", World(loss=0.05), {"promoted": 0.0275}),
    ("loss 0.05, margin 0.05, busy users more satisfied", World(loss=0.05, correlation=0.6), {"promoted": 0.245}),
    ("loss 0.10, margin 0.10", World(loss=0.1, margin=0.1), {}),
    ("loss 0.10, margin 0.10, busy users more satisfied", World(loss=0.1, margin=0.1, correlation=0.6), {}),
    ("loss 0.10, margin 0.05", World(loss=0.1), {"rolled back": 0.645}),
    ("loss 0.20, margin 0.10", World(loss=0.2, margin=0.1), {}),
    ("loss 0.05 that differs between users by 0.1, margin 0.05", World(loss=0.05, uneven=0.1), {}),
    ("equal, margin 0.10, by user", World(margin=0.1, unit="user"), {}),
    (
        "loss 0.10, margin 0.10, by user, busy users more satisfied",
        World(margin=0.1, loss=0.1, unit="user", correlation=0.6),
        {"promoted": 0.065},
    ),
    ("errors 6 % instead of 1 %, margin 0.05", World(errors=(0.01, 0.06)), {}),
    ("errors 10 % in both, margin 0.05", World(errors=(0.1, 0.1)), {}),
    ("10 % of the answers 20 times slower, margin 0.05", World(slow=0.1), {"rolled back": 0.0}),
    ("5 % of the answers 20 times slower, margin 0.05", World(slow=0.05), {"rolled back": 0.0}),
)
"""Name, world, and the shares that were measured for the former rule."""


def decisions(seed: int, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the shares of the ends, and the requests and ratings that they took."""
    for name, world, former in DECISIONS:
        draw = np.random.default_rng(seed)
        runs = [run(draw, world) for _ in range(worlds)]
        shares = {end: round(float(np.mean([one.end == end for one in runs])), 4) for end in ENDS}
        back = [one.candidate for one in runs if one.end == "rolled back"]
        median, most = (round(float(one)) for one in np.quantile(back, [0.5, 0.95])) if back else (None, None)
        mean = {what: round(float(np.mean([getattr(one, what) for one in runs]))) for what in ("requests", "ratings")}
        reasons = sorted({one.why.split(":")[0] for one in runs if one.why})
        yield name, {**shares, **mean, "candidate_requests_to_rollback": [median, most], "reasons": reasons, "former": former}


SMALL = {"steps": (50, 100), "min_requests": 50, "holdback": 10}
"""Settings of a line with few requests: with the default ones, the first and the last step alone take 2,000 requests each."""


def mirrored(seed: int, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the ends of rollouts on small lines, by ratings and by mirrored prompts, and the pairs that a decision took.

    The scorers are assumed to measure what people rate. With `uneven`, the loss differs between people by 0.1.
    """
    for users, margin in ((12, 0.1), (30, 0.1), (30, 0.05)):
        for loss, uneven in ((0.0, 0.0), (margin, 0.0), (2 * margin, 0.0), (margin, 0.1)):
            for mirror in (0, 3000):
                case = {"margin": margin, "loss": loss, "uneven": uneven, "users": users, "mirror": mirror}
                world = World(**case, requests=3000, exact=True, settings=SMALL)
                draw = np.random.default_rng(seed)
                runs = [run(draw, world) for _ in range(worlds)]
                shares = {end: round(float(np.mean([one.end == end for one in runs])), 4) for end in ENDS}
                pairs = [one.pairs for one in runs if one.end != "undecided"]
                median, most = (round(float(one)) for one in np.quantile(pairs, [0.5, 0.95])) if pairs and mirror else (None, None)
                reasons = sorted({one.why.split(":")[0] for one in runs if one.why})
                name = f"{users} people, margin {margin:g}, loss {loss:g}{' that differs by 0.1' if uneven else ''}"
                yield f"{name}, {'mirrored' if mirror else 'ratings'}", {**shares, "pairs": [median, most], "reasons": reasons}


def ratings(seed: int, worlds: int) -> Iterator[tuple[str, Any]]:
    """Yield the mean ratings to a decision, beside those of tests with the same errors that look once.

    One of them climbs the same steps, which have minimum sizes, and looks once at the share that decides. The other one gets all its
    ratings at that share. The time is not limited, so that each rollout decides.
    """
    for margin, requests in ((0.1, 44_000), (0.05, 110_000)):
        limits = World(margin=margin, requests=requests)
        count = max(1, worlds // 10)
        needed = [_fixed(np.random.default_rng(seed + number), limits, steps=True) for number in range(count)]
        alone = [_fixed(np.random.default_rng(seed + number), limits, steps=False) for number in range(count)]
        row: dict[str, Any] = {"fixed": round(float(np.mean(needed))), "fixed_without_steps": round(float(np.mean(alone)))}
        for loss in (0.0, margin, 2 * margin):
            draw = np.random.default_rng(seed)
            runs = [run(draw, replace(limits, loss=loss)) for _ in range(max(1, worlds // 4))]
            row[f"loss {loss:g}"] = round(float(np.mean([one.ratings for one in runs])))
            row[f"loss {loss:g}, undecided"] = round(float(np.mean([one.end == "undecided" for one in runs])), 4)
        row["mean"] = round(float(np.mean([row[f"loss {loss:g}"] for loss in (0.0, margin, 2 * margin)])))
        changes = {"change": row["mean"] / row["fixed"] - 1, "change_without_steps": row["mean"] / row["fixed_without_steps"] - 1}
        yield f"margin {margin:g}", {**row, **{name: round(one, 3) for name, one in changes.items()}, "former": {"change": 0.09}}


def _fixed(draw: np.random.Generator, world: World, *, steps: bool) -> int:
    """Return the ratings at which a single look has the errors of the test of ratings: beta, and its part of alpha.

    With `steps`, the smaller weights come first, each until it has `min_requests` requests of the candidate and `min_seconds`.
    """
    settings = RolloutSettings(margin=world.margin)
    quantiles = normal_quantile(settings.beta) + normal_quantile(settings.alpha / METRICS)
    traffic, strata, begin, used = Traffic(draw, world), list[Stratum](), 0, 0
    for index, weight in enumerate(settings.steps):
        last, share = is_largest_concurrent(settings, index), candidate_share(weight, settings)
        while (steps or last) and used + LOOK <= world.requests:
            used += LOOK
            seen = [*strata, window(traffic, begin, used, share)]
            if not last and seen[-1].fresh.candidate.served >= settings.min_requests and used - begin >= settings.min_seconds:
                strata, begin = seen, used
                break
            found = rating_difference([(one.fresh.champion, one.fresh.candidate) for one in seen])
            if last and found is not None and found.variance <= (world.margin / quantiles) ** 2:
                return found.ratings
        if last:
            break
    raise ValueError("the world has too few requests")


@click.command()
@click.option("--worlds", default=400, help="Simulated rollouts per figure.")
@click.option("--seed", default=1)
@click.option("--quick", is_flag=True, help="Two rollouts per figure, to see that the program works; writes nothing.")
@click.option(
    "--only", type=click.Choice(["decisions", "ratings", "mirrored"]), help="Measure one section and keep the others of the file."
)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "results" / "rollouts.json")
def main(worlds: int, seed: int, quick: bool, only: str | None, out: Path) -> None:
    """Simulate, print the figures and write them. A section that was measured alone has a date, code and worlds of its own."""
    worlds = 2 if quick else worlds
    code = digest({path.name: digest_file(path) for path in sorted((ROOT.parent / "gates").rglob("*.py"))})[:12]
    stamp: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "code": code, "worlds": worlds}
    result: dict[str, Any] = json.loads(out.read_bytes()) if only and out.exists() else dict(stamp)
    for section in (decisions, ratings, mirrored):
        if only not in (None, section.__name__):
            continue
        result[section.__name__] = {"measured": stamp} if only else {}
        for name, figures in section(seed, worlds):
            result[section.__name__][name] = figures
            click.echo(f"{section.__name__}: {name}: {json.dumps(figures)}")
    if not quick:
        out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
