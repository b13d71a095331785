"""Implements the `Datasets` port on the lake: runs the stages in order and names their results.

Each result is stored as an artifact, and its name is bound once. A repeat after a crash returns the result of the first call. Tables
are stored as Parquet files whose bytes depend only on their rows, so equal content has equal digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import orjson
import polars as pl

from ratchet.contracts.data.datasets import (
    Cursor,
    HoldoutEdition,
    IngestReport,
    ProbeReport,
    RawBatch,
    Snapshot,
    TrainingSet,
    TrainingSides,
)
from ratchet.contracts.data.records import (
    PROMPTS,
    SAMPLES,
    Column,
    FeedbackKind,
)
from ratchet.contracts.data.teaching import Sendable
from ratchet.contracts.errors import ConfigError, Inconclusive, Permanent, Retryable
from ratchet.contracts.ids import NORMALISER, Digest, digest, root_id, root_text
from ratchet.contracts.loop import Loop
from ratchet.contracts.mirror import MirrorAsk, MirrorPrompts
from ratchet.contracts.model import Frozen
from ratchet.contracts.ports import Artifacts, Clock, Compute, Dialect, ModelClient, Progress
from ratchet.contracts.ports.data import UNTRAINED, ProbedChampion
from ratchet.contracts.schema import parse, stamped
from ratchet.materializer.consent import refusing_users, withdrawn_texts
from ratchet.materializer.dialects.decode import BUILT_IN
from ratchet.materializer.ingest import IngestKeys, LineIngest
from ratchet.materializer.labels.scores import ANONYMOUS, label, prompts_of, references
from ratchet.materializer.labels.signals.labels import SignalLabels
from ratchet.materializer.labels.silent_scorers import doubtful_scorers, silent_scorers, wrong_by_form
from ratchet.materializer.labels.teachers import TeacherLabels
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.materializer.lake.places.size import lake_cursor
from ratchet.materializer.lake.schemas import parquet, read_parquet, write_parquet
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.mirror import MirrorReader, forget_key
from ratchet.materializer.partitioned.partitions import Partitions
from ratchet.materializer.partitioned.prompts import Identities, PromptRoots
from ratchet.materializer.partitioned.trained import Totals, Trained
from ratchet.materializer.privacy.masked_values import placeholder_pattern
from ratchet.materializer.privacy.masking import Masker
from ratchet.materializer.privacy.summary import Placeholders
from ratchet.materializer.quarantine.replay import LakeQuarantine
from ratchet.materializer.settled import Settled, SettledReader
from ratchet.materializer.teacher.sendable import Statements, sendable
from ratchet.materializer.texts import digest_open, filled_parts, key_of, unnamed_file
from ratchet.materializer.training_sets.assembly import Assembly
from ratchet.materializer.training_sets.became import Became, side_of
from ratchet.materializer.training_sets.development import Part
from ratchet.materializer.training_sets.holdout import choose_edition, independent, read_golden
from ratchet.materializer.training_sets.probe import ask, best_of, choose_prompts, coverage, group_rewards, mean_reward, scorable, usual
from ratchet.materializer.training_sets.prompt_sides import Placed
from ratchet.materializer.training_sets.questions import Question, questions_of
from ratchet.materializer.training_sets.split import Split, edition_name
from ratchet.materializer.usable import Usable, usable
from ratchet.materializer.workers.labelling import AT_ONCE, Labeller
from ratchet.rewards.scorer_set import ScorerSet
from ratchet.runtime.compute.inline import InlineCompute

Result = TypeVar("Result", bound=Frozen)

_SAMPLE_ORDER = ("prompt_id", "origin", "trace", "answer", "parts")


class LakeDatasets:
    """Builds the training sets of one line from its lake."""

    def __init__(
        self,
        place: LakePlace | Path,
        loop: Loop,
        loop_folder: Path,
        rewards: ScorerSet,
        artifacts: Artifacts,
        clock: Clock,
        keys: IngestKeys,
        dialects: Mapping[str, Dialect] = BUILT_IN,
        compute: Compute | None = None,
    ) -> None:
        """`compute` does the work that only computes. None: this process."""
        self.loop = loop
        self.loop_folder = loop_folder
        self.rewards = rewards
        self.artifacts = artifacts
        self.clock = clock
        self.keys = keys
        self.lake = Lake(place)
        self._compute = compute or InlineCompute()
        self._masker = Masker(loop.privacy)
        self._seen = DedupIndex(self.lake)
        self.dialects = dialects
        self._split = Split(loop, artifacts, self.lake, rewards)
        self._settled = SettledReader(self.lake, placeholder_pattern(loop.privacy))
        self._identities: Identities | None = None
        self._mirror = MirrorReader(self.lake, loop, rewards, self._split.nearness)

    def ingest(self, batch: RawBatch) -> IngestReport:
        """Commit one batch to the lake, exactly once.

        A second call with the same batch writes nothing and returns the same counts. Only the number of parked feedback records may
        differ, because their traces may have arrived in the meantime. Raises ConfigError without the key of the pseudonyms.
        """
        return next(self.ingest_each([batch]))

    def ingest_each(self, batches: Iterable[RawBatch]) -> Iterator[IngestReport]:
        """Commit batches as `ingest` does. The engine decodes some of them ahead; only this process writes."""
        return self._ingest().each(batches)

    def _ingest(self) -> LineIngest:
        return LineIngest(self.lake, self._seen, self.loop, self.clock, self.keys, self.dialects, self._masker, self._compute)

    def prepare(self) -> None:
        """Compute and store what edition and freeze need of each new prompt."""
        self._split.sign(self._compute)

    @property
    def quarantine(self) -> LakeQuarantine:
        """The quarantined records of the line."""
        return self._ingest().quarantine()

    def cursor(self) -> Cursor:
        """Return the row counts of the lake and the time of its newest commit."""
        return lake_cursor(self.lake.place)

    def edition(self, number: int) -> HoldoutEdition:
        """Freeze holdout edition `number` at the first call, from the content of the lake at that time.

        A prompt qualifies by a reference from a reviewer or from the application. Users' corrections do not qualify, because they
        would fill the edition with the model's failures. Later calls return the same prompts, without those whose users have withdrawn
        their consent since. Raises Inconclusive if no prompt qualifies.
        """
        name = edition_name(self.loop.line.name, number, self.loop.holdout.skipped)
        if self.artifacts.resolve(name) is None:  # it is made with the present consent
            return self._once(name, HoldoutEdition, lambda: self._edition(name, number))
        return self._with_consent(self._once(name, HoldoutEdition, lambda: self._edition(name, number)))

    def freeze(self, name: str, as_of: datetime, edition: HoldoutEdition) -> Snapshot:
        """Freeze the scored training samples of all records that were ingested no later than `as_of`.

        Holdout traces and conversations that start with a golden prompt are left out. So is everything for which consent is refused at the
        time of the call, also by records that were ingested after `as_of`. Raises Permanent if the fraction or the
        normaliser of `edition` differs from the current one, ConfigError if the line was split with other settings before.
        """
        return self._once(name, Snapshot, lambda: self._freeze(name, as_of, edition))

    def probe(
        self, name: str, snapshot: Snapshot, client: ModelClient, progress: Progress, champion: ProbedChampion = UNTRAINED
    ) -> ProbeReport:
        """Sample several answers of the start model to each selected training prompt, and score them; likewise of the champion if it is
        another model.

        Prompts that the champion was not trained on are selected first, because it may know the others by heart. Prompts whose users have
        withdrawn their consent since the freeze are not sent. Raises ConfigError if no scorer can score unseen answers, and Retryable if
        a model answers no request at all.
        """
        return self._once(name, ProbeReport, lambda: self._probe(name, self._current(snapshot), client, progress, champion))

    def assemble(self, name: str, snapshot: Snapshot, probe: ProbeReport | None) -> TrainingSet:
        """Build pairs, GRPO prompts, demonstrations and facts from a snapshot and, if given, the probe's answers.

        Samples and prompts whose users have withdrawn their consent since the freeze are left out.
        """
        assembly = Assembly(self.loop, self.rewards, self.artifacts, self._split, self._store)
        return self._once(name, TrainingSet, lambda: assembly.assemble(name, self._current(snapshot), probe))

    def mirror_prompts(self, rollout: str, versions: tuple[str, ...], window: tuple[datetime, datetime], asks: MirrorAsk) -> MirrorPrompts:
        """Return prompts of the rollout's traffic that may be asked again, as mirror.py chooses them."""
        return self._mirror.prompts(rollout, versions, window, asks)

    def forget_mirror(self) -> None:
        """Delete the key of the last rollout with mirrored prompts."""
        forget_key(self.lake)

    def _once(self, name: str, kind: type[Result], make: Callable[[], Result]) -> Result:
        known = self.artifacts.resolve(name)
        if known is None:
            known = self.artifacts.bind(name, self.artifacts.put(stamped(make())))
        return parse(kind, self.artifacts.get(known))

    def _store(self, frame: pl.DataFrame, columns: Sequence[Column], order: Sequence[str]) -> Digest:
        return self.artifacts.put(parquet(frame, columns, order))

    def _golden(self) -> pl.DataFrame | None:
        golden = self.loop.holdout.golden
        return None if golden is None else read_golden(self.loop_folder / golden, self.loop.holdout.skipped)

    def _golden_roots(self, newest: int) -> dict[Digest, str]:
        """Return the roots of all golden prompts, as written and masked: those of the current file and of all editions up to `newest`.

        The values are the normalised texts.
        A gate may still use the golden prompts of an edition after they were removed from the file. A model that was trained on them
        would have an unfair advantage. Traffic is masked, and the golden set is not.
        """
        golden = self._golden()
        prompts: list[str] = [] if golden is None else golden["prompt"].to_list()
        for number in range(1, newest + 1):
            known = self.artifacts.resolve(edition_name(self.loop.line.name, number, self.loop.holdout.skipped))
            edition = parse(HoldoutEdition, self.artifacts.get(known)) if known else None
            if edition is not None and edition.golden is not None:
                prompts += read_parquet(self.artifacts.get(edition.golden))["prompt"].to_list()
        both = [form for prompt in set(prompts) for form in (prompt, self._masker.masked_messages(prompt))]
        skipped = self.loop.holdout.skipped
        return {root_id(messages, skipped): root_text(messages, skipped) for messages in map(orjson.loads, both)}

    def _store_parts(self, parts: Iterable[pl.DataFrame], columns: Sequence[Column], order: Sequence[str]) -> Digest:
        """Store rows that are never in memory together. No part has a row that would be before a row of an earlier part."""
        with unnamed_file(self.lake.root) as file:
            write_parquet(file, parts, columns, order)
            size, key = file.tell(), digest_open(file)
            if not self.artifacts.take(file, size, key):
                raise Retryable(f"the rows that were written below {self.lake.root} cannot be read again; check the disk, then try again")
            return key

    def _usable(self, settled: Settled, as_of: datetime | None = None) -> Usable:
        """Return what may be used. A cycle freezes its edition and then its snapshot, from the same prompts, so their ids are kept once."""
        known, self._identities = self._identities, None
        found = usable(settled, self.loop, self._placed, as_of, known)
        if as_of is None:
            self._identities = found.identities
        return found

    def _placed(self, roots: PromptRoots, more: Callable[[], list[Question]]) -> Callable[[Sequence[Digest]], list[Placed]]:
        """Decide the sides of new prompts. Right answers of the golden set and of the traffic may raise the least similarity before."""
        skipped = self.loop.holdout.skipped
        return self._split.place(roots, lambda: questions_of(self._golden(), skipped) + more())

    def _with_consent(self, edition: HoldoutEdition) -> HoldoutEdition:
        """Return the edition without the prompts and references that are no longer used with consent."""
        rows = self._settled.current()
        if rows.consent["given"].all():
            return edition
        prompts, texts = withdrawn_texts(rows.settled, rows.feedback, refusing_users(rows.consent))
        stored = read_parquet(self.artifacts.get(edition.prompts))
        gone = pl.Series([key_of(prompt) in prompts for prompt in stored["prompt"].to_list()], dtype=pl.Boolean)
        kept = stored.filter(~gone & ~pl.col("reference").is_in(sorted(texts)))
        if len(kept) == len(stored):
            return edition
        if kept.is_empty() and not edition.golden_size:
            raise Inconclusive(
                f"edition {edition.number} of line {edition.line!r}: consent was withdrawn for all of its prompts; "
                "lower holdout.rotate_after, so that a new edition is frozen"
            )
        return edition.model_copy(update={"prompts": self._store(kept, PROMPTS, ["prompt_id"]), "size": len(kept)})

    def _current(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot, computed again if consent was withdrawn or given since it was frozen."""
        if self._settled.withdrawn(snapshot.as_of, snapshot.name) == snapshot.withdrawn:
            return snapshot
        return self._frozen(snapshot.name, snapshot.as_of, snapshot.edition, self._settled.read(snapshot.as_of, snapshot.name))

    def _edition(self, name: str, number: int) -> HoldoutEdition:
        self._split.pin(number)
        golden = self._golden()
        settled = self._settled.read(None, name)
        parts, roots, traces, asked = list[pl.DataFrame](), list[pl.DataFrame](), 0, 0
        every = self._usable(settled)
        for part in every:
            asked += part.every()["prompt_id"].n_unique()
            held = part.where(pl.col("held"))
            known = references(held.asked, held.feedback.filter(pl.col("kind") != FeedbackKind.CORRECTION.value))
            parts.append(prompts_of(held.every(), known).filter(pl.col("reference").is_not_null()))
            roots.append(held.every().select("prompt_id", "root_id", "cluster").join(parts[-1], on="prompt_id", how="semi"))
            traces += len(held.traces)
        prompts = pl.concat(parts)
        if prompts.is_empty():
            for table in ("traces", "feedback"):  # the next try must see what has been ingested since
                self.lake.unpin(table, name)
            if settled.traces.is_empty():
                raise Inconclusive("no trace is in the lake yet; run `ratchet ingest`, or send traces to the receiver")
            alike = _same_openings(asked, every.sides.roots)
            raise Inconclusive(
                f"edition {number} of line {self.loop.line.name!r}: no held-out prompt has a reference ({traces} held-out traces){alike}; "
                "record right answers for more prompts: `reference` in JSON Lines, `metadata.reference` in OTLP, or reviewer_reference"
            )
        prompts = independent(prompts, pl.concat(roots), self.loop.line.salt)
        chosen = settled.texts.filled(choose_edition(prompts, number, self.loop.line.salt, self.loop.holdout.max_size))
        return HoldoutEdition(
            line=self.loop.line.name,
            number=number,
            prompts=self._store(chosen, PROMPTS, ["prompt_id"]),
            size=len(chosen),
            golden=None if golden is None else self._store(golden, PROMPTS, ["prompt_id"]),
            golden_size=0 if golden is None else len(golden),
            normaliser=NORMALISER,
            fraction=self.loop.holdout.fraction,
            skipped=self.loop.holdout.skipped,
        )

    def _freeze(self, name: str, as_of: datetime, edition: HoldoutEdition) -> Snapshot:
        self._split.pin(edition.number)
        holdout = self.loop.holdout
        if (edition.fraction, edition.skipped, edition.normaliser) != (holdout.fraction, holdout.skipped, NORMALISER):
            raise Permanent(
                f"edition {edition.number} has another holdout.fraction, normaliser, or setting of what a question is "
                "(holdout.skip_messages, skip_greetings, question_after, question_until); restore it, or create a new line"
            )
        return self._frozen(name, as_of, edition.number, self._settled.read(as_of, name))

    def _frozen(self, name: str, as_of: datetime, edition: int, settled: Settled) -> Snapshot:
        every = self._usable(settled, as_of)
        golden, near = self._golden_roots(edition), self._split.near()
        alike = self._split.like(every.sides.roots, golden, lambda roots: [one for one in every.sides.trained(roots) if one not in golden])
        out = {*golden, *alike}
        trained = Trained(every, out, together=self.rewards.has_judges())
        signals, nameless = SignalLabels(trained.beliefs(self.loop.signals)), ANONYMOUS if trained.has_names() else None
        taught = trained.taught() if FeedbackKind.TEACHER.value in settled.feedback["kind"] else None
        teachers = TeacherLabels(taught, self.rewards, self.loop.teacher.min_agreement if self.loop.teacher else None)
        became, placeholders, totals = Became(side_of(golden, alike), near), Placeholders(), Totals()
        prompts = Partitions(self.lake.root, every.rows[0].count)

        def samples() -> Iterator[pl.DataFrame]:
            labeller = (Labeller(self._compute, self.loop.rewards), AT_ONCE) if self._compute.elsewhere else None
            for number, part in enumerate(trained):
                train, known = part.train, references(part.train.asked, part.feedback)
                totals.roots.add(part.every.every())
                prompts.put(prompts_of(train.every(), known), number)
                became.add(part.every, known, part.contested)
                totals.questions += len(train.questions)
                people = part.feedback.filter(pl.col("kind") != FeedbackKind.TEACHER.value)
                rows = train.traces, train.questions, people, known
                for answers in label(*rows, self.rewards, self.loop.line.salt, settled.texts, nameless, labeller):
                    labelled = teachers.added_to(signals.label(answers, part.every.signals))
                    placeholders.add(labelled)
                    totals.add(labelled)
                    totals.wrong_by_form.update(wrong_by_form(self.rewards, labelled, known))
                    yield labelled

        def filled_prompts() -> Iterator[pl.DataFrame]:
            for rows in prompts:
                totals.references += rows["reference"].count()
                yield from filled_parts(rows, settled.texts)

        written = self._store_parts(samples(), SAMPLES, _SAMPLE_ORDER)
        stored = written, self._store_parts(filled_prompts(), PROMPTS, ["prompt_id"])
        counts = became.traces(every.out)
        if near:
            counts |= {"prompt_clusters": every.sides.training_clusters(sorted(out))}
        counts |= {"questions": totals.questions} if totals.questions else {}
        feedback = became.feedback(every.ignored, every.left_out, every.sent_signals)
        counts |= {f"feedback:{destination}": n for destination, n in feedback.items()}
        counts |= {f"reference:{destination}": n for destination, n in became.references(every.refused_references).items()}
        counts |= {"late_references": settled.late_references} if settled.late_references else {}
        counts |= {"scored": totals.sum("scored"), "contested_corrections": became.contested}
        counts |= {"corrections": totals.sum("rows", pl.col("origin") == "correction")}
        return Snapshot(
            name=name,
            as_of=as_of,
            lake=settled.pinned,
            samples=stored[0],
            prompts=stored[1],
            scorers=self.rewards.versions,
            edition=edition,
            counts=counts,
            content=digest(list(stored)),
            withdrawn=settled.withdrawn,
            judges=self.rewards.beliefs(),
            signals=signals.beliefs,
            teachers=teachers.beliefs,
            masked=placeholders.summary(self.loop.privacy),
            largest_cluster=every.sides.largest_cluster() if near else None,
            near=self._split.rule(),
            largest_root=totals.roots.largest(),
            silent_scorers=silent_scorers(self.rewards, totals.samples(), totals.references),
            doubtful_scorers=doubtful_scorers(self.rewards, totals.samples(), totals.wrong_by_form),
        )

    def sides(self, snapshot: Snapshot) -> TrainingSides:
        """Return the development prompts of the snapshot, those that are used for nothing, and the clusters of all."""
        return self._split.training_sides(read_parquet(self.artifacts.get(snapshot.prompts)))

    def sendable(self, snapshot: Snapshot) -> Sendable:
        """Return the prompts of the snapshot that may be sent to the line's teacher. Raises ConfigError if the loop file names none."""
        if self.loop.teacher is None:
            raise ConfigError("the loop file names no teacher; add a section [teacher]")
        settled, prompts = self._settled.read(snapshot.as_of, snapshot.name), read_parquet(self.artifacts.get(snapshot.prompts))
        said = Statements((now := self._settled.current()).settled(), now.consent)  # a refusal counts at once
        trained = self._split.by_part(prompts)[Part.TRAIN]
        asked = (part.asked.join(prompts, on="prompt_id", how="semi") for part in self._usable(settled, snapshot.as_of))
        agreed = [said.agreeing(rows, self.loop.teacher.consent == "required") for rows in asked]
        return sendable(prompts, pl.concat(agreed), trained, self._masker.masked_messages, self.rewards.proves_alone())

    def _probe(self, name: str, snapshot: Snapshot, client: ModelClient, progress: Progress, champion: ProbedChampion) -> ProbeReport:
        if not self.rewards.unseen():
            raise ConfigError("no reward in the loop file can score unseen answers; add one, for example `exact_match`, to [[rewards]]")
        settings, salt = self.loop.probe, f"{self.loop.line.salt}/{self.loop.line.seed}/{snapshot.content}"
        rows = [read_parquet(self.artifacts.get(key)) for key in champion.trained_on or ()]
        known = frozenset(prompt for found in rows for prompt in found["prompt_id"].to_list())
        usable = scorable(read_parquet(self.artifacts.get(snapshot.prompts)), self.rewards)
        prompts = choose_prompts(usable, settings.prompts, salt, known)
        probed = ask(prompts, settings, self.rewards, client, salt, progress)
        groups = group_rewards(probed.answers)
        own = probed.answers if champion.client is None else ask(prompts, settings, self.rewards, champion.client, salt, progress).answers
        reward, error, new = usual(own, prompts, known)
        return ProbeReport(
            name=name,
            answers=self._store(probed.answers, SAMPLES, ["prompt_id", "answer", "parts"]),
            prompts=probed.prompts,
            samples_per_prompt=settings.samples,
            answered=len(probed.answers),
            scored=probed.answers["reward"].count(),
            failures=probed.failures,
            cut=probed.cut,
            reasons=dict(probed.reasons),
            mean_reward=mean_reward(probed.answers),
            group_coverage=coverage(groups),
            best_of_k=best_of(groups),
            usual_reward=reward,
            usual_error=error,
            new_prompts=None if champion.trained_on is None else new,
        )


def _same_openings(prompts: int, roots: PromptRoots) -> str:
    """Return a remark on a lake of many prompts that count as few conversations; nothing for another one."""
    first = sum(len(roots.range(number)) for number in range(roots.count))
    if prompts < 20 or first * 10 > prompts:
        return ""
    return (
        f"; by their first user messages, the {prompts:,} prompts count as {first:,} conversation{'s'[: first > 1]}: if these messages are "
        "examples, or the environment that an agent describes, name them in holdout.skip_messages, and greetings in "
        "holdout.skip_greetings; holdout.question_after and holdout.question_until must leave the question"
    )
