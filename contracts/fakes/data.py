"""Fakes of the ports `TraceSource` and `Datasets`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime

from ratchet.contracts.data.datasets import (
    Cursor,
    Facts,
    HoldoutEdition,
    IngestReport,
    MaskedData,
    ProbeReport,
    RawBatch,
    Snapshot,
    TrainingSet,
    TrainingSides,
)
from ratchet.contracts.data.quarantine import QuarantineContent, QuarantineCounts, QuarantineEntry, ReplayReport
from ratchet.contracts.data.teaching import Sendable
from ratchet.contracts.fakes.state import FakeWorld
from ratchet.contracts.ids import Digest, canonical, digest
from ratchet.contracts.mirror import MirrorAsk, MirrorPrompt, MirrorPrompts
from ratchet.contracts.ports import ModelClient, Progress
from ratchet.contracts.ports.data import UNTRAINED, ProbedChampion
from ratchet.contracts.schema import parse, stamped


class FakeSource:
    """`TraceSource` with a fixed list of batches."""

    def __init__(self, name: str, batches: Sequence[RawBatch] = ()) -> None:
        self.name = name
        self.held = list(batches)
        self.finished: list[Digest] = []

    def batches(self) -> Iterator[RawBatch]:
        """Yield the batches in `held`, in order."""
        return iter(list(self.held))

    def done(self, batch: RawBatch) -> None:
        """Record the batch digest in `finished`."""
        self.finished.append(batch.digest)


class FakeQuarantine:
    """`Quarantine` with fixed counts and without entries."""

    def __init__(self) -> None:
        self.held = QuarantineCounts()

    def entries(self) -> list[QuarantineEntry]:
        """Return no entries."""
        return []

    def content(self, identity: str) -> QuarantineContent | None:  # noqa: ARG002
        """Return None."""
        return None

    def counts(self, since: float) -> QuarantineCounts:  # noqa: ARG002
        """Return the configured counts."""
        return self.held

    def replay(self, identities: Collection[str], dry_run: bool = False) -> ReplayReport:  # noqa: ARG002
        """Return an empty report."""
        return ReplayReport(dry_run=dry_run)


class FakeDatasets:
    """`Datasets` that report the given facts without processing data."""

    def __init__(self, world: FakeWorld, facts: Facts, development: int = 0) -> None:
        """`development` is the number of development prompts that training sets report."""
        self.world = world
        self.facts = facts
        self.development = development
        self.reports: dict[Digest, IngestReport] = {}
        self.traces = 0
        self.mirrored: Sequence[MirrorPrompt] = ()
        self.secret = ""
        self.quarantine = FakeQuarantine()
        self.training_sides = TrainingSides()
        self.may_be_sent = Sendable(prompts=(), refused={}, provable=False)
        self.probed: list[ProbedChampion] = []

    def ingest(self, batch: RawBatch) -> IngestReport:
        """Return the report configured for the batch; count the effect once."""
        report = self.reports.get(batch.digest, IngestReport())
        self.world.once(f"ingest/{batch.digest}", lambda: canonical(report))
        return report

    def ingest_each(self, batches: Iterable[RawBatch]) -> Iterator[IngestReport]:
        """Yield the result of `ingest` for each batch. One batch is read ahead."""
        ahead: list[RawBatch] = []
        for batch in batches:
            ahead.append(batch)
            if len(ahead) > 1:
                yield self.ingest(ahead.pop(0))
        yield from map(self.ingest, ahead)

    def prepare(self) -> None:
        """Do nothing."""

    def cursor(self) -> Cursor:
        """Return a cursor with the configured number of traces."""
        return Cursor(traces=self.traces, feedback=0, newest=None)

    def edition(self, number: int) -> HoldoutEdition:
        """Return a fixed edition of 100 prompts for this number."""
        edition = HoldoutEdition(
            line="fake", number=number, prompts=digest(f"edition {number}"), size=100, golden=None, normaliser=1, fraction=0.2
        )
        return parse(HoldoutEdition, self.world.once(f"edition/{number}", lambda: stamped(edition)))

    def freeze(self, name: str, as_of: datetime, edition: HoldoutEdition) -> Snapshot:
        """Return a snapshot without data, once per name."""
        made = Snapshot(
            name=name,
            as_of=as_of,
            lake={},
            samples=digest("samples"),
            prompts=digest("prompts"),
            scorers=(),
            edition=edition.number,
            counts={"used": self.facts.samples},
            content=digest(name),
            withdrawn=digest([]),
            masked=MaskedData(rules="none", on=(), off=(), found={}),
        )
        return parse(Snapshot, self.world.once(name, lambda: stamped(made)))

    def sides(self, snapshot: Snapshot) -> TrainingSides:  # noqa: ARG002
        """Return the configured sides."""
        return self.training_sides

    def sendable(self, snapshot: Snapshot) -> Sendable:  # noqa: ARG002
        """Return the configured prompts."""
        return self.may_be_sent

    def probe(
        self, name: str, snapshot: Snapshot, client: ModelClient, progress: Progress, champion: ProbedChampion = UNTRAINED
    ) -> ProbeReport:
        """Return a probe report with the configured facts, once per name."""
        del snapshot, client, progress
        self.probed.append(champion)
        made = ProbeReport(
            name=name,
            answers=digest("answers"),
            prompts=10,
            samples_per_prompt=4,
            answered=40,
            scored=40,
            failures=0,
            mean_reward=self.facts.champion_reward,
            group_coverage=self.facts.group_coverage,
            best_of_k=self.facts.best_of_k,
        )
        return parse(ProbeReport, self.world.once(name, lambda: stamped(made)))

    def mirror_prompts(self, rollout: str, versions: tuple[str, ...], window: tuple[datetime, datetime], asks: MirrorAsk) -> MirrorPrompts:
        """Return prompts of `mirrored` that were not chosen before, or those that `asks` names."""
        del versions, window
        self.secret = self.secret or f"secret of {rollout}"
        known = [one for one in self.mirrored if one.key not in asks.asked]
        chosen = known[: asks.limit] if asks.only is None else [one for one in known if one.key in asks.only]
        return MirrorPrompts(secret=self.secret, prompts=tuple(chosen))

    def forget_mirror(self) -> None:
        """Forget the key."""
        self.secret = ""

    def assemble(self, name: str, snapshot: Snapshot, probe: ProbeReport | None) -> TrainingSet:
        """Return a training set with the configured facts, once per name."""
        made = TrainingSet(
            name=name,
            snapshot=snapshot.content,
            probe=probe.answers if probe else None,
            pairs=digest("pairs"),
            prompts=digest("prompts"),
            demonstrations=digest("demonstrations"),
            facts=self.facts,
            content=digest([name, "set"]),
            development=digest("development") if self.development else None,
            development_prompts=self.development,
        )
        return parse(TrainingSet, self.world.once(name, lambda: stamped(made)))
