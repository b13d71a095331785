"""Asks both models the tasks of a suite, and compares how often they solve them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import comb
from statistics import fmean

from ratchet.contracts.data.datasets import Label
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest, Comparison, PromptCount, SuiteReport
from ratchet.contracts.ids import canonical, digest
from ratchet.contracts.loop import SuiteSettings
from ratchet.contracts.ports import Artifacts, ModelClient, Progress, Rewards
from ratchet.gates.evaluation.comparisons import failure_counts
from ratchet.gates.evaluation.labelling import label_answers
from ratchet.gates.evaluation.questions import by_prompt
from ratchet.gates.statistics import paired_interval, paired_share_interval
from ratchet.gates.suites.tasks import SuiteTask, tasks_digest


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of `k` answers passes.

    `passed` of `samples` answers passed. Source: Chen et al. 2021, Evaluating Large Language Models Trained on Code, arXiv:2107.03374,
    equation 1.
    """
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


@dataclass(frozen=True)
class SuiteEvaluation:
    """Compares two models on the tasks of one suite."""

    name: str
    tasks: tuple[SuiteTask, ...]
    settings: SuiteSettings
    rewards: Rewards
    artifacts: Artifacts

    def ask(self, clients: tuple[ModelClient, ModelClient], progress: Progress, level: float) -> SuiteReport:
        """Ask champion and candidate all tasks, and compare the estimates of pass@k, averaged over the groups of tasks.

        `level` is the confidence level of the two-sided interval, whose observations are the groups. An answer that is missing or cannot be
        scored for the candidate alone does not pass, because a candidate could otherwise leave out the tasks that it cannot solve; one of
        the champion leaves out the task.
        """
        samples = self.settings.samples
        requests = [self._request(task, draw) for task in self.tasks for draw in range(samples)]
        asked = [(task.conversation, task.reference) for task in self.tasks for _ in range(samples)]
        with ThreadPoolExecutor(2) as pool:
            old, new = pool.map(lambda client: client.chat(requests, progress), clients)
        labels = [label_answers(self.rewards, asked, answers) for answers in (old, new)]
        compared = SuiteComparison(self.name, self.tasks, self.settings, self.artifacts)
        return compared.report((old, new), (labels[0], labels[1]), self.settings.temperature, level)

    def _request(self, task: SuiteTask, draw: int) -> ChatRequest:
        sampled = self.settings.temperature > 0
        seed = int(digest([self.name, list(task.conversation), draw])[:8], 16) >> 1 if sampled else None
        return ChatRequest(
            messages=task.conversation, temperature=self.settings.temperature, max_tokens=self.settings.max_tokens, seed=seed
        )


@dataclass(frozen=True)
class SuiteComparison:
    """Compares the scored answers of two models to the tasks of one suite."""

    name: str
    tasks: tuple[SuiteTask, ...]
    settings: SuiteSettings
    artifacts: Artifacts

    def report(
        self,
        answers: tuple[Sequence[ChatAnswer], Sequence[ChatAnswer]],
        labels: tuple[Sequence[Label], Sequence[Label]],
        temperature: float,
        level: float,
        asked_by: str = "",
    ) -> SuiteReport:
        """Return the comparison of champion and candidate, whose `answers` and `labels` have one element per draw of each task."""
        samples, (old, new) = self.settings.samples, answers
        before, after = (by_prompt(one, samples) for one in labels)
        failed = [[any(one.reward is None for one in draws) for draws in side] for side in (before, after)]
        rows = [
            (task.cluster, self._solved(task_before), self._solved(task_after))
            for task, task_before, task_after, missing in zip(self.tasks, before, after, failed[0], strict=True)
            if not missing
        ]
        clusters = len({task.cluster for task in self.tasks})
        return SuiteReport(
            name=self.name,
            tasks=tasks_digest(self.tasks),
            samples=samples,
            k=self.settings.k,
            temperature=temperature,
            count=PromptCount(
                name=f"suite:{self.name}",
                asked=len(self.tasks),
                clusters=clusters,
                answered_by_both=sum(not one and not other for one, other in zip(*failed, strict=True)),
                champion_failed=sum(failed[0]),
                candidate_failed=sum(failed[1]),
            ),
            failures=failure_counts("champion", old, labels[0], samples) + failure_counts("candidate", new, labels[1], samples),
            comparison=_compared(f"suite:{self.name}", rows, level),
            answers=self.artifacts.put(b"\n".join(self._rows(old, new, labels))),
            asked_by=asked_by,
        )

    def _solved(self, draws: Sequence[Label]) -> float:
        passed = sum(one.reward is not None and one.reward >= self.settings.passes for one in draws)
        return pass_at_k(len(draws), passed, self.settings.k)

    def _rows(self, old: Sequence[ChatAnswer], new: Sequence[ChatAnswer], labels: Sequence[Sequence[Label]]) -> list[bytes]:
        """Return the stored rows, in the form of an evaluation's answers, so that erasure finds texts of people in them."""
        found = []
        for place, answers in enumerate(zip(old, new, strict=True)):
            task = self.tasks[place // self.settings.samples]
            sides = {
                side: {"answer": answer.text, "error": answer.error, "reward": label.reward}
                for side, answer, label in zip(("champion", "candidate"), answers, (labels[0][place], labels[1][place]), strict=True)
            }
            asked = {"id": task.id, "prompt": list(task.conversation), "reference": task.reference, "draw": place % self.settings.samples}
            found.append(canonical({**sides, **asked, "set": f"suite:{self.name}"}))
        return found


def _compared(name: str, rows: Sequence[tuple[str, float, float]], level: float) -> Comparison | None:
    """Compare the two models over the groups of tasks. None for less than two groups."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for cluster, before, after in rows:
        groups[cluster].append((before, after))
    means = [(fmean(one[0] for one in group), fmean(one[1] for one in group)) for group in groups.values()]
    differences = [after - before for before, after in means]
    if all(value in (0.0, 1.0) for pair in means for value in pair):
        gained, lost = (sum(one == change for one in differences) for change in (1.0, -1.0))
        interval = paired_share_interval(gained, lost, len(differences), level)
    else:
        interval = paired_interval(differences, level)
    if interval is None:
        return None
    return Comparison(
        name=name, n=len(means), champion=fmean(one[0] for one in means), candidate=fmean(one[1] for one in means), difference=interval
    )
