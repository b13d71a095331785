"""Fakes of what serves, judges and routes models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from contracts.data import HoldoutEdition, Label, ScorerVersion
from contracts.evaluation import ChatAnswer, ChatRequest, CheckResult, Comparison, EvalReport, Interval, Result
from contracts.fakes.state import World
from contracts.ids import digest
from contracts.model import ModelRef
from contracts.ports import ModelClient, Progress
from contracts.records import Tier
from contracts.serving import Arm, Capabilities, Endpoint, Evidence, ModelVersion, Route, StepJudgement, StepResult
from contracts.training import StepFigures


class FakeServer:
    """Endpoints that answer nothing by themselves."""

    capabilities = Capabilities(sampling=True, seed=False, logprobs=False)

    def __init__(self, world: World) -> None:
        self.world = world
        self.up: dict[str, Endpoint] = {}

    def ensure(self, version: ModelVersion) -> Endpoint:
        if version.tag not in self.up:
            self.world.faults(f"before serve {version.tag}")
            self.up[version.tag] = Endpoint(tag=version.tag, url=f"http://{version.tag}", model=version.tag)
            self.world.faults(f"after serve {version.tag}")
        return self.up[version.tag]

    def running(self) -> list[Endpoint]:
        return list(self.up.values())

    def stop(self, tag: str) -> None:
        self.up.pop(tag, None)


class FakeClient:
    """Answers by a function of the request."""

    def __init__(self, answer: Callable[[ChatRequest], str | None] = lambda _request: "") -> None:
        self.answer = answer

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:  # noqa: ARG002
        texts = [self.answer(request) for request in requests]
        return [ChatAnswer(text=text, error=None if text is not None else "scripted failure") for text in texts]


class FakeEvaluator:
    """A report with a given difference."""

    def __init__(self, world: World, difference: float) -> None:
        self.world = world
        self.difference = difference

    def evaluate(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,  # noqa: ARG002
    ) -> EvalReport:
        self.world.faults("before evaluate")
        interval = Interval(estimate=self.difference, low=self.difference - 0.05, high=self.difference + 0.05, level=0.95, n=100)
        overall = Comparison(name="overall", n=100, champion=0.5, candidate=0.5 + self.difference, difference=interval)
        return EvalReport(
            edition=edition.number,
            champion=champion[0].id,
            candidate=candidate[0].id,
            asked=100,
            answered_by_both=100,
            failures={},
            comparisons=(overall,),
            answers=digest("answers"),
        )


class FakeCheck:
    """Passes where the overall interval lies above zero, fails where it lies below."""

    name = "better"

    def check(self, report: EvalReport) -> CheckResult:
        difference = report.comparisons[0].difference
        result = Result.PASS if difference.low > 0 else Result.FAIL if difference.high < 0 else Result.INCONCLUSIVE
        return CheckResult(check=self.name, result=result, reason=f"{difference.low:+.2f} to {difference.high:+.2f}")


class FakeRegistry:
    """Versions and aliases in dictionaries."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.versions: dict[str, dict[str, str]] = {}
        self.pointers: dict[tuple[str, str], str] = {}

    def register(
        self, version: ModelVersion, folder: Path, tags: Mapping[str, str], metrics: Mapping[str, float], steps: Sequence[StepFigures] = ()
    ) -> str:
        del folder, metrics, steps  # it keeps names and tags
        if version.tag not in self.versions:
            self.world.faults(f"before register {version.tag}")
            self.world.effects[f"register/{version.tag}"] += 1
            self.versions[version.tag] = dict(tags)
            self.world.faults(f"after register {version.tag}")
        return f"fake:{version.tag}"

    def alias(self, line: str, alias: str, tag: str) -> None:
        self.pointers[line, alias] = tag

    def aliases(self, line: str) -> dict[str, str]:
        return {alias: tag for (of, alias), tag in self.pointers.items() if of == line}


class FakeRouter:
    """Remembers every route that was ever set, for invariants over what served."""

    attribution = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.routes: dict[str, Route] = {}
        self.history: list[Route] = []
        self.watch: Callable[[Route], None] = lambda _route: None

    def set(self, route: Route) -> None:
        self.world.faults(f"before route {route.annotation}")
        self.watch(route)
        self.routes[route.line] = route
        self.history.append(route)
        self.world.faults(f"after route {route.annotation}")

    def read(self, line: str) -> Route | None:
        return self.routes.get(line)

    def url(self) -> str:
        return "http://router"


class FakeMetrics:
    """Evidence by a function of (champion, candidate, since, until)."""

    def __init__(self, arms: Callable[[datetime, datetime], tuple[int, int]]) -> None:
        self.arms = arms

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        counts = self.arms(since, until)
        sides = [
            Arm(tag=tag, requests=n, errors=0, latency_p50_ms=1.0, latency_p95_ms=2.0, rated=())
            for tag, n in zip((champion, candidate), counts, strict=True)
        ]
        return Evidence(since=since, until=until, champion=sides[0], candidate=sides[1])


class FakeJudge:
    """Advances after enough requests, or rolls back at a scripted step."""

    def __init__(self, enough: int = 10, roll_back_when_largest: bool = False) -> None:
        self.enough = enough
        self.bad = roll_back_when_largest

    def judge(self, largest: bool, seconds: float, fresh: Evidence, mature: Evidence) -> StepJudgement:  # noqa: ARG002
        n = fresh.candidate.requests
        result = StepResult.WAIT if n < self.enough else StepResult.ROLL_BACK if largest and self.bad else StepResult.ADVANCE
        return StepJudgement(result=result, reasons=(f"{n} requests",), requests=n + fresh.champion.requests, candidate_requests=n)


class FakeRewards:
    """Scorers that are only names."""

    versions: tuple[ScorerVersion, ...] = ()

    def unseen(self) -> bool:
        return True

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        rewards = [1.0 if sample.get("answer") == sample.get("reference") else 0.0 for sample in samples]
        return [Label(reward, Tier.VERIFIABLE, {}, 0) for reward in rewards]
