"""Tests of a scorer from another distribution that asks a judge over HTTP, with the TRL trainer.

A failure of the judge must not lower the reward of an answer.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import digest_file
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, Method
from ratchet.contracts.loop import RewardSettings
from ratchet.rewards.scorer_set import ScorerSet, build_scorer_set, planned_scorer_set
from ratchet.trainers.job import online_rewards
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.recipes.grpo import GRPORecipe
from tests.unit.trainers.judge import DISTRIBUTION, SCORES, SOURCE, WAYS, Judge, install, install_package

pytestmark = pytest.mark.slow  # TRL takes seconds to load

GROUPS, ANSWERS = 4, 8


def asking(words: Sequence[str], prompt: str = "one up") -> list[dict[str, Any]]:
    """Return one sample for each answer."""
    return [{"prompt": [{"role": "user", "content": prompt}], "answer": word, "reference": None} for word in words]


def rewards_of(scorer_set: ScorerSet) -> Callable[[Sequence[Mapping[str, Any]]], list[float | None]]:
    """Return the function that scores samples with this scorer set."""
    return lambda samples: [label.reward for label in scorer_set.label_unseen(samples)]


def score(scorer_set: ScorerSet, words: Sequence[str], prompt: str = "one up") -> list[float | None]:
    """Return the rewards of these answers."""
    return rewards_of(scorer_set)(asking(words, prompt))


def test_every_kind_of_failure_leaves_the_answer_unscored(judge: Judge, judged: tuple[RewardSettings, ...]) -> None:
    judge.kinds = sorted(WAYS)
    scorer_set = build_scorer_set([RewardSettings(name=judged[0].name, options={**judged[0].options, "timeout": 15.0})])
    failing = [f"{word} {word}" for word in ("down", "left", "right", "four", "five", "six", "seven", "eight", "nine", "ten")]
    assert score(scorer_set, [*SCORES, *failing]) == [*SCORES.values(), *[None] * len(failing)]
    assert judge.failed == set(WAYS), "the judge must have failed in every way"


def test_a_judge_that_is_down_is_asked_again(judge: Judge, judged: tuple[RewardSettings, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_rewards, "PAUSES", (0.0, 0.0))
    scorer_set, samples = build_scorer_set(judged), asking(["yes", "no", "down"])
    judge.away = 6
    assert online_rewards.scored(rewards_of(scorer_set), samples) == [1.0, 0.0, None]
    judge.away = 9
    with pytest.raises(Retryable, match="every scorer abstained on all 3 answers"):
        online_rewards.scored(rewards_of(scorer_set), samples)
    assert online_rewards.scored(rewards_of(scorer_set), samples) == [1.0, 0.0, None]


def test_a_judge_that_no_longer_runs_scores_nothing(judge: Judge, judged: tuple[RewardSettings, ...]) -> None:
    scorer_set = build_scorer_set(judged)
    judge.shutdown()
    judge.server_close()
    assert score(scorer_set, ["yes", "no"]) == [None, None]


def test_a_plan_pins_the_installed_scorer(workshop: Any, site: Path, judged: tuple[RewardSettings, ...]) -> None:
    plan = workshop.plan(Method.GRPO, judged)
    (pinned,) = plan.scorers
    module = site / SOURCE.name
    assert (pinned.name, pinned.distribution, pinned.version, pinned.code) == (SOURCE.stem, DISTRIBUTION, "1.0", digest_file(module))
    record = dict(line.split(",")[:2] for line in next(site.glob("*.dist-info/RECORD")).read_text().splitlines())
    recorded = base64.urlsafe_b64decode(record[module.name].removeprefix("sha256=") + "=").hex()
    assert pinned.code == recorded, "the digest must equal the one in the wheel's RECORD"
    assert score(planned_scorer_set(plan), ["yes", "no"]) == [1.0, 0.0]
    install(site, "1.1", more="\n# judged otherwise\n")
    with pytest.raises(Permanent, match=rf"{DISTRIBUTION} 1\.1, .* in the plan \({DISTRIBUTION} 1\.0, {pinned.code[:12]}\)"):
        planned_scorer_set(plan)


@pytest.mark.parametrize(("version", "rubric"), [("1.0", "be mild"), ("1.1", "be strict")])
def test_a_plan_pins_the_whole_package_of_the_scorer(
    workshop: Any, site: Path, judged: tuple[RewardSettings, ...], version: str, rubric: str
) -> None:
    """Another rubric under the same version is refused, and so is another version of the same code."""
    install_package(site, "1.0", "be strict")
    plan = workshop.plan(Method.GRPO, judged)
    assert score(planned_scorer_set(plan), ["yes", "no"]) == [1.0, 0.0]
    install_package(site, version, rubric)
    with pytest.raises(Permanent, match="plan again"):
        planned_scorer_set(plan)


@pytest.mark.parametrize("gone", [False, True])
def test_a_job_refuses_a_scorer_that_differs_from_the_plan(
    workshop: Any, judge: Judge, site: Path, judged: tuple[RewardSettings, ...], gone: bool
) -> None:
    spec = workshop.spec(workshop.plan(Method.GRPO, judged, steps=2))
    if gone:
        shutil.rmtree(next(site.glob("*.dist-info")))
    else:
        install(site, "1.1", more="\n# judged otherwise\n")
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.PERMANENT
    assert ("no reward 'judged_over_http' is installed" if gone else f"different code here ({DISTRIBUTION} 1.1") in status.reason
    assert not judge.asked


def told(workshop: Any, spec: JobSpec, figure: str) -> list[float]:
    """Return the values of a metric at all steps."""
    return [event.data[figure] for event in workshop.executor.events(spec.name) if event.kind == "progress"]


def mean(scores: Sequence[float]) -> float:
    """Return the mean of the scores."""
    return sum(scores) / len(scores)


def test_a_run_continues_without_the_unscored_answers(workshop: Any, judge: Judge, judged: tuple[RewardSettings, ...]) -> None:
    """In the first step, the judge is down for all answers. It is asked again after the first pause, and the run continues."""
    judge.away = GROUPS * ANSWERS
    spec = workshop.spec(workshop.plan(Method.GRPO, judged, steps=2, prompts_per_step=GROUPS, generations=ANSWERS))
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert (status.outcome, status.step) == (Outcome.DONE, 2), (status, workshop.log(spec))
    assert not judge.away
    assert len(judge.asked) == 2 * GROUPS * ANSWERS
    steps = [[score for _, score in judge.asked[at : at + GROUPS * ANSWERS]] for at in (0, GROUPS * ANSWERS)]
    assert told(workshop, spec, "abstained") == pytest.approx([own.count(None) / len(own) for own in steps])
    for own, reward in zip(steps, told(workshop, spec, "reward"), strict=True):
        known = [score for score in own if score is not None]
        assert 0 < len(known) < len(own)
        assert reward == pytest.approx(mean(known), abs=1e-5)
        assert reward > mean([score or 0.0 for score in own]) + 0.05, "unscored answers must not count as wrong"


class Step:
    """The answers of one step and their gradients, computed in this process with the trainer of a job."""

    def __init__(self, workshop: Any, rewards: Sequence[RewardSettings]) -> None:
        import torch

        from ratchet.trainers.job.trl import grpo, runner

        small = {"steps": 1, "prompts_per_step": GROUPS, "generations": ANSWERS, "micro_batch": GROUPS * ANSWERS, "max_completion": 3}
        plan = workshop.plan(Method.GRPO, rewards, beta=0.0, **small)
        run = workshop.executor.folders.lay_out(workshop.spec(plan), workshop.artifacts)
        job = Job(run, plan, 1, 1, 0, Events(run / "events.jsonl", 1, 1))
        self.trainer = grpo.build(job, runner.arguments(job, job.recipe(GRPORecipe)))
        self.trainer.current_gradient_accumulation_steps = 1
        self.trainer.model.train()
        self.rows = next(iter(self.trainer.get_train_dataloader()))
        self.scorer_set = self.trainer.reward_funcs[0]
        self.scores: list[float | None] = []
        self.torch = torch

    def sampled(self, instead: float | None = None) -> dict[str, Any]:
        """Return the answers with their advantages. Every call returns the same answers.

        Unscored answers get the reward `instead`.
        """

        def reward(**given: Any) -> list[float | None]:
            self.scores = self.scores or self.scorer_set(**given)
            return [instead if score is None else score for score in self.scores]

        self.trainer.reward_funcs = [reward]
        self.torch.manual_seed(5)
        library = super(type(self.trainer), self.trainer)  # whose step has the prompts that it is given
        made: dict[str, Any] = library._generate_and_score_completions(self.rows)
        return made

    def gradient(self, made: dict[str, Any]) -> Any:
        """Return the gradient of the loss for all weights."""
        self.trainer.model.zero_grad()
        self.trainer.compute_loss(self.trainer.model, made).backward()
        return self.torch.cat([weight.grad.flatten() for weight in self.trainer.model.parameters()])

    def without(self, made: dict[str, Any], counted: bool) -> dict[str, Any]:
        """Return the step without the unscored answers.

        `counted` keeps their tokens in the number of tokens by which the loss is divided.
        """
        keep = self.torch.tensor([score is not None for score in self.scores])
        rest = {name: value[keep] if getattr(value, "shape", (0,))[:1] == keep.shape else value for name, value in made.items()}
        return rest if counted else rest | {"num_items_in_batch": rest["completion_mask"].sum()}


def test_an_unscored_answer_does_not_contribute_to_the_gradient(workshop: Any, judge: Judge, judged: tuple[RewardSettings, ...]) -> None:
    """Only its tokens count in the divisor of the loss, as for an answer whose reward is the mean."""
    step = Step(workshop, judged)
    made, wrong = step.sampled(), step.sampled(instead=0.0)
    assert made["completion_ids"].equal(wrong["completion_ids"]), "both calls must return the same answers"
    groups = [step.scores[at : at + ANSWERS] for at in range(0, GROUPS * ANSWERS, ANSWERS)]
    assert sum(None in group for group in groups) == GROUPS
    torch = step.torch
    for number, group in enumerate(groups):
        known = torch.tensor([score for score in group if score is not None])
        alone = iter((known - known.mean()) / (known.std() + 1e-4) if len(known) > 1 else [0.0])
        expected = [0.0 if score is None else float(next(alone)) for score in group]
        assert made["advantages"][number * ANSWERS :][:ANSWERS].tolist() == pytest.approx(expected, abs=1e-5)
    unscored = torch.tensor([score is None for score in step.scores])
    assert made["advantages"][unscored].abs().max() == 0.0
    assert wrong["advantages"][unscored].min() < -0.5, "a reward of zero would count as a bad answer"

    whole, least = step.gradient(made), 1e-3
    size = whole.norm()
    assert size > least
    assert (whole - step.gradient(step.without(made, counted=True))).norm() < 1e-4 * size
    tokens, kept = made["num_items_in_batch"], step.without(made, counted=False)["num_items_in_batch"]
    assert kept < tokens
    assert (whole * (tokens / kept) - step.gradient(step.without(made, counted=False))).norm() < 1e-4 * size
    assert (whole - step.gradient(wrong)).norm() > 0.1 * size
