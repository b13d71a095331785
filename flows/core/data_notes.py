"""Sentences about the data of a cycle: what was masked, whether most prompts are near-duplicates, and what the training leaves out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ratchet.contracts.data.beliefs import SignalBelief
from ratchet.contracts.data.datasets import LEAST_SHARED_ROOT, SHARED_ROOT, HoldoutEdition, MaskedData, NearRule, PromptGroup, Snapshot
from ratchet.contracts.jobs.training import Choice

CROWDED_SHARE = 0.2
"""Share of the prompts above which a cluster of near-duplicates is reported."""
_LEAST = 50
"""Number of prompts in a cluster below which it is not reported."""
NEAR_SHARE = 0.1
"""Share of the traces above which near-duplicates of golden prompts are reported."""
_LEAST_NEAR = 20
"""Number of traces on near-duplicates of golden prompts below which they are not reported."""
HELD_SHARE = 0.1
"""Share of the traces above which a holdout of little use is reported."""
_LEAST_HELD = 50
"""Number of held-out traces below which they are not reported."""
_GOLDEN_FACTOR = 10
"""A holdout is of little use if the golden set has this many times its prompts that the gate can ask."""
MASKED_SHARE = 0.1
"""Share of the answers, or of the right answers, above which masked values in them are reported."""
_LEAST_MASKED = 5
"""Number of masked answers below which they are not reported."""

_NAMED = 5
"""Maximum number of slices that a warning names."""

_CONSEQUENCE = {
    "train": "all of them are for training, so that the gate does not measure this kind of request",
    "held": "all of them are in the holdout, so that no version is trained on this kind of request",
    "neither": "they are near to prompts of both sides, so that none of them is used",
}


def crowding(cluster: PromptGroup | None) -> str | None:
    """Return a warning if the largest cluster contains too many of the prompts, with its consequence and what to do; otherwise None."""
    if cluster is None or cluster.prompts < _LEAST or cluster.prompts <= CROWDED_SHARE * cluster.of:
        return None
    return (
        f"{_share(cluster)} are near-duplicates of each other, for "
        f"example because they come from one template; {_CONSEQUENCE[cluster.side]}. To separate the prompts that come later, send the "
        'template as the system message and its values as the user message, or set holdout.similarity to "auto" or a higher value'
    )


def shared_root(root: PromptGroup | None) -> str | None:
    """Return a warning, with the remedy, if too many prompts begin with one user message; otherwise None."""
    if root is None or root.prompts < LEAST_SHARED_ROOT or root.prompts <= SHARED_ROOT * root.of:
        return None
    return (
        f"{_share(root)} begin with the same user message and count as one "
        f"conversation; {_CONSEQUENCE[root.side]}. If it is a greeting, name it in holdout.skip_greetings; if it is an example or "
        "the environment that an agent describes, in holdout.skip_messages; if holdout.question_after or holdout.question_until leave a "
        "text that is no question, correct them; all before the first cycle, or in a new line"
    )


def _share(group: PromptGroup) -> str:
    return f"{group.prompts:,} of {group.of:,} prompts ({group.prompts / group.of:.0%})"


def near_note(rule: NearRule | None) -> str | None:
    """Return which prompts count as near-duplicates and what was measured; None if nothing was."""
    if rule is None:
        return None
    left_out = ["The prompts share a template, which is left out when they are compared"] if rule.template else []
    notes = [*_measured_notes(rule), *left_out]
    return ". ".join(notes) if notes else None


def _measured_notes(rule: NearRule) -> list[str]:
    """Return what `holdout.similarity = "auto"` has measured, as a list of one note; nothing if it found nothing."""
    if not rule.measured:
        return []
    begin = rule.measured[0].least
    told = [
        f"{rung.different:,} of {rung.pairs:,} with a similarity of {rung.least:g} to {rung.below:g}"
        for rung in rule.measured
        if rung.pairs
    ]
    if rule.similarity == begin and not told:
        return []
    risen = ", as this or an earlier cycle has measured" if rule.similarity > begin else ""
    found = f"; of pairs with known right answers, different questions are {', '.join(told)}" if told else ""
    return [f"Prompts with a similarity from {rule.similarity:g} on count as near-duplicates{risen}{found}"]


def masking_note(masked: MaskedData) -> str:
    """Return what was masked in the data, by which rules, and what the rules do not mask."""
    if not masked.on and not masked.found:
        return "Personal data in the texts is not masked"
    counts = {kind: masked.found.get(kind, 0) for kind in [*masked.on, *sorted(masked.found.keys() - set(masked.on))]}
    found = ", ".join(f"{kind} {n:,}" for kind, n in counts.items())
    off = ", ".join(masked.off) or "nothing"
    return (
        f"Placeholders in the texts, which replaced personal data at ingest: {found}. The rules (version {masked.rules}) do not mask: "
        f"{off}; records that were ingested under other rules were masked by those"
    )


def silent_scorers(found: Mapping[str, str]) -> list[str]:
    """Return a sentence for each scorer that gave no score to any logged answer (`Snapshot.silent_scorers`), with the remedy."""
    return [f"The scorer {name} has no effect: {why}" for name, why in found.items()]


def doubtful_scorers(found: Mapping[str, str]) -> list[str]:
    """Return a sentence for each scorer whose scores are probably wrong (`Snapshot.doubtful_scorers`), with the remedy."""
    return [f"The scorer {name} may find right answers wrong: {why}" for name, why in found.items()]


def masked_answers(counts: Mapping[str, int]) -> str | None:
    """Return a warning, with the remedy, if many answers or right answers of a snapshot contain masked values; otherwise None.

    `counts` are those of the snapshot. If a model has to write personal data, such as addresses, most of its answers contain masked values.
    """
    found = [
        (counts.get("out:masked_answer", 0), counts.get("considered", 0), "answers"),
        (counts.get("reference:masked_answer", 0), sum(n for name, n in counts.items() if name.startswith("reference:")), "right answers"),
    ]
    many = [f"{masked:,} of {of:,} {what}" for masked, of, what in found if masked >= _LEAST_MASKED and masked > MASKED_SHARE * of]
    if not many:
        return None
    return (
        f"{' and '.join(many)} contain a masked value that the prompt does not have, so that nothing can be learned from them; if such "
        "values are no personal data here, name them in privacy.allow, or take their kind out of privacy.mask. Values that were masked "
        "before stay masked"
    )


def untaught_slices(asked: Mapping[str, int], taught: Collection[str], least: int) -> str | None:
    """Return a warning, with the remedy, if the gate judges slices of which a training shows the model no row; otherwise None.

    Args:
        asked: Slice -> prompts of the holdout and the golden set.
        taught: Slices of the rows that the training reads; rows without a slice have the empty name, and can be of any.
        least: Prompts from which the gate judges a slice (`gate.min_slice`).
    """
    found = {name: n for name, n in asked.items() if n >= least and name not in taught}
    if not found or "" in taught:
        return None
    largest = sorted(found, key=lambda name: (-found[name], name))
    named = ", ".join(f"{name} ({found[name]:,} prompts)" for name in largest[:_NAMED])
    named += f" and {len(largest) - _NAMED:,} others" if len(largest) > _NAMED else ""
    return (
        f"the gate judges slices of which the training has no row: {named}; together {sum(found.values()):,} of its "
        f"{sum(asked.values()):,} prompts. The model can forget them, and the gate then rejects it. Collect ratings or right answers for "
        "these slices, or mend the rule that leaves their answers out (`ratchet explain`, section Data)"
    )


def near_golden(counts: Mapping[str, int]) -> str | None:
    """Return a warning, with the remedy, if many traces of a snapshot are left out because they resemble golden prompts; otherwise None.

    `counts` are those of the snapshot.
    """
    found, of = counts.get("out:near_golden", 0), counts.get("considered", 0)
    if found < _LEAST_NEAR or found <= NEAR_SHARE * of:
        return None
    return (
        f"{found:,} of {of:,} traces ({found / of:.0%}) are not trained on, because their prompts are near-duplicates of golden ones; if "
        'such prompts are different questions, for example with other numbers, set holdout.similarity to "auto" or a higher value'
    )


def spare_holdout(edition: HoldoutEdition, counts: Mapping[str, int]) -> str | None:
    """Return a warning, with the remedy, if the holdout costs many traces and adds little to the golden set; otherwise None.

    `counts` are those of the snapshot. The gate asks held-out prompts with a right answer only.
    """
    found, of = counts.get("holdout", 0), counts.get("considered", 0)
    if found < _LEAST_HELD or found <= HELD_SHARE * of or edition.golden_size < _GOLDEN_FACTOR * max(1, edition.size):
        return None
    return (
        f"{found:,} of {of:,} traces ({found / of:.0%}) are held out and not trained on, but the gate asks only {edition.size:,} of their "
        f"prompts beside {edition.golden_size:,} golden ones; where training prompts are few, a new line with a lower holdout.fraction "
        "learns from most of them"
    )


def data_warnings(snapshot: Snapshot) -> list[str]:
    """Return a sentence for each trouble with the data of a snapshot that a person can mend, with the remedy."""
    return [*prompt_warnings(snapshot), *silent_scorers(snapshot.silent_scorers), *doubtful_scorers(snapshot.doubtful_scorers)]


def prompt_warnings(snapshot: Snapshot) -> list[str]:
    """Return those of `data_warnings` that are about prompts and answers."""
    found = (
        crowding(snapshot.largest_cluster),
        shared_root(snapshot.largest_root),
        near_golden(snapshot.counts),
        masked_answers(snapshot.counts),
    )
    return [one for one in found if one]


RULES = {
    "origin": "of other calls than traffic: of a probe, an evaluation or a test",
    "consent": "without consent",
    "region": "from another region than governance.regions",
    "confidentiality": "without an allowed label of confidentiality",
    "images": "with images",
    "too_long": "with a prompt longer than governance.max_chars",
    "partial_answer": "whose answer was broken off",
    "failed_request": "whose request failed",
    "truncated": "whose answer was cut at the limit of tokens",
    "empty_response": "without an answer",
    "long_answer": "with an answer longer than governance.max_chars",
    "masked_answer": "whose answer has a masked value that the prompt does not have",
    "rare_prompt": "on prompts of fewer users than governance.min_users",
    "duplicate": "equal to another trace, which stands for both",
    "holdout": "in the holdout",
    "golden": "on golden prompts",
    "near_golden": "on near-duplicates of golden prompts",
    "near_duplicate_conflict": "on near-duplicates of prompts of both sides of the holdout",
}
"""Why traces, and what belongs to them, are not trained on: the name in the counts of a snapshot -> the words for it."""
_OF_REFERENCES = RULES | {
    "masked_answer": "with a masked value that the prompt does not have",
    "reviewer_knows_better": "to a question that a reviewer has answered",
    "newer_one_counts": "to a question with a newer one",
    "unknown_answer": "of traces that are not in the lake any more",
    "other_sender": "by another sender than that of the trace",
}
_OF_FEEDBACK = {name: f"on traces {words}" for name, words in RULES.items()} | {
    "masked_answer": "with a masked value that the prompt does not have",
    "not_the_user": "by somebody else than the user who asked",
    "other_sender": "by a second sender for the same rater",
    "newcomer": "of new users, which wait for snapshot.newcomer_days",
    "no_consent": "of users without consent",
    "replaced": "replaced by a later one of the same person",
    "contradicted": "that contradict another correction",
    "answer_left_out": "on answers that are left out themselves",
    "signal": "that are signals, which are measured",
    "teacher": "that are answers of a teacher, which are measured",
    "unknown_answer": "on answers that were not ingested",
}
_COUNTS = {
    "considered": "traces",
    "used": "traces that are used",
    "holdout": "traces in the holdout",
    "prompt_clusters": "clusters of near-duplicates among the training prompts",
    "questions": "questions whose answers are left out, but whose right answers are used",
    "late_references": "logged right answers that came with a later record of their trace",
    "scored": "answers with a score",
    "corrections": "corrections that are used as answers",
    "contested_corrections": "corrections that contradict each other",
}


_KINDS = {"out": ("traces", RULES), "feedback": ("feedback records", _OF_FEEDBACK), "reference": ("logged right answers", _OF_REFERENCES)}
"""Part of a count's name before the colon -> what it counts, and the words for the rest of its name."""


def count_words(name: str) -> str:
    """Return what a count of a snapshot counts, in words; the name itself if it has none."""
    kind, _, reason = name.partition(":")
    if kind not in _KINDS:
        return _COUNTS.get(name, name)
    what, words = _KINDS[kind]
    return f"{what} {'that are used' if reason == 'used' else words.get(reason, f'left out by the rule {reason}')}"


def count_rows(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the counts of a snapshot as (what, number): traces first, then feedback, right answers, and the rest."""
    order = ("considered", "used", "holdout", "out", "questions", "feedback", "reference")
    places = {name: order.index(kind) if (kind := name.partition(":")[0]) in order else len(order) for name in counts}
    return [(count_words(name), f"{counts[name]:,}") for name in sorted(counts, key=lambda name: places[name]) if counts[name]]


_PLAIN_FEEDBACK = "ratings, corrections and reviewers' right answers"


def references_note(counts: Mapping[str, int]) -> str | None:
    """Return what became of the right answers that the application logged, from the counts of a snapshot; None without any."""
    return _note(counts, "reference", "right answers that the application logged", _OF_REFERENCES)


def feedback_note(counts: Mapping[str, int]) -> str | None:
    """Return what became of ratings, corrections, reviewers' right answers and signals, from the counts of a snapshot; None without any."""
    what = "ratings, corrections, reviewers' right answers and signals" if "feedback:signal" in counts else _PLAIN_FEEDBACK
    return _note(counts, "feedback", what, _OF_FEEDBACK)


def _note(counts: Mapping[str, int], kind: str, what: str, words: Mapping[str, str]) -> str | None:
    found = {name.removeprefix(f"{kind}:"): n for name, n in counts.items() if name.startswith(f"{kind}:")}
    if not found:
        return None
    others = ", ".join(f"{n:,} {words.get(name, f'left out by the rule {name}')}" for name, n in found.items() if name != "used")
    return f"Of {sum(found.values()):,} {what}, {found.get('used', 0):,} are used" + (f"; the others: {others}." if others else ".")


SIGNAL_COLUMNS = ("signal", "answers", "also rated", "users", "agreeing", "agreement (99.5 %)", "without it", "labels", "used")
SIGNALS_NOTE = (
    "What users did with answers, without a rating, and how often the ratings of the same answers agree. Without it: the share of the "
    "other rated answers whose ratings say what the signal would say. Names with session. are computed from the calls of a session."
)


def signal_rows(found: Sequence[SignalBelief]) -> list[tuple[str, ...]]:
    """Return the rows of the table of signals, in the order of SIGNAL_COLUMNS."""
    return [
        (
            *(one.signal.value, f"{one.answers:,}", f"{one.rated:,}", f"{one.people:,}", f"{one.agreeing:,}"),
            "–" if one.agreement is None else f"{one.agreement:.2f} ({one.low:.2f} to {one.high:.2f})",
            "–" if one.others is None else f"{one.others:.2f}",
            f"{one.labels:,}",
            f"{'yes' if one.used else 'no'}: {one.reason}",
        )
        for one in found
    ]


def left_out(choice: Choice) -> list[str]:
    """Return which rows the chosen training leaves out, by reason; nothing if it leaves out none, or if they were not counted."""
    return [f"The training job leaves rows out one by one: {one.sentence}." for one in choice.left_out if one.counts]


def warned(choice: Choice) -> list[str]:
    """Return what can spoil the result of the chosen training, a sentence for each warning."""
    return [f"Warning: {one}." for one in choice.warnings]
