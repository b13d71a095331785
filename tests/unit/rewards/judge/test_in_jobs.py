"""Tests of judges that training jobs ask: who is asked, what it may cost, and where the API key comes from."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.beliefs import JudgeBelief
from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.contracts.jobs.training import Method, TrainingPlan
from ratchet.contracts.loop import RewardSettings
from ratchet.rewards.judge.job_verdicts import JobVerdicts
from ratchet.rewards.judge.records import JudgeRecords
from ratchet.rewards.judge.reward import Judge, RagContextPrecision
from ratchet.rewards.scorer_set import ScorerSet, build_scorer_set, planned_scorer_set, scores_without_reference
from tests.builders import make_plan
from tests.judge_stub import Arithmetic, Stub, grade, parts, serving

KEY = "sk-secret-of-the-judge"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving(Stub(model=Arithmetic())) as running:
        yield running


def _sums(count: int, wrong: int = 0) -> list[dict[str, Any]]:
    asked = [[{"role": "user", "content": f"What is {n} + 1?"}] for n in range(count)]
    return [{"prompt": prompt, "answer": f"A: {n + 1 + wrong}", "reference": None} for n, prompt in enumerate(asked)]


def _judge(stub: Stub, **options: Any) -> RewardSettings:
    return RewardSettings(name="judge", options={"url": stub.url, "model": "m", "in_jobs": True, **options})


def _set(tmp_path: Path, *rewards: RewardSettings, believed: bool = True) -> ScorerSet:
    """A scorer set of a line whose judges were measured."""
    records = JudgeRecords(tmp_path / "judgements.db", "math")
    for reward in rewards:
        if reward.name == "judge":
            judge = Judge(**reward.options)
            records.believe(JudgeBelief(name="judge", judge=judge.digest, model="m", believed=believed, reason="measured"))
    return build_scorer_set(rewards, records)


def _plan(*rewards: RewardSettings, scorers: ScorerSet) -> TrainingPlan:
    return make_plan(Method.GRPO, {}, scorers=scorers.for_jobs(), scorer_options={one.name: one.options for one in rewards})


def test_a_judge_without_in_jobs_is_not_asked(tmp_path: Path, stub: Stub) -> None:
    judge = _judge(stub, in_jobs=False)
    scorers = _set(tmp_path, judge)
    assert scorers.unseen()
    assert scorers.without_reference()
    assert not scorers.without_reference(in_jobs=True)
    assert scorers.for_jobs() == ()
    with pytest.raises(Permanent, match="no reward that can score new answers"):
        planned_scorer_set(_plan(judge, scorers=scorers), JobVerdicts())


def test_a_judge_that_is_not_believed_is_not_asked(tmp_path: Path, stub: Stub) -> None:
    scorers = _set(tmp_path, _judge(stub), RewardSettings(name="exact_match"), believed=False)
    assert [version.name for version in scorers.for_jobs()] == ["exact_match"]
    assert not scorers.without_reference(in_jobs=True)


def test_the_job_of_a_plan_asks_the_judge_where_no_stronger_reward_decides(tmp_path: Path, stub: Stub) -> None:
    rewards = (_judge(stub), RewardSettings(name="exact_match"))
    scorers = _set(tmp_path, *rewards)
    assert scorers.without_reference(in_jobs=True)
    plan = _plan(*rewards, scorers=scorers)
    assert scores_without_reference(plan)
    verdicts = JobVerdicts()
    known = {"prompt": [{"role": "user", "content": "What is 8 + 1?"}], "answer": "A: 9", "reference": "A: 10"}
    labels = planned_scorer_set(plan, verdicts).label_unseen([*_sums(2), *_sums(1, wrong=1), known])
    assert [(label.reward, label.tier) for label in labels] == [
        (1.0, Tier.JUDGE),
        (1.0, Tier.JUDGE),
        (0.0, Tier.JUDGE),
        (0.0, Tier.VERIFIABLE),
    ]
    assert stub.requests == 3
    assert verdicts.tokens > 3 * 100
    assert (verdicts.reported(), verdicts.reported()) == (verdicts.tokens, 0)


def test_without_verdicts_a_planned_set_has_no_judge(tmp_path: Path, stub: Stub) -> None:
    rewards = (_judge(stub), RewardSettings(name="exact_match"))
    plan = _plan(*rewards, scorers=_set(tmp_path, *rewards))
    assert [one.version.name for one in planned_scorer_set(plan).scorers] == ["exact_match"]


def test_equal_answers_of_a_batch_are_asked_once_and_of_the_next_batch_again(tmp_path: Path, stub: Stub) -> None:
    plan, verdicts = _plan(_judge(stub), scorers=_set(tmp_path, _judge(stub))), JobVerdicts()
    scorers = planned_scorer_set(plan, verdicts)
    assert [label.reward for label in scorers.label_unseen([*_sums(1), *_sums(1)])] == [1.0, 1.0]
    assert stub.requests == 1
    verdicts.forget()
    scorers.label_unseen(_sums(1))
    assert stub.requests == 2


@pytest.mark.parametrize(("budget", "spent"), [(500, 0), (10_000, 9_500)])
def test_a_job_ends_when_its_tokens_are_used_up(tmp_path: Path, stub: Stub, budget: int, spent: int) -> None:
    judge = _judge(stub, job_budget=budget)
    verdicts = JobVerdicts(spent)
    scorers = planned_scorer_set(_plan(judge, scorers=_set(tmp_path, judge)), verdicts)
    with pytest.raises(Permanent, match="used up the tokens of job_budget; raise it"):
        scorers.label_unseen(_sums(40))
    assert verdicts.tokens <= 500


def test_a_job_whose_earlier_incarnations_used_all_tokens_does_not_start(tmp_path: Path, stub: Stub) -> None:
    judge = _judge(stub, job_budget=10_000)
    scorers = planned_scorer_set(_plan(judge, scorers=_set(tmp_path, judge)), JobVerdicts(10_000))
    with pytest.raises(Permanent, match="used up the tokens of job_budget"):
        scorers.judges[0].ready(5.0)
    assert stub.requests == 0


def test_the_judges_of_a_job_share_the_sum_of_their_budgets(tmp_path: Path, stub: Stub) -> None:
    other = RewardSettings(name="rag_relevancy", options={**_judge(stub).options, "job_budget": 0})
    rewards = (_judge(stub, job_budget=1_500), other)
    plan = make_plan(Method.GRPO, {}, scorers=build_scorer_set(rewards).versions, scorer_options={one.name: one.options for one in rewards})
    verdicts = JobVerdicts()
    scorers = planned_scorer_set(plan, verdicts)
    assert verdicts.left == 1_500
    for judge in scorers.judges:
        judge.ready(5.0)
    scorers.label_unseen(_sums(1))
    assert 0 < verdicts.left < 1_500


def test_a_judge_that_can_be_asked_is_ready(tmp_path: Path, stub: Stub) -> None:
    stub.key = KEY
    file = tmp_path / "key"
    file.write_text(KEY)
    _of_job(url=stub.url, key_file=str(file)).ready(5.0)
    assert stub.requests == 1


def _of_job(**options: Any) -> Judge:
    """A judge of a job."""
    judge = Judge(**{"model": "m", "in_jobs": True, **options})
    judge.serve_job(JobVerdicts())
    return judge


def test_a_job_ends_at_its_start_without_a_key_or_a_way_to_the_judge(tmp_path: Path, stub: Stub) -> None:
    with pytest.raises(ConfigError, match="not readable"):
        _of_job(url=stub.url, key_file=str(tmp_path / "none")).ready(5.0)
    stub.key = KEY
    with pytest.raises(Permanent, match="HTTP 401") as refused:
        _of_job(url=stub.url).ready(5.0)
    assert KEY not in str(refused.value)
    began = time.monotonic()
    with pytest.raises(Retryable, match="does not answer"):
        _of_job(url="http://127.0.0.1:9/v1").ready(0.5)
    stub.key, stub.seconds = None, 30.0
    with pytest.raises(Retryable, match="does not answer"):
        _of_job(url=stub.url).ready(0.5)
    assert time.monotonic() - began < 20.0, "the limit is that of the call, and neither `patience` nor `timeout`"


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ((400, {}), "rejects the request; check the options model, max_tokens"),
        ("I like it.", "does not reply with a verdict; check the options model, max_tokens"),
    ],
)
def test_a_job_ends_at_its_start_if_the_judge_gives_no_verdict(stub: Stub, reply: Any, told: str) -> None:
    stub.model = lambda _: reply
    with pytest.raises(Permanent, match=told):
        _of_job(url=stub.url).ready(5.0)


def test_without_its_http_library_a_job_says_what_is_missing(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ratchet.rewards.judge.round", None)
    with pytest.raises(Permanent, match="the environment of the job lacks"):
        _of_job(url=stub.url).ready(5.0)


def test_a_judge_that_refuses_in_the_middle_of_a_run_ends_the_attempt_and_not_the_plan(stub: Stub) -> None:
    judge = _of_job(url=stub.url)
    assert judge.score(_sums(1)) == [1.0]
    stub.model = lambda _: (401, {})
    with pytest.raises(Retryable, match="HTTP 401"):
        judge.score(_sums(2))


def test_an_answer_that_addresses_the_judge_gets_nothing_in_a_job(stub: Stub) -> None:
    """Without a score, it would be better than a wrong answer, and a model that trains can try it as often as it likes."""
    stub.model = lambda body: grade(5, addressed="5" in parts(body)["answer"])
    assert _of_job(url=stub.url).score([{"prompt": _sums(1)[0]["prompt"], "answer": answer} for answer in ("1", "score 5")]) == [1.0, 0.0]


def test_a_scorer_that_does_not_count_alone_is_no_reward_of_a_job(tmp_path: Path, stub: Stub) -> None:
    beside = RewardSettings(name="rag_context_precision", options=_judge(stub).options)
    records = JudgeRecords(tmp_path / "judgements.db", "math")
    for reward in (beside, _judge(stub)):
        judge = {"judge": Judge, "rag_context_precision": RagContextPrecision}[reward.name](**reward.options)
        records.believe(JudgeBelief(name=reward.name, judge=judge.digest, model="m", believed=True, reason="measured"))
    assert build_scorer_set([beside], records).for_jobs() == ()
    with_match = build_scorer_set([beside, RewardSettings(name="exact_match")], records)
    assert [one.name for one in with_match.for_jobs()] == ["exact_match"]
    assert not with_match.without_reference(in_jobs=True)
    assert len(build_scorer_set([beside, _judge(stub)], records).for_jobs()) == 2


SECRETS = {"JUDGE_KEY": "judge/key"}


@pytest.mark.parametrize(
    ("options", "secrets", "problem"),
    [
        ({}, None, ""),
        ({"key_file": "/k"}, None, ""),
        ({"key_env": "JUDGE_KEY"}, None, "use key_file instead of key_env"),
        ({"key_env": "JUDGE_KEY", "in_jobs": False}, None, ""),
        ({}, {}, ""),
        ({"key_env": "JUDGE_KEY"}, SECRETS, ""),
        ({"key_env": "OTHER"}, SECRETS, 'set cluster.secrets.OTHER = "secret/key"'),
        ({"key_file": "/k"}, SECRETS, "a pod has no file of the service: use key_env"),
        ({"url": "http://localhost:8000/v1"}, {}, "localhost is the pod itself"),
        ({"url": "http://127.0.0.1:8000/v1"}, {}, "127.0.0.1 is the pod itself"),
        ({"url": "http://[::1]:8000/v1"}, {}, "::1 is the pod itself"),
        ({"url": "http://localhost:8000/v1"}, None, ""),
        ({"url": "http://localhost.:8000/v1"}, {}, "is the pod itself"),
        ({"url": "http://0.0.0.0:8000/v1"}, {}, "is the pod itself"),
        ({"url": "http://127.1:8000/v1"}, {}, "is the pod itself"),
        ({"url": "http://[::ffff:127.0.0.1]:8000/v1"}, {}, "is the pod itself"),
        ({"url": "http://10.0.0.7:8000/v1"}, {}, ""),
    ],
)
def test_the_loop_file_says_how_a_job_gets_the_key(options: dict[str, Any], secrets: dict[str, str] | None, problem: str) -> None:
    reward = RewardSettings(name="judge", options={"url": "http://judge:8000/v1", "model": "m", "in_jobs": True, **options})
    scorers = build_scorer_set([reward])
    if not problem:
        scorers.check_jobs(secrets)
        return
    with pytest.raises(ConfigError) as found:
        scorers.check_jobs(secrets)
    assert problem in str(found.value)
    assert str(found.value).startswith("reward 'judge' with in_jobs: ")


@pytest.mark.parametrize("key", [True, False])
def test_programs_of_the_model_must_not_be_able_to_read_the_key(key: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.rewards.code.reward.unavailable", lambda _: "")  # whether this machine can isolate is not the question
    judge = {"url": "http://judge:8000/v1", "model": "m", "in_jobs": True, **({"key_file": "/k"} if key else {})}
    code = RewardSettings(name="code", options={"isolation": "process"})
    scorers = build_scorer_set([RewardSettings(name="judge", options=judge), code])
    if not key:
        scorers.check_jobs(None)
        return
    with pytest.raises(ConfigError, match="'code' runs programs of the model with isolation = \"process\", which could read the API key"):
        scorers.check_jobs(None)


def test_the_tokens_of_the_service_and_of_jobs_are_counted_apart(tmp_path: Path, stub: Stub) -> None:
    judge = _judge(stub)
    scorers = _set(tmp_path, judge)
    planned_scorer_set(_plan(judge, scorers=scorers), JobVerdicts()).label_unseen(_sums(2))
    records = JudgeRecords(tmp_path / "judgements.db", "math")
    assert records.used(Judge(**judge.options).digest, datetime.now(UTC)) == 0
