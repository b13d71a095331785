"""The dataset card of a cycle: what the training data consists of, in figures and with a few masked examples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ratchet.contracts.data.datasets import Snapshot, TrainingSet
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop, PrivacySettings
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.steps import FreezeResult, PlanResult
from ratchet.flows.core.asking.parquet_rows import rows_of
from ratchet.flows.core.data_notes import count_rows, data_warnings, masking_note, near_note
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.report.languages import language_of
from ratchet.flows.report.story import Section, Table, evidence_section, signals_section
from ratchet.materializer.privacy.masking import Masker

_BAR = 20
"""Characters of the longest bar of a histogram."""
_MOST = 20
"""Maximum number of rows of a table of names."""
_EXAMPLES, _SHOWN = 5, 200
"""Number of examples, and characters that are shown of a text."""
_LENGTHS = (0, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Lower bounds of the classes of lengths, in characters."""


def dataset_card(cycle: CycleView, artifacts: Artifacts) -> list[Section]:
    """Return the sections of the card; none before the data are frozen. Raises Permanent if an artifact is missing or damaged."""
    frozen, planned = cycle.get(FreezeResult), cycle.get(PlanResult)
    if frozen is None:
        return []
    return card_of(cycle.loop, frozen.snapshot, planned.dataset if planned else None, artifacts)


def card_of(loop: Loop, snapshot: Snapshot, dataset: TrainingSet | None, artifacts: Artifacts) -> list[Section]:
    """Return the sections of a card about a snapshot and, if it is known, its training set."""
    samples = rows_of(artifacts.get(snapshot.samples), ["prompt_id", "prompt", "answer", "reward", "tier", "origin", "user", "slice"])
    signals = signals_section(snapshot)
    sections = [_source(snapshot, loop), _answers(samples), *([signals] if signals else [])]
    sections += [*_texts(samples), _people(samples), *_examples(samples, loop.privacy)]
    return sections if dataset is None else [*sections, *_training(dataset, artifacts)]


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """Return the card as a Markdown page."""
    page = f"# {title}\n"
    for section in sections:
        page += f"\n## {section.title}\n" + "".join(f"\n{sentence}\n" for sentence in section.text)
        if section.table is not None and section.table.rows:
            lines = [section.table.columns, ("---",) * len(section.table.columns), *section.table.rows]
            page += "\n" + "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)
    return page


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _source(snapshot: Snapshot, loop: Loop) -> Section:
    rules = loop.governance
    text = (
        f"Snapshot {snapshot.content[:12]} of line {loop.line.name}, with all records up to {snapshot.as_of:%Y-%m-%d %H:%M} UTC.",
        f"Consent is {rules.consent}; regions: {', '.join(rules.regions) or 'all'}; confidentiality labels: "
        f"{', '.join(rules.confidentiality) or 'all'}.",
        f"{masking_note(snapshot.masked)}.",
        "Rewards: " + ", ".join(f"{one.name} ({one.distribution} {one.version}, {one.tier})" for one in snapshot.scorers) + ".",
        *(f"{note}." for note in (near_note(snapshot.near),) if note),
        *(f"Warning: {warning}." for warning in data_warnings(snapshot)),
        *(f"Judge {one.name}: {'believed' if one.believed else 'not believed'}; {one.reason}." for one in snapshot.judges),
    )
    return Section("Source", text, Table(("what", "records"), tuple(count_rows(snapshot.counts))))


def _examples(samples: Sequence[Mapping[str, Any]], settings: PrivacySettings) -> list[Section]:
    """Return a few answers in the order of their prompts' digests; none if nothing is masked, or if it cannot be masked here.

    The texts are masked here, too, because records keep the rules of their ingest.
    """
    masker, rows = Masker(settings), list[tuple[str, ...]]()
    try:
        masker.ready()
    except ConfigError:  # this machine lacks a model of names
        return []
    if not masker.kinds:
        return []
    for sample in sorted(samples, key=lambda row: (row["prompt_id"], row["answer"]))[:_EXAMPLES]:
        texts = {"text": _spoken(json.loads(sample["prompt"])), "answer": sample["answer"]}
        masker.mask(texts)
        reward = "–" if sample["reward"] is None else f"{sample['reward']:.2f}"
        rows.append((_short(texts["text"]), _short(texts["answer"]), reward))
    return [
        Section(
            "Examples", ("The first answers by the digest of their prompts, masked.",), Table(("prompt", "answer", "reward"), tuple(rows))
        )
    ]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _answers(samples: Sequence[Mapping[str, Any]]) -> Section:
    classes = Counter("not scored" if row["reward"] is None else _tenth(row["reward"]) for row in samples)
    tiers = Counter(row["tier"] or "none" for row in samples)
    text = (
        f"{len(samples):,} answers. Deciding tier: " + ", ".join(f"{name} {n:,}" for name, n in sorted(tiers.items())) + ".",
        "Origin: " + ", ".join(f"{name} {n:,}" for name, n in sorted(Counter(row["origin"] for row in samples).items())) + ".",
    )
    return Section("Rewards", text, _histogram("reward", sorted(classes.items())))


def _tenth(value: float) -> str:
    low = min(int(value * 10), 9) / 10
    return f"{low:.1f} to {low + 0.1:.1f}"


def _texts(samples: Sequence[Mapping[str, Any]]) -> list[Section]:
    prompts = [_spoken(json.loads(row["prompt"])) for row in samples]
    languages = Counter(language_of(text) for text in prompts)
    slices = Counter(row["slice"] or "none" for row in samples)
    shown = [(name, n) for name, n in sorted(slices.items(), key=lambda item: (-item[1], item[0]))]
    return [
        Section("Length of the prompts, in characters", (), _lengths(len(text) for text in prompts)),
        Section("Length of the answers, in characters", (), _lengths(len(row["answer"]) for row in samples)),
        Section(
            "Languages",
            ("Estimated from the script and frequent words of the last message of each prompt.",),
            _histogram("language", sorted(languages.items(), key=lambda item: (-item[1], item[0]))),
        ),
        Section("Slices", (f"{len(slices):,} slices.",), _histogram("slice", shown[:_MOST])),
    ]


def _spoken(messages: Sequence[Mapping[str, Any]]) -> str:
    content = messages[-1].get("content") if messages else ""
    return content if isinstance(content, str) else ""


def _people(samples: Sequence[Mapping[str, Any]]) -> Section:
    persons = Counter(row["user"] for row in samples if row["user"] is not None)
    nameless = sum(row["user"] is None for row in samples)
    if not persons:
        return Section("People", (f"No answer names a user ({nameless:,} answers).",))
    most = persons.most_common(1)[0][1]
    text = (
        f"{len(persons):,} users; the most active one has {most:,} answers ({most / len(samples):.1%}). {nameless:,} answers name no user."
    )
    return Section("People", (text,))


def _training(dataset: TrainingSet, artifacts: Artifacts) -> list[Section]:
    facts = dataset.facts
    pairs = rows_of(artifacts.get(dataset.pairs), ["tier", "weight"])
    shown = rows_of(artifacts.get(dataset.demonstrations), ["source", "weight"])
    dropped = ", ".join(f"{reason} {n:,}" for reason, n in facts.pairs_dropped.items()) or "none"
    noise = "not measured" if facts.label_noise is None else f"{facts.label_noise:.3f}"
    sources = ", ".join(f"{name} {n:,}" for name, n in sorted(Counter(row["source"] for row in shown).items())) or "none"
    tiers = ", ".join(f"{name} {n:,}" for name, n in sorted(facts.pairs_by_tier.items())) or "none"
    return [
        Section(
            "Training set",
            (
                f"Training set {dataset.content[:12]}: {facts.pairs:,} pairs (by tier: {tiers}), {len(shown):,} demonstrations "
                f"(by source: {sources}), {facts.prompts:,} prompts, {facts.prompts_with_reference:,} with a reference.",
                *(
                    (
                        f"The pairs have {facts.pair_prompts:,} prompts in {facts.pair_clusters:,} clusters of near-duplicates; "
                        "all pairs of a cluster together weigh as much as those of one prompt.",
                    )
                    if facts.pair_clusters is not None
                    else ()
                ),
                *(
                    (
                        f"{facts.repeats:,} demonstrations weigh less, because near-duplicate prompts have the same answer: those of a "
                        "cluster together weigh as much as those of one prompt.",
                    )
                    if facts.repeats
                    else ()
                ),
                f"Development prompts, on which the line never trains: {dataset.development_prompts:,}.",
                f"Candidates for pairs that were left out: {dropped}. Share of wrong ratings: {noise}.",
            ),
        ),
        *([evidence] if (evidence := evidence_section(dataset)) else []),
        Section("Weight of the pairs", (), _weights(pairs)),
        Section("Weight of the demonstrations", (), _weights(shown)),
    ]


def _weights(rows: Sequence[Mapping[str, Any]]) -> Table:
    return _histogram("weight", sorted(Counter(_tenth(row["weight"]) for row in rows).items()))


def _lengths(values: Iterable[int]) -> Table:
    classes = Counter(max(bound for bound in _LENGTHS if bound <= value) for value in values)
    ends = {low: f"{low:,} to {high - 1:,}" for low, high in pairwise(_LENGTHS)} | {_LENGTHS[-1]: f"{_LENGTHS[-1]:,} or more"}
    return _histogram("length", [(ends[low], classes[low]) for low in _LENGTHS if classes[low]])


def _histogram(name: str, counts: Sequence[tuple[str, int]]) -> Table:
    most = max((n for _, n in counts), default=1)
    return Table((name, "number", ""), tuple((label, f"{n:,}", "█" * max(1, round(_BAR * n / most))) for label, n in counts))
