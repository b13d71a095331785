"""The judges as scorers: they score what is recorded, ask for what is not, and abstain while they are not believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address
from socket import inet_aton, inet_ntoa
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ratchet.contracts.data.beliefs import JudgeBelief
from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import Digest, digest, hash_share
from ratchet.rewards.judge.agreement import agreement, upper_bound
from ratchet.rewards.judge.client import Answer, BudgetSpent, JudgeClient
from ratchet.rewards.judge.controls import controls
from ratchet.rewards.judge.job_verdicts import JobVerdicts
from ratchet.rewards.judge.messages import TEMPLATE, Question, about_answer, about_pair, content_key
from ratchet.rewards.judge.options import EndpointOptions, JudgeOptions
from ratchet.rewards.judge.probes import probe_samples
from ratchet.rewards.judge.records import JudgeRecords
from ratchet.rewards.judge.rubrics import CONTEXT_PRECISION, FAITHFULNESS, REFUSAL, RELEVANCY
from ratchet.rewards.judge.verdict import Outcome
from ratchet.rewards.options import check_options

_RIGHT, _WRONG = 0.5, 0.5
"""A label above counts as right, one below as wrong."""


class Judge:
    """Let a language model grade the answer by a rubric, from 0 to 1. Abstain while the judge is not believed.

    The judge is believed if it rejects the probes, and if its agreement with people's labels reaches the floor. Both are measured when data
    is frozen. It grades only answers that no stronger tier decides. Each verdict is recorded, and asked for once. A training job asks the
    judge only with `in_jobs`; there, no verdict is recorded, and an answer that addresses the judge gets 0 instead of no score: it would
    otherwise be better than a wrong answer.
    """

    name = "judge"
    tier = Tier.JUDGE
    needs = frozenset({"prompt", "answer"})
    options_type: ClassVar[type[EndpointOptions]] = JudgeOptions
    criterion: ClassVar[str] = ""

    def __init__(self, **options: Any) -> None:
        self.options: EndpointOptions = check_options(self.name, self.options_type, options)
        self.rubric: str = getattr(self.options, "rubric", self.criterion)
        self.digest: Digest = digest([self.options.url, self.options.model, self.rubric, TEMPLATE])
        self.in_jobs = self.options.in_jobs
        self._client = JudgeClient(self.name, self.options)
        self._records: JudgeRecords | None = None
        self._job: JobVerdicts | None = None
        self._now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def record_in(self, records: JudgeRecords) -> None:
        """Use these records. Without them, the judge asks nothing and abstains."""
        self._records = records

    def serve_job(self, verdicts: JobVerdicts) -> None:
        """Grade the answers of a training job, whose plan has found the judge believed, and keep the verdicts there."""
        verdicts.allow(self.options.job_budget)
        self._job = verdicts

    def ready(self, seconds: float) -> None:
        """Ask one question, so that a job without an API key or without a way to the judge ends before it loads a model.

        The limit is `seconds`. Raises as `JudgeClient.ask`, and Permanent if the job may use no more tokens, if the judge rejects the
        request, or if its reply is none.
        """
        assert self._job is not None, "only the judges of a job are asked"
        options = self.options.model_copy(
            update={"patience": min(seconds, self.options.patience), "timeout": min(seconds, self.options.timeout)}
        )
        question, answers = about_answer(self.rubric, controls()[0][0]), list[Answer]()
        try:
            JudgeClient(self.name, options).ask([question], self._job.left, lambda _, answer: answers.append(answer))
        except BudgetSpent:
            raise Permanent(_spent_in_job(self.name)) from None
        except ImportError as error:
            raise Permanent(f"reward {self.name!r}: the environment of the job lacks {error.name}; install it in its image") from None
        if answers[0].outcome in (Outcome.REJECTED, Outcome.INVALID):
            what = "rejects the request" if answers[0].outcome is Outcome.REJECTED else "does not reply with a verdict"
            raise Permanent(
                f"reward {self.name!r}: the judge at {options.url} {what}; check the options model, max_tokens and structured of the reward"
            )

    def job_problem(self, secrets: Mapping[str, str] | None) -> str:
        """Return why a training job cannot ask the judge, with the remedy; empty if it can, or is not to.

        `secrets` are the variables that pods get from Secrets. None: jobs run on this machine, without the variables of the service.
        """
        options = self.options
        if not options.in_jobs:
            return ""
        if secrets is None:
            return "" if options.key_env is None else "a job gets no variable of the service: use key_file instead of key_env"
        if options.key_file is not None:
            return 'a pod has no file of the service: use key_env, and cluster.secrets.NAME = "secret/key" for this variable'
        if options.key_env is not None and options.key_env not in secrets:
            return f'a pod needs the API key from a Secret: set cluster.secrets.{options.key_env} = "secret/key"'
        host = urlsplit(options.url).hostname or ""
        return f"{host} is the pod itself in a pod; use an address that pods reach" if _is_loopback(host) else ""

    def belief(self) -> JudgeBelief | None:
        """Return the recorded belief in this judge; None if it was not measured yet."""
        return self._records.belief(self.digest) if self._records else None

    @property
    def believed(self) -> bool:
        """Whether the judge has a weight."""
        belief = self.belief()
        return self._job is not None or (belief is not None and belief.believed)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Grade each answer. An answer without content gets 0. Raises as `JudgeClient.ask`."""
        if not self.believed:
            return [None] * len(samples)
        full = [index for index, sample in enumerate(samples) if sample["answer"].strip()]
        values = self._values([about_answer(self.rubric, samples[index]) for index in full])
        scores: list[float | None] = [0.0] * len(samples)
        for index, value in zip(full, values, strict=True):
            scores[index] = value
        return scores

    def prefer(self, samples: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[float | None]:
        """Compare each answer with another one to the same prompt: 1 if it is better, 0 if the other is, 0.5 for a tie.

        Each pair is asked in both orders. If the orders disagree, the pair is a tie. None if one of them has no verdict.
        """
        if not self.believed:
            return [None] * len(samples)
        pairs = [(sample, sample["answer"], other) for sample, other in zip(samples, others, strict=True)]
        questions = [about_pair(self.rubric, sample, first, second) for sample, first, second in pairs]
        questions += [about_pair(self.rubric, sample, second, first) for sample, first, second in pairs]
        values = self._values(questions)
        return [_agreed(one, back) for one, back in zip(values[: len(pairs)], values[len(pairs) :], strict=True)]

    def declined(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Grade whether each answer declines the request, from 0 (it gives what was asked) to 1.

        None for an answer without a verdict, and for all if the judge is not believed or grades one of the controls wrong: a judge that
        takes each answer for a refusal would hide a loss. Raises as `JudgeClient.ask`.
        """
        if not self.believed:
            return [None] * len(samples)
        known = controls()
        graded = self._values([about_answer(REFUSAL, sample) for sample, _ in known])
        if any(value is None or (value > _RIGHT) != declines for value, (_, declines) in zip(graded, known, strict=True)):
            return [None] * len(samples)
        return self._values([about_answer(REFUSAL, sample) for sample in samples])

    def selected(self, samples: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the indices of the answers to grade: at most `max_answers`, by a hash that nobody outside can predict."""
        if self._records is None or not self.believed:
            return []
        salt = self._records.salt()
        ranked = sorted((hash_share(salt, content_key(sample)), index) for index, sample in enumerate(samples))
        return sorted(index for _, index in ranked[: self.options.max_answers])

    def calibrate(self, labelled: Sequence[tuple[Mapping[str, Any], float | None]]) -> None:
        """Measure whether the judge is believed, and record the result. `labelled` are answers with the reward of people's labels, or None.

        People's grades of exported answers replace these labels. Nothing is asked if there are too few. The judge does not see references:
        an answer that only it grades has none. Raises as `JudgeClient.ask`.
        """
        if self._records is None:
            return
        grades, salt = self._records.grades(), self._records.salt()
        known = [(sample, grades.get(content_key(sample), reward)) for sample, reward in labelled] if grades else labelled
        right = _some([sample for sample, reward in known if reward is not None and reward > _RIGHT], salt, self.options.max_labels // 2)
        wrong = _some([sample for sample, reward in known if reward is not None and reward < _WRONG], salt, self.options.max_labels // 2)
        measured = self._measured(right, wrong)
        now = self._now()
        self._records.believe(measured.model_copy(update={"tokens": self._records.used(self.digest, now)}))

    def _measured(self, right: Sequence[Mapping[str, Any]], wrong: Sequence[Mapping[str, Any]]) -> JudgeBelief:
        options = self.options
        belief = JudgeBelief(name=self.name, judge=self.digest, model=options.model, believed=False, reason="")

        def refused(reason: str) -> JudgeBelief:
            return belief.model_copy(update={"reason": reason})

        if min(len(right), len(wrong)) < options.min_labels:
            return refused(
                f"{len(right)} right and {len(wrong)} wrong answers have people's labels; min_labels = {options.min_labels} of each are "
                "needed: collect ratings, or let people grade a sample (`ratchet judge export`)"
            )
        values = self._values([about_answer(self.rubric, sample) for sample in probe_samples(options.probes)])
        accepted = sum(value is not None and value >= _RIGHT for value in values)
        bound = upper_bound(accepted, len(values))
        belief = belief.model_copy(update={"probes": len(values), "accepted": accepted})
        if bound > options.max_flips:
            return refused(
                f"it accepted {accepted} of {len(values)} probes (upper bound {bound:.3f}, above max_flips = {options.max_flips:g}): "
                "texts can talk it into a good score"
            )
        scores = self._values([about_answer(self.rubric, sample, reference=False) for sample in (*right, *wrong)])
        good, bad = _known(scores[: len(right)]), _known(scores[len(right) :])
        if min(len(good), len(bad)) < options.min_labels:
            return refused(f"it gave a score to only {len(good)} right and {len(bad)} wrong answers with people's labels")
        found = agreement(good, bad)
        belief = belief.model_copy(
            update={"labels": len(good) + len(bad), "agreement": found.estimate, "low": found.low, "high": found.high}
        )
        shown = f"its agreement with {belief.labels} of people's labels is {found.estimate:.2f} ({found.low:.2f} to {found.high:.2f})"
        if found.low < options.floor:
            return refused(f"{shown}; the lower bound is below floor = {options.floor:g}")
        return belief.model_copy(update={"believed": True, "reason": f"{shown}; it accepted {accepted} of {len(values)} probes"})

    def _values(self, questions: Sequence[Question]) -> list[float | None]:
        """Return the value of each question: the known one, or that of a new verdict, which is kept first."""
        job = self._job
        kept = job if job is not None else self._records
        assert kept is not None
        keys = [question.key(self.digest) for question in questions]
        known = kept.verdicts(keys)
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in known}
        if missing:
            left = job.left if job is not None else self._left()
            names = list(missing)
            with kept.recording(self.digest) as record:

                def keep(index: int, answer: Answer) -> None:
                    record(names[index], answer)

                try:
                    self._client.ask(list(missing.values()), left, keep)
                except BudgetSpent as error:
                    if job is not None:
                        raise Permanent(_spent_in_job(self.name)) from None
                    done = len(kept.verdicts(names))
                    raise BudgetSpent(
                        f"{error}; {done} of {len(names)} new answers are graded and recorded. Raise `budget` or lower `max_answers` in "
                        "the options of the reward, or start the next cycle later"
                    ) from error
                except Permanent as error:
                    if job is None:
                        raise
                    raise Retryable(str(error)) from error  # it has answered before: the next attempt finds out whether it does again
            known = kept.verdicts(keys)
        return [self._value(*known[key]) for key in keys]

    def _left(self) -> int:
        assert self._records is not None
        return self.options.budget - self._records.used(self.digest, self._now())

    def _value(self, outcome: Outcome, value: float | None) -> float | None:
        if outcome is Outcome.ADDRESSED and self._job is not None:
            return 0.0
        return value if outcome is Outcome.SCORED else None


def _spent_in_job(name: str) -> str:
    return f"reward {name!r}: the job has used up the tokens of job_budget; raise it, or lower the steps or generations of training.grpo"


def _is_loopback(host: str) -> bool:
    name = host.rstrip(".").lower()
    if name in ("localhost", "ip6-localhost", "ip6-loopback") or name.endswith(".localhost"):
        return True
    try:
        found = ip_address(inet_ntoa(inet_aton(name)) if ":" not in name else name)  # also short forms such as 127.1
    except (OSError, ValueError):
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback or found.is_unspecified


def _agreed(one: float | None, back: float | None) -> float | None:
    """Return the preference for the first answer from both orders; `back` is that for the other answer."""
    if one is None or back is None:
        return None
    return one if one == 1 - back else 0.5


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _some(samples: Sequence[Mapping[str, Any]], salt: str, most: int) -> list[Mapping[str, Any]]:
    """Return at most `most` distinct answers, by hash."""
    distinct = {content_key(sample): sample for sample in samples if sample["answer"].strip()}
    return [distinct[key] for key in sorted(distinct, key=lambda key: hash_share(salt, key))[:most]]


class _OfRag(Judge):
    options_type = EndpointOptions


class RagFaithfulness(_OfRag):
    """Grade whether the documents in the conversation support each claim of the answer. Otherwise as `judge`."""

    name = "rag_faithfulness"
    criterion = FAITHFULNESS


class RagRelevancy(_OfRag):
    """Grade whether the answer addresses the request. Otherwise as `judge`."""

    name = "rag_relevancy"
    criterion = RELEVANCY


class RagContextPrecision(_OfRag):
    """Grade how many of the documents in the conversation are useful for the request. Otherwise as `judge`.

    It assesses the retrieval and not the answer, so it counts only where another reward of its tier gives a score.
    """

    name = "rag_context_precision"
    criterion = CONTEXT_PRECISION
    alone = False
