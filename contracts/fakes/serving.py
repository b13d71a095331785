"""Fakes of the ports that serve, evaluate, register, route and score models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ratchet.contracts.data.beliefs import JudgeBelief
from ratchet.contracts.data.datasets import HoldoutEdition, Label, ScorerVersion
from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import Retryable
from ratchet.contracts.evaluation import (
    ChatAnswer,
    ChatRequest,
    CheckResult,
    Comparison,
    EarlierAnswers,
    EvalReport,
    Interval,
    PromptCount,
    Result,
)
from ratchet.contracts.fakes.state import FakeWorld
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import StepFigures
from ratchet.contracts.mirror import Mirrored, MirrorOutcome, MirrorPrompt
from ratchet.contracts.model import ModelRef
from ratchet.contracts.ports import ModelClient, Progress
from ratchet.contracts.serving import Arm, Capabilities, Endpoint, Evidence, ModelVersion, Outage, Route, StepJudgement, StepResult, Stratum


class FakeServer:
    """`Server` whose endpoints exist by name only."""

    capabilities = Capabilities(sampling=True, seed=False, logprobs=False)

    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.up: dict[str, Endpoint] = {}

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the version's endpoint, and add it if it does not exist."""
        if version.tag not in self.up:
            self.world.faults(f"before serve {version.tag}")
            self.up[version.tag] = Endpoint(tag=version.tag, url=f"http://{version.tag}", model=version.tag)
            self.world.faults(f"after serve {version.tag}")
        return self.up[version.tag]

    def running(self) -> list[Endpoint]:
        """Return all endpoints that were not stopped."""
        return list(self.up.values())

    def stop(self, tag: str) -> None:
        """Remove the endpoint of this tag."""
        self.up.pop(tag, None)


class FakeScalingServer(FakeServer):
    """`ScalingServer` that keeps the share of the sessions for which each version has servers."""

    capabilities = Capabilities(sampling=True, seed=False, logprobs=False, scales=True)

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.shares: dict[str, float] = {}

    def scale(self, version: ModelVersion, share: float, wait: bool = True) -> bool:  # noqa: ARG002
        """Store the share, and return whether it has changed."""
        self.world.faults(f"before scale {version.tag}")
        changed = self.shares.get(version.tag) != share
        self.shares[version.tag] = share
        return changed

    def stop(self, tag: str) -> None:
        """Remove the endpoint of this tag, and its servers."""
        super().stop(tag)
        self.shares.pop(tag, None)


class FakeProbedServer(FakeServer):
    """`ProbedServer` with the outages of versions that are not told yet, by their tags."""

    capabilities = Capabilities(sampling=True, seed=False, logprobs=False, probes=True)

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.away: dict[str, Outage] = {}

    def newest_outage(self, version: ModelVersion) -> Outage | None:
        """Return the outage of the version; one that is over once."""
        found = self.away.get(version.tag)
        if found is not None and found.until is not None:
            del self.away[version.tag]
        return found


class FakeSharingServer(FakeServer):
    """`SharingServer` whose adapters are in the process of the version that is their base model. `die` ends that process."""

    capabilities = Capabilities(sampling=True, seed=False, logprobs=False, adapters=True, sharing=True)

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.deaths: dict[str, list[Outage]] = {}
        self.refusal: str | None = None

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the version's endpoint. An adapter whose process died is loaded again, which ends the outage."""
        if version.tag in self.up:
            return self.up[version.tag]
        endpoint = super().ensure(version)
        died = self.deaths.get(version.tag, [])
        if died and died[-1].until is None:
            died[-1] = died[-1].model_copy(update={"until": died[-1].since})
        return endpoint

    def cannot_share(self, host: ModelVersion, rank: int) -> str | None:  # noqa: ARG002
        """Return `refusal`."""
        return self.refusal

    def outages(self, tag: str) -> tuple[Outage, ...]:
        """Return the outages of the adapter `tag`."""
        return tuple(self.deaths.get(tag, ()))

    def die(self, adapter: str, at: datetime) -> None:
        """End the process of all versions, in which `adapter` is loaded."""
        self.up.clear()
        self.deaths.setdefault(adapter, []).append(Outage(since=at))


class FakeClient:
    """`ModelClient` that computes answers with a function; None is a failed request."""

    def __init__(self, answer: Callable[[ChatRequest], str | None] = lambda _request: "") -> None:
        self.answer = answer

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:  # noqa: ARG002
        """Return the computed answer to each request."""
        texts = [self.answer(request) for request in requests]
        return [
            ChatAnswer(text=text, finish_reason="stop") if text is not None else ChatAnswer(text=None, error="scripted failure")
            for text in texts
        ]


class FakeEvaluator:
    """`Evaluator` that reports a given reward difference, with a half-width of 0.05. `levels` are the levels that it was called with."""

    def __init__(self, world: FakeWorld, difference: float) -> None:
        self.world = world
        self.difference = difference
        self.levels: list[float] = []
        self.outcome: Callable[[MirrorPrompt], MirrorOutcome] = lambda _prompt: MirrorOutcome(difference=0.0)

    def evaluate(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,  # noqa: ARG002
        level: float,
        earlier: Sequence[EarlierAnswers] = (),  # noqa: ARG002
    ) -> EvalReport:
        """Return a report on 100 prompts with the given difference."""
        self.levels.append(level)
        self.world.faults("before evaluate")
        interval = Interval(estimate=self.difference, low=self.difference - 0.05, high=self.difference + 0.05, level=level, n=100)
        overall = Comparison(name="overall", n=100, champion=0.5, candidate=0.5 + self.difference, difference=interval)
        return EvalReport(
            edition=edition.number,
            champion=champion[0].id,
            candidate=candidate[0].id,
            asked=100,
            answered_by_both=100,
            failures={},
            comparisons=(overall,),
            counts=(PromptCount(name="holdout", asked=100, clusters=100, answered_by_both=100, champion_failed=0, candidate_failed=0),),
            answers=digest("answers"),
        )

    def mirror(
        self, prompts: Sequence[MirrorPrompt], champion: ModelClient, candidate: ModelClient, progress: Progress
    ) -> list[MirrorOutcome]:
        """Ask both clients, and return the outcome that the function `outcome` computes. Without it, all answers are equally good."""
        self.world.faults("before mirror")
        requests = [ChatRequest(messages=one.messages, tools=one.tools) for one in prompts]
        for client in (champion, candidate):
            client.chat(requests, progress)
        self.world.effects.update(f"mirror/{one.key}" for one in prompts)
        self.world.faults("after mirror")
        return [self.outcome(one) for one in prompts]


class FakeCheck:
    """`Check` that passes if the first interval is above zero, and fails if it is below zero."""

    name = "better"

    def check(self, report: EvalReport) -> CheckResult:
        """Judge the first comparison of the report."""
        difference = report.comparisons[0].difference
        result = Result.PASS if difference.low > 0 else Result.FAIL if difference.high < 0 else Result.INCONCLUSIVE
        return CheckResult(check=self.name, result=result, reason=f"{difference.low:+.2f} to {difference.high:+.2f}")


class FakeRegistry:
    """`Registry` that stores versions and aliases in dictionaries."""

    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.versions: dict[str, dict[str, str]] = {}
        self.pointers: dict[tuple[str, str], str] = {}
        self.cards: dict[str, str] = {}

    def register(
        self, version: ModelVersion, folder: Path, tags: Mapping[str, str], metrics: Mapping[str, float], steps: Sequence[StepFigures] = ()
    ) -> str:
        """Store the tags of the version, once per version tag."""
        del folder, metrics, steps  # only names and tags are stored
        if version.tag not in self.versions:
            self.world.faults(f"before register {version.tag}")
            self.world.effects[f"register/{version.tag}"] += 1
            self.versions[version.tag] = dict(tags)
            self.world.faults(f"after register {version.tag}")
        return f"fake:{version.tag}"

    def alias(self, line: str, alias: str, tag: str) -> None:
        """Store the alias of the line."""
        self.pointers[line, alias] = tag

    def describe(self, line: str, tag: str, card: str) -> None:  # noqa: ARG002
        """Store the model card of a version."""
        if tag not in self.versions:
            raise Retryable(f"the registry has no version {tag}")
        self.cards[tag] = card

    def unalias(self, line: str, alias: str) -> None:
        """Remove the alias of the line."""
        self.pointers.pop((line, alias), None)

    def aliases(self, line: str) -> dict[str, str]:
        """Return all aliases of the line."""
        return {alias: tag for (of, alias), tag in self.pointers.items() if of == line}


class FakeRouter:
    """`Router` that records every route, so that tests can check which versions served."""

    attribution = True

    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.routes: dict[str, Route] = {}
        self.history: list[Route] = []
        self.watch: Callable[[Route], None] = lambda _route: None
        self.counts: Callable[[datetime, datetime], Mapping[str, int]] = lambda _since, _until: {}
        self.open: Callable[[], Mapping[str, int]] = dict

    def set(self, route: Route) -> None:
        """Store the route and append it to `history`."""
        self.world.faults(f"before route {route.annotation}")
        self.watch(route)
        self.routes[route.line] = route
        self.history.append(route)
        self.world.faults(f"after route {route.annotation}")

    def read(self, line: str) -> Route | None:
        """Return the current route of the line."""
        return self.routes.get(line)

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:  # noqa: ARG002
        """Return the counts that the function `counts` computes. The default is no traffic."""
        return self.counts(since, until)

    def in_flight(self, line: str) -> Mapping[str, int]:  # noqa: ARG002
        """Return the numbers that the function `open` computes. The default is none."""
        return self.open()

    def url(self) -> str:
        """Return a fixed URL without a server."""
        return "http://router"

    def stop(self) -> None:
        """Do nothing, because there is no process."""


class FakeBypassingRouter(FakeRouter):
    """`BypassingRouter` whose bypass is in force while `is_down` is true. `bypassed` is the tag of the version that it leads to."""

    can_bypass = True

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.is_down = False
        self.bypassed = ""

    def bypass(self, champion: Endpoint) -> str:
        """Follow `is_down`, and return what was changed."""
        wanted = champion.tag if self.is_down else ""
        if wanted == self.bypassed:
            return ""
        self.bypassed = wanted
        return f"requests go to {wanted}" if wanted else "requests go to the router"


class FakeMetrics:
    """`Metrics` that get the request counts of champion and candidate from a function of (since, until)."""

    def __init__(self, arms: Callable[[datetime, datetime], tuple[int, int]]) -> None:
        self.arms = arms

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        """Return evidence with the computed request counts, without errors or ratings."""
        counts = self.arms(since, until)
        sides = [
            Arm(tag=tag, requests=n, errors=0, refused=0, sessions=n, latency_p50_ms=1.0, latency_p95_ms=2.0, rated=())
            for tag, n in zip((champion, candidate), counts, strict=True)
        ]
        return Evidence(since=since, until=until, champion=sides[0], candidate=sides[1])


class FakeJudge:
    """`RolloutJudge` that advances after `enough` candidate requests.

    With `roll_back_when_largest`, it rolls back at the step with the largest weight below 100.
    """

    def __init__(self, enough: int = 10, roll_back_when_largest: bool = False) -> None:
        self.enough = enough
        self.bad = roll_back_when_largest

    def judge(
        self,
        largest: bool,
        seconds: float,  # noqa: ARG002
        strata: Sequence[Stratum],
        mirrored: Mirrored | None = None,  # noqa: ARG002
    ) -> StepJudgement:
        """Judge by the number of candidate requests of the current step only."""
        fresh = strata[-1].fresh
        n = fresh.candidate.requests
        result = StepResult.WAIT if n < self.enough else StepResult.ROLL_BACK if largest and self.bad else StepResult.ADVANCE
        return StepJudgement(result=result, reasons=(f"{n} requests",), requests=n + fresh.champion.requests, candidate_requests=n)


class FakeRewards:
    """`Rewards` that compare the answer with the reference."""

    versions: tuple[ScorerVersion, ...] = ()

    def unseen(self) -> bool:
        """Return True: new answers can be scored."""
        return True

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Return reward 1 if answer and reference are equal, else 0."""
        rewards = [1.0 if sample.get("answer") == sample.get("reference") else 0.0 for sample in samples]
        return [Label(reward, Tier.VERIFIABLE, {}, 0) for reward in rewards]

    def for_jobs(self) -> tuple[ScorerVersion, ...]:
        """Return one scorer: a training job can score new answers."""
        return (ScorerVersion(name="fake", distribution="ratchet", version="0", code="0" * 64, tier=Tier.VERIFIABLE, weight=1.0),)

    def beliefs(self) -> tuple[JudgeBelief, ...]:
        """Return nothing: there are no judges."""
        return ()

    def prefer(self, samples: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[float | None]:  # noqa: ARG002
        """Return no verdict: there are no judges."""
        return [None] * len(samples)

    def declined(self, samples: Sequence[Mapping[str, Any]]) -> list[bool | None]:
        """Return no verdict: there are no judges."""
        return [None] * len(samples)
