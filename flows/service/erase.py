"""Erases the data of people from an installation, line by line, and writes the receipt.

The order of the steps makes a crash harmless at any point. The refusal of the people comes first, so that nothing new is stored and what is
stored is not used. Then the marks by which rows of artifacts are recognised are stored, before the rows themselves disappear from the lake.
Each later step may be repeated. The stored marks are deleted last.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from ratchet.contracts.errors import ConfigError, RatchetError, Retryable
from ratchet.contracts.ids import Digest, teacher_stream
from ratchet.contracts.jobs.training import JobState
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.asking.teaching import fold_teacher
from ratchet.flows.engine.context import TURN_SECONDS, LineContext, leased
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import ask_rollback
from ratchet.flows.engine.recall import Resting, recall, resting
from ratchet.flows.engine.reconcile import go_back
from ratchet.flows.engine.work import turn
from ratchet.flows.service.bucket_copies import delete_copies
from ratchet.flows.service.reach import named, reachable
from ratchet.flows.service.receipts import LineErased, RecalledVersion, Receipt, Receipts, merged, receipt_id
from ratchet.materializer.erasure.artifact_rows import evidence, filtered, has_rows
from ratchet.materializer.erasure.lake_rows import LineRows, Target, purge, tombstone
from ratchet.materializer.erasure.marks import Marks
from ratchet.materializer.erasure.pending import Pending, PendingErasure
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.lake.tables import Lake
from ratchet.runtime.jobs.job_protocol import plan_folder
from ratchet.runtime.secrets.keyring import ensure_keyring, read_keyring
from ratchet.runtime.secrets.pseudonyms import Subject, is_pseudonym, pseudonym

Boundary = Callable[[str], None]
"""Called with the name of each step before it begins. Tests end the process there."""
_HEAD = 16
_JOB_SECONDS = 60
"""Seconds for which the end of a cancelled job is awaited."""

ALWAYS_LEFT = (
    "backups, and the copies of other systems: the applications, their logs, and the files of the sources",
    "replicas, the write-ahead log and the free space in the files of the ledger's database, if it is Postgres, until they are "
    "overwritten; after VACUUM FULL of the tables `kept` in its schemas ratchet_quarantine_* and `parts` in ratchet_erasing_*, the free "
    "space is gone",
    "the weights of the recalled versions, in the artifacts and wherever they were copied",
    "models that were trained elsewhere and given as candidates: nothing is known of their training data",
    "files that were exported by `ratchet dataset` (which lists them), `ratchet judge` and `ratchet report --out`",
    "an MLflow server, the disks of operators and of lost pods, and volumes and buckets that no cycle of the ledger names",
    "hashes in lake/seen.sqlite, and in lake/prompts.sqlite and judgements.db or the ledger's database, which contain no text",
    "differences of mirrored prompts in the ledger, by hashes whose key is deleted",
)


_OF_CLUSTER = (
    "logs that the cluster keeps of pods, the last lines of failed jobs in the ledger's reasons, and in a bucket of jobs the parts of "
    "interrupted uploads until its lifecycle rule deletes them"
)


@dataclass(frozen=True)
class People:
    """Pseudonyms of the people to erase."""

    users: frozenset[str]
    sessions: frozenset[str]


def pseudonyms_of(installation: Installation, users: Iterable[str], sessions: Iterable[str]) -> People:
    """Return the pseudonyms of clear ids under all keys of the installation. A pseudonym also stands for itself.

    A home without such rows gets its key. Raises ConfigError if the key file is damaged, or missing although ids were replaced with it.
    """
    home = installation.home
    if not home.user_keys.exists() and not any(Lake(home.lake(line)).has_pseudonyms() for line in lines_of(installation)):
        ensure_keyring(home.user_keys, datetime.now(UTC))
    keys = read_keyring(home.user_keys).keys

    def hidden(subject: Subject, texts: Iterable[str]) -> frozenset[str]:
        texts = list(texts)
        known = {text for text in texts if is_pseudonym(text) and text.startswith(subject)}
        return frozenset({pseudonym(subject, text, key) for text in texts for key in keys} | known)  # a user may have such an id

    return People(hidden("u", users), hidden("s", sessions))


class LineEraser:
    """Removes the rows of a target from one line and from the artifacts."""

    def __init__(self, installation: Installation, line: str, target: Target, boundary: Boundary = lambda _: None) -> None:
        self._installation = installation
        self._home = installation.home
        self._line = line
        self._target = target
        self._boundary = boundary
        self._lake = Lake(self._home.lake(line))
        self._artifacts = open_artifacts(self._home)
        self._pending = PendingErasure(self._home.erasing(line), self._home.database(line))
        self._planned: Pending | None = None
        self._left: list[str] = []
        self._files: Counter[str] = Counter()
        self._bytes = 0
        self.context = self._open()

    def _open(self) -> LineContext | None:
        with contextlib.suppress(ConfigError):
            return self._installation.context(self._installation.loop_file(self._line))
        cycles = self._installation.cycles(self._line)
        if cycles:
            with contextlib.suppress(ConfigError):
                return self._installation.cycle_context(cycles[-1])
        return None

    @property
    def is_interrupted(self) -> bool:
        """Whether an erasure of people has begun in the line and is not complete."""
        return self._pending.read().of_people

    @property
    def has_begun(self) -> bool:
        """Whether an erasure has begun in the line and is not complete."""
        return bool(self._pending.read().run)

    def preview(self) -> LineErased:
        """Return what an erasure would remove now. Changes nothing."""
        if not self._home.lake(self._line).exists():
            return LineErased(line=self._line)
        rows = LineRows(self._lake, self._target)
        marks = rows.marks(self._salt()) | self._pending.read().marks
        hits = self._hits(self._with_evidence(marks))
        found = self._resting(set(hits), "rows of erased people")
        counts = rows.counts() | ({"artifacts": sum(hits.values())} if hits else {})
        return LineErased(
            line=self._line,
            rows=counts,
            files={"artifacts": len(hits)} if hits else {},
            recalled=self._described(found.versions) if self._target.names_people else (),
            cycle=self._installation.line(self._line).open_cycle if found.cycle else None,
        )

    def run(self, reason: str) -> LineErased:
        """Remove the rows, and everything that stems from them.

        Raises Retryable if an effect or an ingest of the line does not end, and ConfigError if the ledger has the line but its loop file is
        not known, because its versions could not be recalled.
        """
        if not self._home.lake(self._line).exists():
            return LineErased(line=self._line)
        if self.context is None and self._installation.line(self._line).rows:
            raise ConfigError(
                f"the loop file of line {self._line!r} is not usable; put it back where the ledger names it, then repeat this"
            )
        with self._lake.writing():
            self._boundary("tombstone")
            if self._target.names_people:
                tombstone(self._lake, self._target.users, self._target.sessions, datetime.now(UTC))
        if self.context is not None and self._target.names_people:
            self._drain(self.context)
        with ExitStack() as stack:
            lease = None
            if self.context is not None:
                stack.enter_context(leased(self.context, "an erasure", f"teacher/{self._line}", TURN_SECONDS))  # no answer comes afterwards
                stack.enter_context(leased(self.context, "an erasure", f"ingest/{self._line}", TURN_SECONDS))
                lease = stack.enter_context(leased(self.context, "an erasure", wait=TURN_SECONDS))
            pending = self._plan(reason)
            if self.context is not None and lease is not None:
                self._boundary("recall")
                if self._target.names_people:
                    recall(self.context, lease, self._resting(set(pending.artifacts), reason))
                self._end_jobs(self.context, pending)
            self._delete(pending)
        if self.context is not None and self._installation.line(self._line).recall_asked:
            self._roll_out_back(self.context)
        self._boundary("forget the marks")
        self._name_sources()
        return LineErased(
            line=self._line,
            run=pending.run,
            rows=dict(sorted({**pending.rows, "artifacts": sum(pending.artifacts.values())}.items())),
            files=dict(sorted(self._files.items())),
            bytes=self._bytes,
            recalled=self._described(self._installation.line(self._line).recalled),
            cycle=pending.cycle,
            left=tuple(self._left),
        )

    def forget(self) -> None:
        """Delete the stored marks of this run. The erasure of this line is complete, and its receipt is stored."""
        if self._planned is not None:
            self._pending.forget(self._planned)

    def _name_sources(self) -> None:
        """Name the files of the operator, and the places elsewhere, that may contain texts of the people."""
        rounds = fold_teacher(self._installation.ledger.read(teacher_stream(self._line))).rounds
        sent = {one.url for _, _, one in rounds if one.asked or one.measuring}
        self._left += [f"prompts that were sent to the teacher at {url}; ask its provider to delete them" for url in sorted(sent)]
        if self.context is None:
            return
        loop = self.context.loop
        self._left += [f"the files of source {source.name!r} ({source.path})" for source in loop.sources if source.path]
        asked = [(source.name, source.options["base_url"]) for source in loop.sources if "base_url" in source.options]
        self._left += [f"the records at {url}, which source {name!r} reads" for name, url in asked]
        if any(cycle.loop.cluster is not None for cycle in self._installation.cycles(self._line)):
            self._left.append(_OF_CLUSTER)
        if loop.holdout.golden:
            self._left.append(f"the golden set ({loop.holdout.golden}), which the next edition reads again")

    def _plan(self, reason: str) -> Pending:
        """Store what is to be removed before anything is."""
        self._boundary("marks")
        known = self._pending.read()
        if known.of_people and not self._target.names_people:
            raise Retryable(f"an erasure of people has begun in line {self._line!r} and is not complete; repeat `ratchet erase`")
        with self._lake.writing():
            rows = LineRows(self._lake, self._target)
            counts = rows.counts()
            marks = rows.marks(self._salt())
        new = Pending(run=secrets.token_hex(8), of_people=self._target.names_people, marks=marks, rows=counts)
        pending = self._store(known | new)
        self._boundary("evidence")
        pending = self._store(pending.model_copy(update={"marks": self._with_evidence(pending.marks)}))
        hits = {**self._hits(pending.marks), **pending.artifacts}
        found = self._resting(set(hits), reason)
        cycle = self._installation.line(self._line).open_cycle if found.cycle and self._target.names_people else None
        return self._store(pending | Pending(artifacts=hits, plans=found.plans, cycle=cycle))

    def _store(self, pending: Pending) -> Pending:
        self._pending.write(pending)
        self._planned = pending
        return pending

    def _delete(self, pending: Pending) -> None:
        with self._lake.alone():  # a compaction under way would write the rows again
            self._boundary("lake rows")
            LineRows(self._lake, self._target).remove(DedupIndex(self._lake))
            self._boundary("lake files")
            files, size = purge(self._lake)
            self._files["lake"] += files
            self._bytes += size
        for key in pending.artifacts:
            self._boundary("artifact")
            self._rewrite(key, pending.marks)
        self._boundary("copies in buckets")
        cycles = self._installation.cycles(self._line)
        for place, deleted in delete_copies(self._artifacts, self._home, cycles, pending.plans, pending.of_people):
            if deleted.files:
                self._files[place] += deleted.files
            self._bytes += deleted.bytes
            self._left += [deleted.left] if deleted.left else []
        self._boundary("run folders")  # after the bucket, from which a missing one is downloaded again
        for folder in self._run_folders(pending):
            self._remove(folder, "run folders")
        self._boundary("reports")
        for page in sorted(self._home.reports.glob("*.html")):
            self._remove(page, "reports")

    def _run_folders(self, pending: Pending) -> list[Path]:
        """Return the folders of the plans to remove, and of others with marked rows, whose artifacts may have been filtered before."""
        root = self._home.jobs(self._line)
        found = {root / plan_folder(plan) for plan in pending.plans}
        if pending.marks:
            found |= {path.parent.parent for path in root.glob("*/a*/*.parquet") if filtered(path.read_bytes(), pending.marks)}
        return sorted(found)

    def _rewrite(self, key: Digest, marks: Marks) -> None:
        path = self._artifacts.path(key)
        if not path.exists():
            return
        data = path.read_bytes()
        left = filtered(data, marks)
        if left is not None:
            self._artifacts.replace(key, left.data, left.removed, left.left)
            self._files["artifacts"] += 1
            self._bytes += len(data)

    def _remove(self, path: Path, place: str) -> None:
        """Delete a file or a folder and count its files."""
        if not path.exists():
            return
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        self._files[place] += len(files)
        self._bytes += sum(file.stat().st_size for file in files)
        if path.is_file():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
            if path.exists():  # on a volume, a pod may have withdrawn the right
                self._left.append(f"files in {path}, which the service may not delete; delete the folder as their owner")

    def _rows_of_artifacts(self) -> Iterator[tuple[Digest, bytes]]:
        """Yield each artifact with rows, except those of other lines only, in which other people may have given the same texts."""
        for key, path in self._artifacts.contents():
            if key in self._foreign:
                continue
            with path.open("rb") as file:
                head = file.read(_HEAD)
                if has_rows(head):
                    yield key, head + file.read()

    @cached_property
    def _foreign(self) -> set[Digest]:
        """Artifacts that other lines reach, and this one does not."""
        ledger, others = self._installation.ledger, [view.line for view in self._installation.lines() if view.line != self._line]
        if not others:
            return set()
        theirs = set[Digest]().union(*(named(self._artifacts, ledger, line) for line in others))
        return reachable(self._artifacts, theirs) - reachable(self._artifacts, named(self._artifacts, ledger, self._line))

    def _with_evidence(self, marks: Marks) -> Marks:
        if not marks:
            return marks
        shown = {mark for _, data in self._rows_of_artifacts() for mark in evidence(data, marks)}
        return marks | Marks(evidence=tuple(sorted(shown)))

    def _hits(self, marks: Marks) -> dict[Digest, int]:
        """Return each artifact with marked rows and their number."""
        if not marks:
            return {}
        found = ((key, filtered(data, marks)) for key, data in self._rows_of_artifacts())
        return {key: left.removed for key, left in found if left is not None}

    def _resting(self, hits: set[Digest], reason: str) -> Resting:
        return resting(
            self.context,
            self._installation.ledger,
            self._installation.line(self._line),
            lambda key: not hits.isdisjoint(self._forms(key)),
            reason,
        )

    def _forms(self, key: Digest) -> set[Digest]:
        """Return the digests of an artifact before and after each erasure."""
        found: set[Digest] = set()
        while key not in found:
            found.add(key)
            record = self._artifacts.erased(key)
            key = record.replacement if record else key
        return found

    def _described(self, versions: dict[str, str]) -> tuple[RecalledVersion, ...]:
        view = self._installation.line(self._line)
        made = {cycle.candidate.tag for cycle in self._installation.cycles(self._line) if cycle.candidate}
        clean = replace(view, recalled={**view.recalled, **versions}).clean_champion
        if clean is None:  # no model was ever adopted
            return ()
        return tuple(
            RecalledVersion(
                tag=tag,
                reason=why,
                champion=view.champion is not None and view.champion.tag == tag,
                clean=clean.tag,
            )
            for tag, why in versions.items()
            if tag in made
        )

    def _salt(self) -> str:
        return self.context.loop.line.salt if self.context else "ratchet"

    def _drain(self, context: LineContext) -> None:
        """Ingest what the receiver has, because its files contain ids in clear, and name what the router has not sent yet."""
        self._boundary("spool")
        receivers = {source.name for source in context.loop.sources if source.kind == "receiver"}
        try:
            ingest(context, [source for source in context.sources if source.name in receivers], TURN_SECONDS)
        except RatchetError as error:
            self._left.append(f"the receiver's spool ({error}); run `ratchet ingest`, then the erasure again")
        waiting = list((self._home.serving(self._line) / "router" / "spool").glob("*.spans"))
        if waiting:
            self._left.append("traces that the router has not sent yet; they are left out at their ingest, which deletes them")

    def _end_jobs(self, context: LineContext, pending: Pending) -> None:
        """Stop the jobs of ended plans, because their run folders have copies of the rows."""
        self._boundary("jobs")
        cycles = [cycle for cycle in self._installation.cycles(self._line) if any(plan.id in pending.plans for plan in cycle.plans)]
        of_jobs = {
            incarnation.job: context.executor if cycle.ended else self._installation.cycle_context(cycle).executor
            for cycle in cycles
            for incarnation in cycle.incarnations
        }
        for job, executor in of_jobs.items():
            executor.cancel(job)
            for _ in range(2 * _JOB_SECONDS):
                executor.reconcile(job)
                if executor.observe(job).state in (JobState.ENDED, JobState.ABSENT):
                    break
                context.clock.sleep(0.5)
            else:
                raise Retryable(f"job {job} does not end; run `ratchet erase` again when it has")

    def _roll_out_back(self, context: LineContext) -> None:
        """Roll an open rollout back at once. A running service does it, too."""
        opened = self._installation.line(self._line).open_cycle
        if opened is None:
            return
        cycle = context.cycle_view(opened)
        try:
            for _ in range(2):
                turn(self._installation.cycle_context(cycle), context.cycle_view(opened))
        except RatchetError as error:
            self._left.append(f"the open rollout, which the service rolls back ({error})")


def lines_of(installation: Installation) -> list[str]:
    """Return the names of all lines that have a lake or rows in the ledger."""
    folders = [path.parent.name for path in (installation.home.root / "lines").glob("*/lake")]
    return sorted({*folders, *(view.line for view in installation.lines())})


def rows_by_person(installation: Installation, people: People) -> Counter[str]:
    """Return how many stored rows of all lines name each of the people: pseudonym -> number. People without a row are missing."""
    target, found = Target(people.users, people.sessions), Counter[str]()
    for line in lines_of(installation):
        if (place := installation.home.lake(line)).exists():
            found.update(LineRows(Lake(place), target).by_person())
    return found


def erase_people(
    installation: Installation, people: People, boundary: Boundary = lambda _: None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Receipt:
    """Erase the data of people from all lines, store the receipt and return it.

    A repeated call completes an interrupted one. Raises Retryable if a job or an effect of a line does not end in time.
    """
    receipts = Receipts(installation.home)
    names = sorted(people.users | people.sessions)
    key = receipt_id(names)
    known = receipts.get(key)
    receipt = known or Receipt(id=key, people=tuple(names), begun=now())
    found = rows_by_person(installation, people) | Counter(receipt.found)  # an interrupted run has already removed rows
    receipt = receipt.model_copy(update={"finished": None, "left": ALWAYS_LEFT, "found": dict(found)})
    boundary("receipt")
    if known is None and receipts.get(key) is None:  # another process may have begun with the same people meanwhile
        receipts.store(receipt)
    target = Target(people.users, people.sessions)
    erasers = [LineEraser(installation, line, target, boundary) for line in lines_of(installation)]
    done = [eraser.run(f"rows of erased people (receipt {key[:16]})") for eraser in erasers]
    before = {one.line: one.left for one in known.lines} if known is not None else {}
    news = any(any((*one.rows.values(), *one.files.values())) or one.left != before.get(one.line, ()) for one in done)
    if known is not None and known.finished is not None and not news:
        for eraser in erasers:
            eraser.forget()
        return known
    lines = {one.line: one for one in (receipts.get(key) or receipt).lines}  # another process may have erased the same people meanwhile
    for one in done:
        lines[one.line] = merged(lines.get(one.line), one)
    receipt = receipt.model_copy(update={"lines": tuple(lines[line] for line in sorted(lines)), "finished": now()})
    receipts.store(receipt)
    boundary("receipt is stored")
    for eraser in erasers:
        eraser.forget()
    return receipt


def roll_back_recalled(installation: Installation, line: str, actor: str) -> list[str]:
    """Return the line to its newest champion that is not recalled, on the operator's request. Return what was done as texts."""
    view, done = installation.line(line), list[str]()
    while view.champion is not None and view.champion.tag in view.recalled and view.previous is not None:
        context = installation.context(installation.loop_file(line))
        ask_rollback(installation.ledger, line, actor, "trained on erased rows", datetime.now(UTC))
        texts = go_back(context)
        done += texts
        if not texts:
            done.append(f"the rollback of {line} was requested; a running service carries it out")
            break
        view = installation.line(line)
    return done
