"""The rules of the ports as tests, for extensions, and fakes of what an extension gets from Ratchet. Needs pytest.

Derive a test class from the suite of your kind, and give it a pytest fixture with the name that the suite documents:

    class TestMentionsTicket(RewardSuite):
        @pytest.fixture
        def reward(self):
            return MentionsTicket()

Ratchet's own implementations pass the same suites (tests/contract).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pytest

from ratchet.contracts.evaluation import Interval, PromptCount
from ratchet.contracts.fakes import FakeClock, FakeWorld, MemoryArtifacts, fake_model
from ratchet.extend import (
    Adjustment,
    Arm,
    Attempt,
    Backend,
    Check,
    CheckResult,
    Comparison,
    ConfigError,
    Decoded,
    Dialect,
    Endpoint,
    EvalReport,
    Evidence,
    FeedbackKind,
    Limits,
    Method,
    Metrics,
    ModelRef,
    ModelVersion,
    RawBatch,
    Rejected,
    RewardFunction,
    Route,
    Router,
    Server,
    Tier,
    TraceSource,
    Trainer,
    TrainingPlan,
    digest,
)
from ratchet.runtime.artifacts import FolderArtifacts

__all__ = [
    "KEYS",
    "SAMPLES",
    "START",
    "CheckSuite",
    "DialectSuite",
    "FakeClock",
    "FakeWorld",
    "FolderArtifacts",
    "MemoryArtifacts",
    "MetricsSuite",
    "RewardSuite",
    "RouterSuite",
    "ServerSuite",
    "SourceSuite",
    "TrainerSuite",
    "fake_model",
    "make_plan",
    "make_report",
    "make_route",
]

KEYS = frozenset({"prompt", "answer", "reference", "feedback", "trace"})
"""Keys that a sample can have."""
START = ModelRef(weights="a" * 64, tokenizer="b" * 64, chat_template="c" * 64, generation_config="d" * 64, others="f" * 64, files="e" * 64)
"""A start model without files."""
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _sample(answer: str, reference: str | None, rating: float | None, latency_ms: float | None) -> dict[str, Any]:
    rated = {"kind": FeedbackKind.RATING.value, "value": rating, "text": None, "rater": "u", "time": None}
    trace = {"latency_ms": latency_ms, "input_tokens": None, "output_tokens": 3, "model": "m"}
    prompt = [{"role": "user", "content": "What is 2 + 2?"}]
    return {"prompt": prompt, "answer": answer, "reference": reference, "feedback": [] if rating is None else [rated], "trace": trace}


SAMPLES = (
    _sample("4", "4", 1.0, 120.0),
    _sample("", None, None, None),
    _sample("A: 5 💥 \u0000 \ud7ff", "4", 0.0, 0.0),
    _sample('{"role": "assistant", "content": null, "tool_calls": []}', "", 0.5, 1e6),
    _sample("x" * 20_000, "x" * 20_000, None, 900.0),
)
"""Samples with usual and unusual content, and with missing values."""


def make_plan(method: Method, recipe: dict[str, Any], **changes: Any) -> TrainingPlan:
    """Return a plan of the line `l` with a complete recipe and placeholder digests, with `changes` to its fields."""
    names = ("dataset", "pairs", "prompts", "demonstrations", "code")
    placeholders: dict[str, Any] = {name: str(number) * 64 for number, name in enumerate(names, 1)}
    fields = {"line": "l", "cycle": "cycle/l/0001", "start": START, "seed": 1, "scorers": (), **placeholders, **changes}
    return TrainingPlan(method=method, recipe=recipe, **fields)


def make_route(*weights: float, annotation: str = "one", url: str = "http://127.0.0.1:1") -> Route:
    """Return a route of the line `line` with one backend per weight, in percent. `{tag}` in `url` is replaced."""
    backends = tuple(Backend(tag=f"v-{n}", url=url.format(tag=f"v-{n}"), model=f"v-{n}", weight=weight) for n, weight in enumerate(weights))
    return Route(line="line", served_model="model", backends=backends, annotation=annotation)


def make_report(**changes: Any) -> EvalReport:
    """Return the report of an evaluation that a candidate won, with `changes` to its fields. Raises ValueError for invalid ones."""

    def better(name: str, n: int) -> Comparison:
        return Comparison(
            name=name, n=n, champion=0.5, candidate=0.6, difference=Interval(estimate=0.1, low=0.02, high=0.18, level=0.95, n=n)
        )

    def answered(name: str, n: int) -> PromptCount:
        return PromptCount(name=name, asked=n, clusters=n, answered_by_both=n, champion_failed=0, candidate_failed=0)

    fields: dict[str, Any] = {
        "edition": 1,
        "champion": digest("champion"),
        "candidate": digest("candidate"),
        "asked": 200,
        "answered_by_both": 200,
        "failures": {},
        "comparisons": (better("overall", 200), better("holdout", 100), better("golden", 100)),
        "counts": (answered("holdout", 100), answered("golden", 100)),
        "lengths": {"champion": 100.0, "candidate": 110.0},
        "latency_ms": {"champion": 100.0, "candidate": 100.0},
        "answers": digest("answers"),
    }
    return EvalReport(**(fields | changes))


class RewardSuite:
    """Rules of a reward. Fixture `reward`: the reward."""

    def test_a_reward_declares_its_name_its_tier_and_its_needs(self, reward: RewardFunction) -> None:
        assert reward.name
        assert Tier(reward.tier)
        assert reward.needs
        assert reward.needs <= KEYS, f"unknown keys: {sorted(reward.needs - KEYS)}"

    def test_each_sample_gets_a_score_or_an_abstention(self, reward: RewardFunction) -> None:
        scores = reward.score(needed(reward))
        assert len(scores) == len(SAMPLES)
        assert all(score is None or 0 <= score <= 1 for score in scores), scores

    def test_no_samples_get_no_scores(self, reward: RewardFunction) -> None:
        assert list(reward.score([])) == []

    def test_a_score_depends_on_its_own_sample_only(self, reward: RewardFunction) -> None:
        samples = needed(reward)
        together = reward.score(samples)
        assert list(reversed(reward.score(samples[::-1]))) == list(together)
        assert [reward.score([sample])[0] for sample in samples] == list(together)


def needed(reward: RewardFunction) -> list[Mapping[str, Any]]:
    """Return `SAMPLES` with only the keys that the reward declares."""
    return [{key: value for key, value in sample.items() if key in reward.needs} for sample in SAMPLES]


class SourceSuite:
    """Rules of a source. Fixture `source`: a source with at least two batches of different content."""

    def test_batches_have_the_name_of_the_source(self, source: TraceSource) -> None:
        batches = list(source.batches())
        assert len(batches) >= 2, "the fixture must offer at least two batches"
        assert {batch.source for batch in batches} == {source.name}
        assert all(batch.format and batch.origin for batch in batches)

    def test_a_batch_is_identified_by_its_content_and_can_be_read_again(self, source: TraceSource) -> None:
        first, second = list(source.batches()), list(source.batches())
        assert [batch.digest for batch in first] == [batch.digest for batch in second], "batches must stay until they are done"
        assert len({batch.digest for batch in first}) == len(first)
        assert [content(batch) for batch in first] == [content(batch) for batch in first]
        assert len({content(batch) for batch in first}) == len(first)

    def test_done_may_be_repeated(self, source: TraceSource) -> None:
        for batch in list(source.batches()):
            source.done(batch)
            source.done(batch)


def content(batch: RawBatch) -> bytes:
    """Return the content of a batch without white space at its ends."""
    with batch.open() as stream:
        return stream.read().strip()


class DialectSuite:
    """Rules of a dialect. Fixtures `dialect`, and `record`: a JSON value that the dialect decodes to at least one row."""

    def test_it_recognises_its_own_records_only(self, dialect: Dialect, record: Any) -> None:
        assert dialect.name
        assert dialect.recognises(record)
        others: tuple[Any, ...] = (None, [], {}, 1, "text", {"unknown": True})
        assert not any(dialect.recognises(other) for other in others)

    def test_a_record_becomes_rows_with_id_and_time(self, dialect: Dialect, record: Any) -> None:
        into = decoded(dialect, record)
        assert into.traces or into.feedback or into.consents
        assert all(row.get("id") and row.get("time") for row in into.traces)
        assert all(row.get("kind") and row.get("time") for row in into.feedback)
        assert all(row.get("trace_id") or row.get("response_id") for row in into.feedback)

    def test_decoding_does_not_change_the_record_and_is_repeatable(self, dialect: Dialect, record: Any) -> None:
        before = json.dumps(record, sort_keys=True)
        one, other = decoded(dialect, record), decoded(dialect, record)
        assert json.dumps(record, sort_keys=True) == before
        assert (one.traces, one.feedback, one.consents) == (other.traces, other.feedback, other.consents)

    def test_an_incomplete_record_is_decoded_or_rejected_with_a_reason(self, dialect: Dialect, record: Any) -> None:
        for key in record if isinstance(record, dict) else ():
            incomplete = {name: value for name, value in record.items() if name != key}
            if dialect.recognises(incomplete):
                with contextlib.suppress(Rejected):  # any other exception fails
                    decoded(dialect, incomplete)


def decoded(dialect: Dialect, record: Any) -> Decoded:
    """Return what a dialect makes of a record."""
    into = Decoded()
    dialect.decode(record, "1", Limits(now=int(_NOON.timestamp() * 1_000_000)), into)
    return into


class CheckSuite:
    """Rules of a check. Fixtures `check`, and `report`: the report of an evaluation."""

    def test_it_returns_its_own_result_with_a_reason(self, check: Check, report: EvalReport) -> None:
        result = check.check(report)
        assert isinstance(result, CheckResult)
        assert result.check == check.name
        assert result.reason

    def test_it_does_not_change_the_report_and_is_repeatable(self, check: Check, report: EvalReport) -> None:
        before = report.model_dump_json()
        assert check.check(report) == check.check(report)
        assert report.model_dump_json() == before


class Restart(Protocol):
    """Opens the extension again, as the service does after a restart."""

    def __call__(self) -> Any:
        """Return the extension with the same files."""


class ServerSuite:
    """Rules of a server.

    Fixtures `restart`: opens the server on the same files, `version`: a version that it can serve, and, if the server serves adapters,
    `adapter`: a version that is an adapter with `version` as its base model.
    """

    @pytest.fixture
    def adapter(self) -> ModelVersion | None:
        """Return no adapter. A suite of a server that serves adapters overrides it."""
        return None

    def test_a_version_is_served_once_found_after_a_restart_and_stopped(self, restart: Restart, version: ModelVersion) -> None:
        server: Server = restart()
        try:
            first = server.ensure(version)
            assert isinstance(first, Endpoint)
            assert first.tag == version.tag
            assert server.ensure(version) == restart().ensure(version) == first
            assert first in server.running()
            assert first in restart().running()
            server.stop("v-unknown")
            assert first in restart().running()
        finally:
            server.stop(version.tag)
        assert version.tag not in {endpoint.tag for endpoint in restart().running()}
        server.stop(version.tag)

    def test_an_adapter_is_served_beside_its_base_and_stopped_alone(
        self, restart: Restart, version: ModelVersion, adapter: ModelVersion | None
    ) -> None:
        server: Server = restart()
        if not server.capabilities.adapters:
            assert adapter is None, "the server says that it serves no adapters"
            return
        assert adapter is not None, "give the fixture `adapter`, because the server says that it serves adapters"
        assert adapter.model.parent == version.model.files
        try:
            base, first = server.ensure(version), server.ensure(adapter)
            assert (first.tag, first.model != base.model or first.url != base.url) == (adapter.tag, True)
            assert restart().ensure(adapter) == first
            assert {base.tag, first.tag} <= {endpoint.tag for endpoint in restart().running()}
            restart().stop(adapter.tag)
            left = {endpoint.tag for endpoint in restart().running()}
            assert base.tag in left
            assert adapter.tag not in left
            assert restart().ensure(adapter).tag == adapter.tag
        finally:
            server.stop(adapter.tag)
            server.stop(version.tag)


class RouterSuite:
    """Rules of a router. Fixture `router`: a router of the line `line` without a route.

    Fixture `backend_url`, which you may override: URL of a model server, in which `{tag}` is replaced by `v-0` or `v-1`.
    """

    @pytest.fixture
    def backend_url(self) -> str:
        """Return a URL where no server answers."""
        return "http://127.0.0.1:1"

    def test_read_returns_the_route_that_was_set(self, router: Router, backend_url: str) -> None:
        assert router.read("line") is None
        one = make_route(100, url=backend_url)
        router.set(one)
        router.set(one)
        assert router.read("line") == one
        assert router.read("other") is None
        two = make_route(70, 30, annotation="two", url=backend_url)
        router.set(two)
        assert router.read("line") == two
        assert router.url().startswith(("http://", "https://"))


class MetricsSuite:
    """Rules of metrics. Fixture `metrics`: metrics of a line with or without traffic."""

    def test_the_evidence_names_the_versions_and_the_window(self, metrics: Metrics) -> None:
        since, until = _NOON, _NOON + timedelta(hours=1)
        found = metrics.evidence("v-1", "v-2", since, until)
        assert isinstance(found, Evidence)
        assert (found.since, found.until) == (since, until)
        assert (found.champion.tag, found.candidate.tag) == ("v-1", "v-2")
        for arm in (found.champion, found.candidate):
            assert isinstance(arm, Arm)
            assert arm.errors + arm.refused <= arm.requests


class TrainerSuite:
    """Rules of a trainer. Fixture `trainer`: the trainer."""

    def test_completing_a_recipe_is_idempotent(self, trainer: Trainer) -> None:
        recipe = trainer.recipe({})
        assert trainer.recipe(recipe) == recipe

    def test_an_unknown_key_is_an_error_that_names_the_nearest_known_key(self, trainer: Trainer) -> None:
        key = next(iter(trainer.recipe({})))
        with pytest.raises(ConfigError) as raised:
            trainer.recipe({key + "x": 1})
        assert key in str(raised.value)

    def test_a_job_is_determined_by_plan_and_attempt(self, trainer: Trainer) -> None:
        plan = make_plan(Method(trainer.method), trainer.recipe({}))
        attempts: Sequence[Attempt] = (
            Attempt(number=1, timeout=60.0),
            Attempt(number=2, timeout=60.0),
            Attempt(number=1, timeout=61.0),
            Attempt(number=1, timeout=60.0, adjustment=Adjustment(learning_rate=0.5)),
        )
        jobs = [trainer.job(plan, attempt) for attempt in attempts]
        assert jobs == [trainer.job(plan, attempt) for attempt in attempts]
        assert len({job.name for job in jobs}) == len(jobs)
        assert TrainingPlan.model_validate_json(jobs[0].plan_json) == plan
        assert jobs[0].plan == plan.id
        assert START.files in jobs[0].inputs.values()
