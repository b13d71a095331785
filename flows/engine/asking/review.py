"""Questions to reviewers and their answers: chosen from the data of now, recorded in the ledger, and ingested as references."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ratchet.contracts.cycle import Append
from ratchet.contracts.data.datasets import IngestReport, RawBatch, Snapshot
from ratchet.contracts.errors import Conflict
from ratchet.contracts.ids import Digest, canonical, cycle_stream, digest, reviews_stream
from ratchet.contracts.rows import ReviewTaken, content_of, row_of
from ratchet.flows.core.asking.parquet_rows import rows_of
from ratchet.flows.core.asking.review import ReviewAnswer, ReviewQuestion, choose_questions
from ratchet.flows.engine.asking.dataset_export import ExportedSet
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.ingest import ingest

FORMAT = "review"
"""Name of the dialect that decodes the answers."""


@dataclass(frozen=True)
class Chosen:
    """Questions for reviewers, and the requests among which they were chosen."""

    questions: tuple[ReviewQuestion, ...]
    requests: int


def choose(context: LineContext, snapshot: Snapshot, count: int) -> Chosen:
    """Choose up to `count` questions from the training side of the line's data. No held-out and no golden prompt is among them."""
    columns = ("prompt_id", "prompt", "answer", "reward", "tier", "votes", "repeats", "trace", "origin", "slice", "tools")
    rows = rows_of(context.artifacts.get(snapshot.samples), columns)
    prompts = rows_of(context.artifacts.get(snapshot.prompts), ("prompt_id", "reference"))
    answered = frozenset(row["prompt_id"] for row in prompts if row["reference"] is not None)
    plain = [{**row, "prompt": json.loads(row["prompt"])} for row in rows if not json.loads(row["tools"] or "[]")]
    questions, requests = choose_questions(plain, answered, _fallen(context), count, context.datasets.sides(snapshot))
    return Chosen(tuple(questions), requests)


def _fallen(context: LineContext) -> frozenset[str]:
    """Return the slices in which the newest evaluation of the line estimated a loss."""
    line = context.line_view()
    for number in range(line.cycles, 0, -1):
        report = context.cycle_view(cycle_stream(context.line, number)).report
        if report is not None:
            slices = {one.name.removeprefix("slice:"): one for one in report.comparisons if one.name.startswith("slice:")}
            return frozenset(name for name, one in slices.items() if one.difference.estimate < 0)
    return frozenset()


class AnswerSource:
    """Answers to questions as batches, one for each source of the traces."""

    name = FORMAT

    def __init__(self, answers: Sequence[tuple[str, dict[str, str]]], origin: str) -> None:
        """An answer is (source/id of its trace, the other keys of its record). `origin` names where they come from."""
        self._answers = answers
        self._origin = origin

    def batches(self) -> Iterator[RawBatch]:
        """Yield a batch for each source, in the order of the names."""
        by_source: dict[str, list[bytes]] = defaultdict(list)
        for place, record in self._answers:
            source, _, trace = place.partition("/")
            by_source[source].append(canonical({"trace": trace, **record}))
        for source, lines in sorted(by_source.items()):
            content = b"".join(line + b"\n" for line in lines)
            yield RawBatch(source, FORMAT, digest(content), self._origin, lambda content=content: io.BytesIO(content))  # type: ignore[misc]

    def done(self, batch: RawBatch) -> None:
        """Keep what the answers come from as it is."""


def known_questions(context: LineContext, found: ExportedSet, answers: Sequence[ReviewAnswer]) -> tuple[list[ReviewAnswer], list[str]]:
    """Return the answers to questions of the training side, each about a trace that asked its question, and the ids of all others.

    A file may name any question. An answer to a held-out or golden prompt would decide what the gate takes for right.
    """
    traces: dict[str, list[str]] = defaultdict(list)
    for row in rows_of(context.artifacts.get(found.snapshot.samples), ("prompt_id", "trace", "origin")):
        if row["origin"] == "traffic" and row["trace"] is not None:
            traces[row["prompt_id"]].append(row["trace"])
    kept = [
        one if one.trace in traces[one.prompt_id] else replace(one, trace=max(traces[one.prompt_id]))
        for one in answers
        if one.prompt_id in traces
    ]
    return kept, sorted({one.prompt_id for one in answers if one.prompt_id not in traces})


def take_in(context: LineContext, answers: Sequence[ReviewAnswer], gains: dict[str, float], actor: str, wait: float) -> IngestReport:
    """Ingest answers of `known_questions` exactly once, and record whose import it was. The same answers again change nothing.

    `gains` has the expected gain of each question, by prompt_id. Raises Retryable if another process ingests for `wait` seconds.
    """
    records = [(one.trace, {"answer": one.answer, "reviewer": one.reviewer, "time": one.time}) for one in answers]
    report = ingest(context, [AnswerSource(records, "answers of reviewers")], wait)
    asked = sorted({one.prompt_id for one in answers})
    taken = ReviewTaken(
        actor=actor,
        answers=len(answers),
        reviewers=len({one.reviewer for one in answers}),
        questions=context.artifacts.put(canonical(asked)),
        expected=round(sum(gains.get(key, 0.0) for key in asked), 6),
    )
    row, stream = row_of("taken", taken, digest([asdict(one) for one in answers])), reviews_stream(context.line)
    while True:
        known = context.ledger.read(stream)
        if any(one.key == row.key for one in known):
            return report
        try:
            context.ledger.append([Append(stream=stream, after=len(known), rows=(row,))], None, context.clock.now())
        except Conflict:
            continue
        return report


def imports(context: LineContext) -> list[tuple[str, ReviewTaken]]:
    """Return time (UTC) and content of each import, the oldest first."""
    return [(f"{row.at:%Y-%m-%d %H:%M}", content_of(ReviewTaken, row)) for row in context.ledger.read(reviews_stream(context.line))]


def results(context: LineContext, found: ExportedSet, questions: Sequence[Digest]) -> list[dict[str, Any]]:
    """Return for each version the mean reward of its answers to the reviewed questions and to all others, the oldest version first.

    `questions` are the artifacts with the ids of the reviewed questions: those of reviewers, or of a teacher.
    """
    reviewed = {key for one in questions for key in json.loads(context.artifacts.get(one))}
    rows = rows_of(context.artifacts.get(found.snapshot.samples), ("prompt_id", "reward", "repeats", "origin", "model_version"))
    sums: dict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [0.0, 0.0], False: [0.0, 0.0]})
    for row in rows:
        if row["origin"] == "traffic" and row["reward"] is not None:
            place = sums[row["model_version"] or "unknown"][row["prompt_id"] in reviewed]
            place[0] += row["reward"] * row["repeats"]
            place[1] += row["repeats"]
    line = context.line_view()
    order = {version.tag: number for number, version in enumerate(line.served)}
    return [
        {
            "version": tag,
            **{
                name: {"mean": parts[which][0] / parts[which][1] if parts[which][1] else None, "requests": int(parts[which][1])}
                for name, which in (("reviewed", True), ("others", False))
            },
        }
        for tag, parts in sorted(sums.items(), key=lambda item: (order.get(item[0], -1), item[0]))
    ]
