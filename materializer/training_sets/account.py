"""Accounts for the evidence of a cycle: what each correction, reference and rated or scored answer of a snapshot became.

Each row of the snapshot has one destination, so the counts add up to its rows. Rows that became nothing have a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ratchet.contracts.conversation import person_answer
from ratchet.contracts.data.datasets import ScorerVersion
from ratchet.contracts.data.records import Tier
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.labels.conflicts import without_contradictions
from ratchet.materializer.labels.label_confidence import believe
from ratchet.materializer.labels.teachers import TEACHER
from ratchet.materializer.training_sets.demonstrations import CORRECTION, RANK, REFERENCE
from ratchet.materializer.training_sets.development import Part
from ratchet.materializer.training_sets.pairs import Pairs, given_answers, is_known_wrong

Account = dict[str, dict[str, int]]
"""Kind of evidence -> destination -> number of rows."""

OF_TEACHER = "answer of a teacher"
KINDS = {
    Tier.VERIFIABLE.value: "answer scored by a verifiable reward",
    Tier.FEEDBACK.value: "rated answer",
    Tier.JUDGE.value: "judged answer",
    Tier.TEACHER.value: OF_TEACHER,
    Tier.SIGNAL.value: "answer with a signal",
}
"""Tier that decided the reward of a logged answer -> name of the evidence."""
BOTH, PAIR_CHOSEN, PAIR_REJECTED, SHOWN = (
    "demonstration and chosen side of a pair",
    "chosen side of a pair",
    "rejected side of a pair",
    "demonstration",
)
USED = (BOTH, SHOWN, PAIR_CHOSEN, PAIR_REJECTED, "development prompt")
"""Destinations of evidence that is used for training, or for measuring it."""
_FULL, _BUSY = "nothing: pairs_per_prompt is reached", "nothing: pairs_per_person is reached"
_DROPPED = {
    "per_prompt": _FULL,
    "per_person": _BUSY,
    "same_answer": "nothing: differs from a right answer in its form only",
    "margin_on_common_parts": "nothing: too little worse by the scorers that scored both answers of a pair",
    "noise": "nothing: ratings that do not tell which answer is better",
}
"""Reason for a candidate without a pair (`Pairs.dropped`) -> destination of its rejected answer."""
_CLOSE = "nothing: less than snapshot.margin worse than each right answer"


def account(
    samples: pl.DataFrame,
    evidence: pl.DataFrame,
    prompts: pl.DataFrame,
    parts: Mapping[Part, Sequence[str]],
    pairs: Pairs,
    shown: pl.DataFrame,
    settings: SnapshotSettings,
    scorers: Sequence[ScorerVersion],
    noise: float | None,
) -> Account:
    """Return the destination of each row of `samples` (records.SAMPLES of a snapshot) and of each reference in `prompts`.

    `evidence` are the samples after pooling, with the answers of the probe, of the prompts that are trained on. `parts` are the parts of
    the prompts, `pairs` and `shown` the pairs and demonstrations made from them. `noise` is the share of wrong ratings; None: unknown.
    """
    case = _Case(evidence, prompts, parts, pairs, shown, settings, scorers, noise)
    found: dict[str, Counter[str]] = {}
    for row in samples.select("prompt_id", "answer", "reward", "tier", "origin").iter_rows(named=True):
        of_origin = {CORRECTION: CORRECTION, TEACHER: OF_TEACHER}.get(row["origin"])
        kind = of_origin or KINDS.get(row["tier"] or "", "answer without a score")
        found.setdefault(kind, Counter())[case.destination(row)] += 1
    given = prompts.filter(pl.col("reference_kind").is_in(["reference", "logged"]))
    for row in given.iter_rows(named=True):
        found.setdefault(REFERENCE, Counter())[case.of_reference(row)] += 1
    return {kind: dict(counts.most_common()) for kind, counts in sorted(found.items())}


class _Case:
    """Lookup tables for the destinations of one training set."""

    def __init__(
        self,
        evidence: pl.DataFrame,
        prompts: pl.DataFrame,
        parts: Mapping[Part, Sequence[str]],
        pairs: Pairs,
        shown: pl.DataFrame,
        settings: SnapshotSettings,
        scorers: Sequence[ScorerVersion],
        noise: float | None,
    ) -> None:
        self._settings = settings
        self._part = {prompt: part for part, ids in parts.items() for prompt in ids}
        self._dropped = pairs.causes
        self._demonstrations = Counter(shown["prompt_id"])
        self._chosen = set(pairs.frame.select("prompt_id", "chosen").iter_rows())
        self._rejected = set(pairs.frame.select("prompt_id", "rejected").iter_rows())
        self._shown = set(shown.select("prompt_id", "answer").iter_rows())
        self._strongest: dict[str, int] = {}
        for prompt, source in shown.select("prompt_id", "source").iter_rows():
            self._strongest[prompt] = min(self._strongest.get(prompt, len(RANK)), RANK[source])
        clear, _ = without_contradictions(evidence, settings)
        keys = ["prompt_id", "answer"]
        self._clear = set(clear.select(keys).iter_rows())
        right = believe(evidence, scorers, noise)
        rows = evidence.select(*keys, "tier", "reward").iter_rows()
        self._known = {(*key, tier): (reward, p) for (*key, tier, reward), p in zip(rows, right, strict=True)}
        good = clear.filter(pl.col("reward") >= settings.chosen_min)
        self._good = set(good.select("prompt_id", "tier").iter_rows())
        self._given = set(given_answers(clear, prompts, settings))

    def destination(self, row: Mapping[str, Any]) -> str:
        """Return what a logged answer or a correction became, or why it became nothing."""
        key = (row["prompt_id"], row["answer"])
        elsewhere = self._elsewhere(row["prompt_id"])
        if elsewhere:
            return elsewhere
        if key in self._shown:
            return BOTH if key in self._chosen else SHOWN
        if key in self._chosen:
            return PAIR_CHOSEN
        if key in self._rejected:
            return PAIR_REJECTED
        return self._nothing(row, key)

    def of_reference(self, row: Mapping[str, Any]) -> str:
        """Return what a reference became. Every reference of a trained prompt also lets verifiable rewards score its answers."""
        elsewhere = self._elsewhere(row["prompt_id"])
        if elsewhere:
            return elsewhere
        key = (row["prompt_id"], person_answer(row["reference"], row["tools"]))
        if key in self._shown:
            return BOTH if key in self._chosen else SHOWN
        if key in self._chosen:
            return PAIR_CHOSEN
        allowed = self._settings.references_are_answers
        return "scores answers; pairs_per_prompt is reached" if allowed else "scores answers; references_are_answers is off"

    def _elsewhere(self, prompt: str) -> str | None:
        part = self._part.get(prompt, Part.TRAIN)
        return {Part.DEVELOPMENT: "development prompt", Part.NEITHER: "nothing: prompt joined both parts"}.get(part)

    def _nothing(self, row: Mapping[str, Any], key: tuple[str, str]) -> str:
        tier = row["tier"]
        reward, right = self._known.get((*key, tier), (row["reward"], 0.5))
        if reward is None:
            return "nothing: no score"
        if key not in self._clear:
            return "nothing: contradictory evidence on the answer"
        if reward < self._settings.rejected_max:
            compared = (key[0], tier) in self._good or (key[0] in self._given and is_known_wrong(tier, right))
            return _DROPPED.get(self._dropped.get(key, ""), _CLOSE) if compared else "nothing: no right answer to compare with"
        if reward < self._settings.chosen_min and tier != Tier.TEACHER:
            return "nothing: neither right nor wrong"
        if right < self._settings.demonstration_min and tier != Tier.TEACHER:
            few = "too few ratings to believe it" if tier == Tier.FEEDBACK.value else "reward too low for snapshot.demonstration_min"
            return f"nothing: {few}"
        rank = RANK[CORRECTION if row["origin"] == CORRECTION else str(tier)]
        if rank >= RANK[Tier.FEEDBACK.value] and self._strongest.get(key[0], len(RANK)) < rank:
            return "nothing: stronger evidence on the prompt"
        return _FULL if self._demonstrations[key[0]] >= self._settings.pairs_per_prompt else _BUSY
