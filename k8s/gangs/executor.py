"""`Executor` on a Kubernetes cluster: runs an attempt of a plan as a gang of pods, a Volcano Job.

If a gang loses a pod, Volcano restarts the whole gang. The gang's incarnation is the Job's first incarnation plus the number of
restarts in the pods' annotation. Events, results and checkpoints arrive through the shared volume or the bucket
(`runtime/run_folder.py`); states come from the API server.

Each submission is recorded before the API request. A repeated call, or a later version that would render the Job differently, therefore
finds it. The executor never decides to make another attempt.
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
from contracts.exit_codes import Outcome
from contracts.training import JobEvent, JobSpec, JobState, JobStatus, ResumePoint
from k8s.api.client import JOB, NETWORK_POLICY, NODE_CLAIM, NODE_POOL, POD, Cluster, Object, Taken
from k8s.gangs.gang_state import ENDED_PHASES, LINES, Gang, GangState, gang_of, last_lines, phase_of
from k8s.gangs.guardian import Guardian, Look
from k8s.gangs.meter import Meter, count, price_of, settle
from k8s.gangs.submissions import Submission, Submissions
from k8s.manifests.gang_manifest import GANG, INSTALLATION, JOB_NAME, LINE, RATCHET, Ground, render
from k8s.manifests.network import opening
from k8s.manifests.pod_objects import manifest
from k8s.manifests.pools import static_pool
from k8s.profiles.profile import Profile
from k8s.storage.bucket import Bucket
from k8s.storage.sync import Remote
from runtime.artifacts import FolderArtifacts
from runtime.json_files import read_json
from runtime.run_folder import BEAT, ENDED, RunFolders, disk, ended_status, incarnations, newest_sign, status

LOOK_SECONDS = 1.0
"""Minimum seconds between two observations of the cluster. Calls within this time share one observation."""


class KubernetesExecutor:
    """Executor for one line's jobs in one namespace.

    Run folders lie below `root`, on the volume that pods mount at the same path, or on the service's disk if the gangs use a bucket.
    """

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
        self.notes = Submissions(self.folders.root / "cluster")
        bucket = settings.volume.bucket
        self.remote = Remote(Bucket(bucket), Path(settings.volume.mount), self.folders, self.artifacts) if bucket else None
        self.guardian = Guardian(cluster, settings, self._beats)
        self._lock = threading.Lock()
        self._looked = -LOOK_SECONDS
        self._looks: dict[str, Look] = {}

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Submit an incarnation of a job. Does nothing if it, or a later one, was already started.

        Raises Retryable while an older incarnation runs or another gang waits for nodes. Raises Permanent if a cap is reached or the
        API server refuses the Job, and ConfigError if the job does not fit the pool.
        """
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
                asked = Submission(name=str(job.metadata.name), incarnation=incarnation, job=manifest(job), at=time.time())
                note = self.notes.add(spec.name, asked)
            self._create(note)
            self.notes.change(spec.name, note.name, created=True)

    def _begun(self, spec: JobSpec, run: Path, incarnation: int) -> bool:
        """Return whether this incarnation, or a later one, was started before. Raises Retryable while an older one has not ended."""
        if self._newest(spec.name, run)[0] >= incarnation:
            return True
        now = self.observe(spec.name)
        if now.state in (JobState.ABSENT, JobState.ENDED):
            return now.incarnation >= incarnation
        if now.incarnation < incarnation:
            raise Retryable(f"{spec.name}: incarnation {now.incarnation} has not ended; incarnation {incarnation} starts after it")
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
                f"the line has spent {spent:.2f} of its {cap:.2f} this month; {spec.name} is not started; raise cluster.cap_month"
            )

    def _wait_for_room(self, spec: JobSpec) -> None:
        """Raise Retryable while another gang waits for nodes, or while the pool has too few nodes left for this gang.

        Only one gang waits at a time: if several wait, an autoscaler buys nodes for all of them, and each gets only some. A gang larger
        than the free part of the pool must not wait either, because part of its nodes would be bought and released again and again.
        Raises ConfigError if the gang is larger than the whole pool.
        """
        taken = 0
        for job in self.cluster.list(JOB, self.settings.namespace, RATCHET).items:  # not from the informer, because a Job may be very new
            phase = phase_of(job)
            if phase in ENDED_PHASES or _job_name(job) == spec.name:
                continue
            if phase != "Running":
                raise Retryable(
                    f"the gang {job['metadata']['name']} waits for its nodes ({phase}); {spec.name} is submitted after it starts"
                )
            taken += int(job["spec"]["minAvailable"])
        most = self.settings.pool.max_nodes
        if self.settings.pool.kind == "none":
            return
        if spec.nodes > most:
            raise ConfigError(f"a gang of {spec.nodes} nodes is more than cluster.pool.max_nodes = {most}; raise it")
        if taken + spec.nodes > most:
            raise Retryable(
                f"{spec.name} needs {spec.nodes} nodes, but running gangs have {taken} of cluster.pool.max_nodes = {most};"
                " waiting before submit"
            )

    def _create(self, note: Submission) -> None:
        """Create the pool, the network policy and then the gang, and reuse each that exists.

        If the API server refuses the gang, delete the rest. First submit each pod template as a dry run, because the Job's own schema
        accepts templates that the API server refuses; such a Job hangs.
        """
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
            with contextlib.suppress(Taken):  # created by another process, or by this one before a crash
                self.cluster.create(JOB, job)
        except Permanent:
            self._delete(note.name)
            raise

    def _ours(self, body: Object) -> Object:
        body["metadata"]["labels"] |= {LINE: self.line, INSTALLATION: self.notes.installation}
        return body

    def _wait_for_old_pool(self, name: str) -> None:
        """Raise Retryable while an earlier pool of this name, or one of its nodes, is terminating.

        Karpenter counts terminating nodes against the limit of a new pool with the same name, and the new pool then stays below its
        size permanently.
        """
        pool = self.cluster.get(NODE_POOL, name)
        claims = self.cluster.list(NODE_CLAIM, labels={**RATCHET, GANG: name}).items
        going = [one for one in (pool, *claims) if one is not None and "deletionTimestamp" in one["metadata"]]
        if going or (pool is None and claims):
            raise Retryable(f"an earlier pool {name}, or one of its {len(claims)} nodes, is still terminating; waiting before submit")

    def observe(self, name: str) -> JobStatus:
        """Return the state of a job's newest incarnation.

        Each observation also lets the guardian act, updates the meters, and stops the job if a cap or time limit is exceeded. After the
        end of the job it deletes the job's objects.
        """
        with disk(f"observe {name}"):
            spec, notes = self.folders.spec(name), self.notes.of(name)
            if spec is None or not notes:
                return JobStatus(state=JobState.ABSENT)
            run, note = self.folders.run(spec), notes[-1]
            look = None if note.ended else self._look(note.name)
            if look is not None and look.state is not GangState.ENDED:
                return self._alive(name, run, note, look)
            if look is None and not note.ended and self.cluster.get(JOB, note.name, self.settings.namespace) is not None:
                return JobStatus(state=JobState.PENDING, incarnation=self._newest(name, run)[0])  # newer than the informer
            if look is None and not note.ended and self._lingers(note):
                number = max(self._newest(name, run)[0], note.incarnation)
                seen = status(run / f"i{number}", number, JobState.RUNNING)
                return seen.model_copy(update={"reason": note.stop or "its pods are terminating", "usage": self.notes.meter(name).usage})
            if not note.created and len(notes) == 1:
                return JobStatus(state=JobState.ABSENT)  # recorded but never created: the next submit creates it
            return self._ended(name, run, note, look)

    def _lingers(self, note: Submission) -> bool:
        """Return whether pods of a gang without a Job still run. During their grace period they write a checkpoint and their result."""
        with self._lock:
            return bool(self.guardian.lingering(note.name))

    def _alive(self, name: str, run: Path, note: Submission, look: Look) -> JobStatus:
        with contextlib.suppress(Retryable):  # caps and limits apply even while the bucket is unreachable
            self.pull(run)
        number = max(self._newest(name, run)[0], note.incarnation + (look.gang.version or 0))
        waits = None if look.state in (GangState.WHOLE, GangState.HALF_ALIVE) else note.waits or time.time()
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
        """Return the reason and the outcome if the executor must stop the gang, else None."""
        caps, limit = self.settings, self.settings.pending
        if caps.cap_run is not None and meter.cost >= caps.cap_run:
            return f"stopped with a checkpoint: the attempt reached its cap, {meter.cost:.2f} of {caps.cap_run:.2f}", Outcome.PERMANENT
        if caps.cap_month is not None and self.notes.spent(time.time()) >= caps.cap_month:
            return f"stopped with a checkpoint: the line reached its cap of {caps.cap_month:.2f} for this month", Outcome.PERMANENT
        if waits is not None and time.time() - waits > limit:
            return f"not whole within {limit:g} s: {why}", Outcome.LOST
        if broken > limit:
            return f"not whole again within {limit:g} s: {why}", Outcome.LOST
        return None

    def _ended(self, name: str, run: Path, note: Submission, look: Look | None) -> JobStatus:
        """Return the final status and delete the job's objects.

        The status comes from the result file of the newest incarnation, if there is one. The Job may be gone, because an ended Job is
        deleted.
        """
        if not note.ended:
            self._pull_last(name, run, note, look)
        number, folder = self._newest(name, run)
        ended = read_json(folder / ENDED) if number >= note.incarnation else None
        if note.stop and (ended is None or ended["outcome"] != Outcome.DONE.value):
            ended = {"outcome": note.outcome, "reason": note.stop}
        if ended is None:
            lost = note.lost or self._lost(note, look)
            self.notes.change(name, note.name, lost=lost)  # store it, because deleting the Job deletes its status
            ended = {"outcome": Outcome.LOST.value, "reason": lost}
        if not note.ended:
            self._settle(name, note, folder, look)  # before the pool is deleted, so that a repeat after a crash continues from here
            self._delete(note.name)
            if self.remote and ended["outcome"] == Outcome.DONE.value:
                self._publish(name, number)
            self.notes.change(name, note.name, ended=True)
        last = ended_status(folder, number, ended)
        return last.model_copy(update={"usage": self.notes.meter(name).usage})

    def _pull_last(self, name: str, run: Path, note: Submission, look: Look | None) -> None:
        """Download all remaining files of the run from the bucket.

        While the bucket is unreachable the result is unknown, but the machines can go: store the known facts, delete the gang and raise
        Retryable.
        """
        try:
            self.pull(run, fresh=True)
        except Retryable:
            self.notes.change(name, note.name, lost=note.lost or self._lost(note, look))
            self._settle(name, note, self._newest(name, run)[1], look)
            self._delete(note.name)
            raise

    def _publish(self, name: str, number: int) -> None:
        """Copy the artifacts that the job published from the bucket.

        If their content is not what was sent, report it and bind nothing; a later reader of the name reports the missing artifact.
        """
        spec = self.folders.spec(name)
        assert spec is not None
        assert self.remote is not None
        try:
            self.remote.publish(spec, number)
        except Permanent as error:
            self.said(f"{name}: {error}")

    def pull(self, run: Path, fresh: bool = False) -> None:
        """Download new small files of a run folder from the bucket. Does nothing if the gangs share a volume.

        `fresh` ignores the minimum time between two downloads. Raises Retryable while the bucket is unreachable.
        """
        if self.remote:
            self.remote.pull(run, fresh)

    def _lost(self, note: Submission, look: Look | None) -> str:
        """Describe the end of a gang without a result file: how the Job ended, how its first pod failed, and the end of that pod's log."""
        why = f"its Job ended without a result file ({look.why})" if look else "its Job does not exist (deleted, or never accepted)"
        return "; ".join(filter(None, [why, self._last_words(note, look)]))

    def _last_words(self, note: Submission, look: Look | None) -> str:
        """Return the end of a failed pod's log from the pod's status or, if that has none, from its node."""
        died = self.guardian.death(note.name)[1] or self.notes.death(note.name)[1]
        pod = next((pod for pod in look.gang.pods if pod.died or pod.finished), None) if look else None
        if ": " in died.partition(": ")[2] or pod is None:
            return died
        with contextlib.suppress(RatchetError):  # its node may be gone or may not serve logs
            if log := last_lines(self.cluster.log(pod.name, self.settings.namespace, LINES)):
                return f"{died or pod.name}: {log}"
        return died

    def _settle(self, name: str, note: Submission, folder: Path, look: Look | None) -> None:
        """Store the final meter of a gang.

        The end is the Job's end or, if the Job is gone, the newest sign of life in the run folder or the meter's last update.
        """
        now, price = time.time(), price_of(self.profile, self.settings.pool.capacity) or 0.0
        meter, gang = self.notes.meter(name), look.gang if look else gang_of(note.job, ())
        ended = gang.ended or newest_sign(folder) or meter.at
        with self._lock:
            machines = self.guardian.machines(note.name)
        self.notes.metered(name, settle(meter, gang, ended, now, price, machines))

    def _newest(self, name: str, run: Path) -> tuple[int, Path]:
        """Return the number and folder of the newest incarnation that began, was reported or was submitted."""
        numbers = [number for number, _ in incarnations(run)]
        numbers += [max(note.incarnation, note.seen) for note in self.notes.of(name) if note.created or note.seen]
        number = max(numbers, default=0)
        return number, run / f"i{number}"

    def guard(self) -> list[str]:
        """Observe all gangs of the namespace once, repair them, and return reports of what was done.

        Used by a watching process while the service is not running.
        """
        with self._lock:
            return self._refresh()

    def _refresh(self) -> list[str]:
        """Observe, repair and meter this installation's gangs only. Other installations in the namespace have their own guardians."""
        ours = self.notes.installation
        looks = [look for look in self.guardian.look() if look.gang.installation == ours]
        mended = self.guardian.mend(looks)
        self._looks, self._looked = {look.gang.name: look for look in looks}, time.monotonic()
        self._count()
        return mended

    def _look(self, name: str) -> Look | None:
        """Return the newest observation of a gang, or None if it does not exist.

        Each new observation lets the guardian act and updates the meters. A gang that was absent in the last observation may exist now,
        so it is observed again before it counts as gone.
        """
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS or name not in self._looks:
                for words in self._refresh():
                    self.said(words)
            return self._looks.get(name)

    def _count(self) -> None:
        """Update the stored meters and pod failures of all observed gangs, so that they are available after the gang is gone."""
        price = price_of(self.profile, self.settings.pool.capacity) or 0.0
        for look in self._looks.values():
            self.notes.died(look.gang.name, *self.guardian.death(look.gang.name))
            if look.state is not GangState.ENDED:
                job = look.gang.job
                machines = self.guardian.machines(look.gang.name) | self.guardian.free(look.gang, look.state)
                self.notes.metered(job, count(self.notes.meter(job), look.gang, look.state, time.time(), price, machines))

    def meter(self, name: str) -> Meter:
        """Return the meter of a job; an empty meter for an unknown job."""
        return self.notes.meter(name)

    def _beats(self, gang: Gang) -> Mapping[str, str]:
        """Return the heartbeats of a gang's newest incarnation from its run folder. Unreadable heartbeats give an empty mapping."""
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
        """Return the events of a job over all incarnations, from index `since` on."""
        with disk(f"read the events of {name}"):
            return self.folders.events(name)[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Fix the resume point of the next incarnation. Raises Permanent if the checkpoint is not what was accepted."""
        with disk(f"pin step {resume.step} of {spec.name}"):
            (self.remote or self.folders).pin(spec, resume)

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Return the resume point of the next incarnation, or None."""
        with disk(f"read the resume point of {spec.name}"):
            return self.folders.pinned(spec)

    def cancel(self, name: str) -> None:
        """Delete all gangs of a job; their pods write a checkpoint within their grace period."""
        jobs = self.cluster.list(JOB, self.settings.namespace, {**self._mine(), JOB_NAME: name}).items
        for gang in {job["metadata"]["name"] for job in jobs} | {note.name for note in self.notes.of(name) if not note.ended}:
            self._delete(gang)

    def live(self) -> list[str]:
        """Return the jobs of the line whose Volcano Jobs exist and are not being deleted.

        Ended jobs that were not observed since are included. Pools and network policies of gangs that no longer exist are deleted.
        """
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
        """Delete a gang: first its pool, which costs most, then the Job.

        After a crash in between, the Job is still found. The pods get SIGTERM and write a checkpoint together within their grace
        period. Therefore the network policy between them stays until they are gone (see `live`).
        """
        if self.settings.pool.kind == "static":
            self.cluster.delete(NODE_POOL, gang)
        self.cluster.delete(JOB, gang, self.settings.namespace)


def _job_name(job: Object) -> str:
    labels: dict[str, Any] = job["metadata"].get("labels", {})
    return str(labels.get(JOB_NAME, job["metadata"]["name"]))


def refuse_what_cannot_be_metered(settings: ClusterSettings, profile: Profile) -> None:
    """Raise Permanent if a cap is set but the machines' price is unknown, because the cap would never be reached."""
    if (settings.cap_run or settings.cap_month) and price_of(profile, settings.pool.capacity) is None:
        types = ", ".join(profile.instance_types) or "any machine"
        raise Permanent(f"cluster.cap_run: the price table has no price for {types}; add it to k8s/gangs/prices.json, or remove the cap")
