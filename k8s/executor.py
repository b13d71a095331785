"""`Executor` on a Kubernetes cluster: an attempt of a plan as a gang of pods, a Volcano Job.

Volcano restarts a gang that lost a pod, whole and by itself; its incarnation is then the Job's first one plus the restarts that the
pods' annotation tells. Words and checkpoints come over the shared volume (contracts/runfolder.py), states from the API server.
What was submitted is noted before it is asked for, so that a repeat, or a later version of ours that would render
it differently, finds it. It never decides to make another attempt.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts.cluster import ClusterSettings
from contracts.errors import ConfigError, Permanent, RatchetError, Retryable
from contracts.exits import Outcome
from contracts.files import FolderArtifacts
from contracts.jsonfile import read_json
from contracts.runfolder import BEAT, ENDED, RunFolders, disk, ended_status, incarnations, newest_sign, status
from contracts.training import JobEvent, JobSpec, JobState, JobStatus, ResumePoint
from k8s.bucket import Bucket
from k8s.client import JOB, NETWORK_POLICY, NODE_CLAIM, NODE_POOL, POD, Cluster, Object, Taken
from k8s.gang import GANG, INSTALLATION, JOB_NAME, LINE, RATCHET, Ground, render
from k8s.gangs import ENDED_PHASES, LINES, Gang, State, gang_of, last_lines, phase_of
from k8s.guardian import Guardian, Look
from k8s.meter import Meter, count, price_of, settle
from k8s.network import opening
from k8s.notes import Note, Notes
from k8s.objects import manifest
from k8s.pools import static_pool
from k8s.profile import Profile
from k8s.remote import Remote

LOOK_SECONDS = 1.0
"""Least time between two looks at the cluster: several questions in a row have one answer."""


class KubernetesExecutor:
    """Runs one line's jobs in one namespace; run folders lie below `root`, on the volume that pods see at the same path."""

    restarts = True

    def __init__(
        self,
        cluster: Cluster,
        line: str,
        settings: ClusterSettings,
        profile: Profile,
        root: Path,
        artifacts_root: Path,
        max_restarts: int,
        said: Callable[[str], None] = lambda _words: None,
    ) -> None:
        self.cluster, self.line, self.settings, self.profile = cluster, line, settings, profile
        self.folders = RunFolders(root.resolve())
        self.artifacts = FolderArtifacts(artifacts_root.resolve())
        self.max_restarts, self.said = max_restarts, said
        self.notes = Notes(self.folders.root / "cluster")
        bucket = settings.volume.bucket
        self.remote = Remote(Bucket(bucket), Path(settings.volume.mount), self.folders, self.artifacts) if bucket else None
        self.guardian = Guardian(cluster, settings, self._beats)
        self._lock = threading.Lock()
        self._looked = -LOOK_SECONDS
        self._looks: dict[str, Look] = {}

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        with disk(f"submit {spec.name}"):
            run = self.folders.claim(spec)
            note = next((n for n in self.notes.of(spec.name) if n.incarnation == incarnation and not n.created), None)
            if note is None and self._begun(spec, run, incarnation):
                return
            if note is None:
                self._afford(spec)
                self._wait_for_room(spec)
                if self.remote:
                    self.remote.lay_out(spec)
                else:
                    self.folders.lay_out(spec, self.artifacts)
                job = render(spec, self._ground(spec), incarnation)
                asked = Note(name=str(job.metadata.name), incarnation=incarnation, job=manifest(job), at=time.time())
                note = self.notes.add(spec.name, asked)
            self._create(note)
            self.notes.change(spec.name, note.name, created=True)

    def _begun(self, spec: JobSpec, run: Path, incarnation: int) -> bool:
        """Whether this incarnation, or a later one, was started before. Retryable while an older one has still to end."""
        if self._newest(spec.name, run)[0] >= incarnation:
            return True
        now = self.observe(spec.name)
        if now.state in (JobState.ABSENT, JobState.ENDED):
            return now.incarnation >= incarnation
        if now.incarnation < incarnation:
            raise Retryable(f"{spec.name}: incarnation {now.incarnation} has not ended; {incarnation} begins when it has")
        return True

    def _ground(self, spec: JobSpec) -> Ground:
        return Ground(
            line=self.line,
            settings=self.settings,
            profile=self.profile,
            plan_folder=self.folders.plan_folder(spec),
            artifacts=self.artifacts.root,
            max_restarts=self.max_restarts,
            installation=self.notes.installation,
        )

    def _afford(self, spec: JobSpec) -> None:
        refuse_what_cannot_be_metered(self.settings, self.profile)
        cap = self.settings.cap_month
        if cap is not None and (spent := self.notes.spent(time.time())) >= cap:
            raise Permanent(
                f"the line has spent {spent:.2f} of its {cap:.2f} this month; {spec.name} is not started. Raise cluster.cap_month"
            )

    def _wait_for_room(self, spec: JobSpec) -> None:
        """One gang waits at a time: pods of several that cannot start make an autoscaler buy nodes for all of them, and each gets some. And
        none waits for what its pool cannot hold beside those that run: it would be bought in part, and given back, again and again."""
        taken = 0
        for job in self.cluster.list(JOB, self.settings.namespace, RATCHET).items:  # asked, not mirrored: one may be a moment old
            phase = phase_of(job)
            if phase in ENDED_PHASES or _job_name(job) == spec.name:
                continue
            if phase != "Running":
                raise Retryable(f"the gang {job['metadata']['name']} waits for its nodes ({phase}); {spec.name} comes after it")
            taken += int(job["spec"]["minAvailable"])
        most = self.settings.pool.max_nodes
        if self.settings.pool.kind == "none":
            return
        if spec.nodes > most:
            raise ConfigError(f"a gang of {spec.nodes} nodes is more than cluster.pool.max_nodes = {most}; raise it")
        if taken + spec.nodes > most:
            raise Retryable(f"{spec.name} needs {spec.nodes} nodes, and running gangs have {taken} of cluster.pool.max_nodes = {most}")

    def _create(self, note: Note) -> None:
        """Pool and openings first, then the gang; each is found where it exists, and none is left where the gang is refused. A template
        that the API server would refuse is refused here: the Job's own definition accepts it, and hangs."""
        job = note.job
        if self.cluster.get(JOB, note.name, self.settings.namespace) is not None:
            return
        for task in job["spec"]["tasks"]:
            meta = task["template"]["metadata"] | {"name": f"{note.name}-{task['name']}-dry", "namespace": self.settings.namespace}
            self.cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": task["template"]["spec"]}, dry_run=True)
        try:
            if self.settings.pool.kind == "static":
                self._wait_for_old_pool(note.name)
                pool = static_pool(note.name, job["spec"]["minAvailable"], self.settings, self.profile)
                self.cluster.apply(NODE_POOL, self._ours(manifest(pool)))
            hole = opening(note.name, self.settings.namespace, self.settings.volume.bucket)
            self.cluster.apply(NETWORK_POLICY, self._ours(manifest(hole)))
            with contextlib.suppress(Taken):  # by another of us, or ourselves before a crash
                self.cluster.create(JOB, job)
        except Permanent:
            self._delete(note.name)
            raise

    def _ours(self, body: Object) -> Object:
        body["metadata"]["labels"] |= {LINE: self.line, INSTALLATION: self.notes.installation}
        return body

    def _wait_for_old_pool(self, name: str) -> None:
        """Karpenter counts nodes that still go against the limit of a new pool of their name, and leaves it below its size for good."""
        pool = self.cluster.get(NODE_POOL, name)
        claims = self.cluster.list(NODE_CLAIM, labels={**RATCHET, GANG: name}).items
        going = [one for one in (pool, *claims) if one is not None and "deletionTimestamp" in one["metadata"]]
        if going or (pool is None and claims):
            raise Retryable(f"an earlier pool {name} still goes, or {len(claims)} of its nodes do; the gang comes after them")

    def observe(self, name: str) -> JobStatus:
        with disk(f"observe {name}"):
            spec, notes = self.folders.spec(name), self.notes.of(name)
            if spec is None or not notes:
                return JobStatus(state=JobState.ABSENT)
            run, note = self.folders.run(spec), notes[-1]
            look = None if note.ended else self._look(note.name)
            if look is not None and look.state is not State.ENDED:
                return self._alive(name, run, note, look)
            if look is None and not note.ended and self.cluster.get(JOB, note.name, self.settings.namespace) is not None:
                return JobStatus(state=JobState.PENDING, incarnation=self._newest(name, run)[0])  # newer than our mirror
            if look is None and not note.ended and self._lingers(note):
                number = max(self._newest(name, run)[0], note.incarnation)
                seen = status(run / f"i{number}", number, JobState.RUNNING)
                return seen.model_copy(update={"reason": note.stop or "its pods end", "usage": self.notes.meter(name).usage})
            if not note.created and len(notes) == 1:
                return JobStatus(state=JobState.ABSENT)  # noted, and never asked for: whoever submits does so now
            return self._ended(name, run, note, look)

    def _lingers(self, note: Note) -> bool:
        """Whether pods of a gang whose Job is gone run yet: they have their grace, in which they write a checkpoint and a last word."""
        with self._lock:
            return bool(self.guardian.lingering(note.name))

    def _alive(self, name: str, run: Path, note: Note, look: Look) -> JobStatus:
        with contextlib.suppress(Retryable):  # its caps and limits hold though nobody can tell its step
            self.pull(run)
        number = max(self._newest(name, run)[0], note.incarnation + (look.gang.version or 0))
        waits = None if look.state in (State.WHOLE, State.HALF_ALIVE) else note.waits or time.time()
        if (number, waits) != (note.seen, note.waits):
            self.notes.change(name, note.name, seen=number, waits=waits)
        version, died = self.notes.death(note.name)
        fresh = died if version >= (look.gang.version or 0) - 1 else ""
        meter = self.notes.meter(name)
        why = "; ".join(filter(None, ["" if waits is None else look.why, fresh]))
        if not note.stop and (stop := self._stop_for(meter, waits, look.broken, why or look.why)):
            self.notes.change(name, note.name, stop=stop[0], outcome=stop[1].value)
            self._delete(note.name)
        seen = status(run / f"i{number}", number, JobState.RUNNING if waits is None else JobState.PENDING)
        return seen.model_copy(update={"reason": why, "usage": meter.usage})

    def _stop_for(self, meter: Meter, waits: float | None, broken: float, why: str) -> tuple[str, Outcome] | None:
        """Why we end it, and as what that counts; None: we do not."""
        caps, limit = self.settings, self.settings.pending
        if caps.cap_run is not None and meter.cost >= caps.cap_run:
            return f"stopped with a checkpoint at its cap: {meter.cost:.2f} of {caps.cap_run:.2f}", Outcome.PERMANENT
        if caps.cap_month is not None and self.notes.spent(time.time()) >= caps.cap_month:
            return f"stopped with a checkpoint: the line has spent its {caps.cap_month:.2f} of this month", Outcome.PERMANENT
        if waits is not None and time.time() - waits > limit:
            return f"not whole within {limit:g} s: {why}", Outcome.LOST
        if broken > limit:
            return f"not whole again within {limit:g} s: {why}", Outcome.LOST
        return None

    def _ended(self, name: str, run: Path, note: Note, look: Look | None) -> JobStatus:
        """By the words of its newest incarnation, if it left any. The Job may be gone: nothing is left of one that has ended."""
        if not note.ended:
            self._pull_last(name, run, note, look)
        number, folder = self._newest(name, run)
        ended = read_json(folder / ENDED) if number >= note.incarnation else None
        if note.stop and (ended is None or ended["outcome"] != Outcome.DONE.value):
            ended = {"outcome": note.outcome, "reason": note.stop}
        if ended is None:
            lost = note.lost or self._lost(note, look)
            self.notes.change(name, note.name, lost=lost)  # the Job's own words go with it
            ended = {"outcome": Outcome.LOST.value, "reason": lost}
        if not note.ended:
            self._settle(name, note, folder, look)  # before its pool goes: a repeat after a crash counts from there
            self._delete(note.name)
            if self.remote and ended["outcome"] == Outcome.DONE.value:
                self._publish(name, number)
            self.notes.change(name, note.name, ended=True)
        last = ended_status(folder, number, ended)
        return last.model_copy(update={"usage": self.notes.meter(name).usage})

    def _pull_last(self, name: str, run: Path, note: Note, look: Look | None) -> None:
        """What it left in the bucket, all of it. While the bucket is away nothing more can be said, and its machines need not wait."""
        try:
            self.pull(run, fresh=True)
        except Retryable:
            self.notes.change(name, note.name, lost=note.lost or self._lost(note, look))
            self._settle(name, note, self._newest(name, run)[1], look)
            self._delete(note.name)
            raise

    def _publish(self, name: str, number: int) -> None:
        """What it published, into our artifacts. Where that is not what it was sent as, nobody finds it, and who looks for it says so."""
        spec = self.folders.spec(name)
        assert spec is not None
        assert self.remote is not None
        try:
            self.remote.publish(spec, number)
        except Permanent as error:
            self.said(f"{name}: {error}")

    def pull(self, run: Path, fresh: bool = False) -> None:
        """Lays down what pods left in a bucket of a run folder; nothing where they share the folder itself."""
        if self.remote:
            self.remote.pull(run, fresh)

    def _lost(self, note: Note, look: Look | None) -> str:
        """Of a gang that left no word on the volume: how it ended, how its first pod died, and the end of that one's log."""
        why = f"its Job ended without a word ({look.why})" if look else "its Job is gone (deleted, or never accepted)"
        return "; ".join(filter(None, [why, self._last_words(note, look)]))

    def _last_words(self, note: Note, look: Look | None) -> str:
        """From a pod's status or, where that holds none of its log, from its node."""
        died = self.guardian.death(note.name)[1] or self.notes.death(note.name)[1]
        pod = next((pod for pod in look.gang.pods if pod.died or pod.finished), None) if look else None
        if ": " in died.partition(": ")[2] or pod is None:
            return died
        with contextlib.suppress(RatchetError):  # its node may be gone, or pretend
            if log := last_lines(self.cluster.log(pod.name, self.settings.namespace, LINES)):
                return f"{died or pod.name}: {log}"
        return died

    def _settle(self, name: str, note: Note, folder: Path, look: Look | None) -> None:
        """Its meter runs to its end, whoever saw it: by the Job, or, where that is gone, by the newest sign of life on the volume."""
        now, price = time.time(), price_of(self.profile, self.settings.pool.capacity) or 0.0
        meter, gang = self.notes.meter(name), look.gang if look else gang_of(note.job, ())
        ended = gang.ended or newest_sign(folder) or meter.at
        with self._lock:
            machines = self.guardian.machines(note.name)
        self.notes.metered(name, settle(meter, gang, ended, now, price, machines))

    def _newest(self, name: str, run: Path) -> tuple[int, Path]:
        """The newest incarnation that began, was seen, or was asked for."""
        numbers = [number for number, _ in incarnations(run)]
        numbers += [max(note.incarnation, note.seen) for note in self.notes.of(name) if note.created or note.seen]
        number = max(numbers, default=0)
        return number, run / f"i{number}"

    def guard(self) -> list[str]:
        """One look at all gangs of the namespace, for whoever watches while the service is away: what was mended, in words."""
        with self._lock:
            return self._refresh()

    def _refresh(self) -> list[str]:
        """Ours alone are mended and metered; another installation in the namespace has a guardian of its own."""
        ours = self.notes.installation
        looks = [look for look in self.guardian.look() if look.gang.installation == ours]
        mended = self.guardian.mend(looks)
        self._looks, self._looked = {look.gang.name: look for look in looks}, time.monotonic()
        self._count()
        return mended

    def _look(self, name: str) -> Look | None:
        """The newest look at a gang; the guardian mends what is due, and the meters run, at each. One that was not there a moment ago may
        be there now: it is looked for again before it counts as gone."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS or name not in self._looks:
                for words in self._refresh():
                    self.said(words)
            return self._looks.get(name)

    def _count(self) -> None:
        """What is to be known of each gang later, whoever asks then."""
        price = price_of(self.profile, self.settings.pool.capacity) or 0.0
        for look in self._looks.values():
            self.notes.died(look.gang.name, *self.guardian.death(look.gang.name))
            if look.state is not State.ENDED:
                job = look.gang.job
                machines = self.guardian.machines(look.gang.name) | self.guardian.free(look.gang, look.state)
                self.notes.metered(job, count(self.notes.meter(job), look.gang, look.state, time.time(), price, machines))

    def meter(self, name: str) -> Meter:
        """What a job has cost so far; nothing for an unknown one."""
        return self.notes.meter(name)

    def _beats(self, gang: Gang) -> Mapping[str, str]:
        """Of the processes of a gang's newest incarnation, over the volume. One that cannot be read says nothing, either way."""
        spec = self.folders.spec(gang.job)
        if spec is None or gang.installation != self.notes.installation:
            return {}
        first = next((note.incarnation for note in self.notes.of(gang.job) if note.name == gang.name), 1)
        folder = self.folders.run(spec) / f"i{first + (gang.version or 0)}"
        with contextlib.suppress(OSError, Retryable):
            self.pull(folder.parent)
            return {f"{folder.name}/{path.name}": path.read_text() for path in folder.glob(f"{BEAT}*")}
        return {}

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        with disk(f"read the events of {name}"):
            return self.folders.events(name)[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        with disk(f"pin step {resume.step} of {spec.name}"):
            (self.remote or self.folders).pin(spec, resume)

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        with disk(f"read the resume point of {spec.name}"):
            return self.folders.pinned(spec)

    def cancel(self, name: str) -> None:
        jobs = self.cluster.list(JOB, self.settings.namespace, {**self._mine(), JOB_NAME: name}).items
        for gang in {job["metadata"]["name"] for job in jobs} | {note.name for note in self.notes.of(name) if not note.ended}:
            self._delete(gang)

    def live(self) -> list[str]:
        """Also those that have ended and were not looked at since: whoever asks takes away what nobody waits for. What is left of
        gangs that are gone, pools above all, is removed."""
        jobs = self.cluster.list(JOB, self.settings.namespace, self._mine()).items
        there = {job["metadata"]["name"] for job in jobs}
        there |= {pod["metadata"]["labels"].get(GANG) for pod in self.cluster.list(POD, self.settings.namespace, self._mine()).items}
        for kind in (NODE_POOL, NETWORK_POLICY) if self.settings.pool.kind == "static" else (NETWORK_POLICY,):
            place = self.settings.namespace if kind.namespaced else None
            for left in self.cluster.list(kind, place, self._mine()).items:
                if left["metadata"]["name"] not in there:
                    self.cluster.delete(kind, left["metadata"]["name"], place)
        return sorted({_job_name(job) for job in jobs if "deletionTimestamp" not in job["metadata"]})

    def _mine(self) -> dict[str, str]:
        return {**RATCHET, LINE: self.line, INSTALLATION: self.notes.installation}

    def _delete(self, gang: str) -> None:
        """The gang: what costs first, and the Job last of what costs, so that a crash in between leaves something to be found by. Its pods
        get SIGTERM and their grace, in which they write a checkpoint together: the hole between them goes when they are gone (`live`)."""
        if self.settings.pool.kind == "static":
            self.cluster.delete(NODE_POOL, gang)
        self.cluster.delete(JOB, gang, self.settings.namespace)


def _job_name(job: Object) -> str:
    labels: dict[str, Any] = job["metadata"].get("labels", {})
    return str(labels.get(JOB_NAME, job["metadata"]["name"]))


def refuse_what_cannot_be_metered(settings: ClusterSettings, profile: Profile) -> None:
    """Permanent where a cap is set on machines whose price nobody knows: it would never be reached."""
    if (settings.cap_run or settings.cap_month) and price_of(profile, settings.pool.capacity) is None:
        types = ", ".join(profile.instance_types) or "any machine"
        raise Permanent(f"cluster.cap_run: the price table does not know {types}; add it to k8s/prices.json, or take the cap out")
