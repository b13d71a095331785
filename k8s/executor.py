"""`Executor` on a Kubernetes cluster: an attempt of a plan as a gang of pods, a Volcano Job.

Volcano restarts a gang that lost a pod, whole and by itself; its incarnation is then the Job's first one plus the restarts that the
pods' annotation tells. Words and checkpoints come over the shared volume (contracts/runfolder.py), states from the API server.
What was submitted is noted in the run folder before it is asked for, so that a repeat, or a later version of ours that would render
it differently, finds it. It never decides to make another attempt.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contracts.cluster import ClusterSettings
from contracts.errors import Permanent, Retryable
from contracts.exits import Outcome
from contracts.files import FolderArtifacts, write_atomic
from contracts.ids import canonical
from contracts.jsonfile import read_json
from contracts.runfolder import BEAT, ENDED, RunFolders, disk, ended_status, incarnations, status
from contracts.training import JobEvent, JobSpec, JobState, JobStatus, ResumePoint
from k8s import gangs
from k8s.client import JOB, NETWORK_POLICY, NODE_CLAIM, NODE_POOL, POD, Cluster, Object, Taken
from k8s.gang import GANG, JOB_NAME, LINE, RATCHET, Ground, render
from k8s.gangs import Gang, State
from k8s.guardian import Guardian, Look
from k8s.meter import Meter, count, price_of
from k8s.network import opening
from k8s.objects import VolcanoJob, manifest
from k8s.pools import static_pool
from k8s.profile import Profile

NOTES, METER = "cluster.json", "meter.json"
"""In the run folder: the Jobs that were asked for, and what they have cost."""
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
        self.guardian = Guardian(cluster, settings, self._beats)
        self._lock = threading.Lock()
        self._looked = -LOOK_SECONDS
        self._looks: dict[str, Look] = {}

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        with disk(f"submit {spec.name}"):
            run = self.folders.claim(spec)
            note = self._asked(run, incarnation)
            if note is None and self._begun(spec, run, incarnation):
                return
            if note is None:
                self._afford(spec)
                self._wait_for_room(spec)
                self.folders.lay_out(spec, self.artifacts)
                note = self._note(run, render(spec, self._ground(spec), incarnation), incarnation)
        self._create(note)

    def _begun(self, spec: JobSpec, run: Path, incarnation: int) -> bool:
        """Whether this incarnation, or a later one, was started before. Retryable while an older one has still to end."""
        if self._newest(run)[0] >= incarnation:
            return True
        now = self.observe(spec.name)
        if now.state in (JobState.ABSENT, JobState.ENDED):
            return now.incarnation >= incarnation
        if now.incarnation < incarnation:
            raise Retryable(f"{spec.name}: incarnation {now.incarnation} has not ended; {incarnation} begins when it has")
        return True

    def _asked(self, run: Path, incarnation: int) -> Object | None:
        """The Job that was asked for as this incarnation and never seen: we died in between, or it did not begin."""
        note = next((note for note in self._notes(run) if note["incarnation"] == incarnation), None)
        begun = note is not None and (run / f"i{incarnation}").exists()
        return None if note is None or begun or note.get("ended") else note

    def _ground(self, spec: JobSpec) -> Ground:
        return Ground(
            line=self.line,
            settings=self.settings,
            profile=self.profile,
            plan_folder=self.folders.plan_folder(spec),
            artifacts=self.artifacts.root,
            max_restarts=self.max_restarts,
        )

    def _afford(self, spec: JobSpec) -> None:
        refuse_what_cannot_be_metered(self.settings, self.profile)
        cap = self.settings.cap_month
        if cap is not None and (spent := self.spent(time.time())) >= cap:
            raise Permanent(
                f"the line has spent {spent:.2f} of its {cap:.2f} this month; {spec.name} is not started. Raise cluster.cap_month"
            )

    def _wait_for_room(self, spec: JobSpec) -> None:
        """One gang waits at a time: pods of several that cannot start make an autoscaler buy nodes for all of them, and each gets some."""
        waiting = [
            look
            for look in self.guardian.look()
            if look.state in (State.WAITING, State.HALF_PRESENT, State.RESTARTING) and look.gang.job != spec.name
        ]
        if waiting:
            raise Retryable(f"the gang {waiting[0].gang.name} waits for its nodes ({waiting[0].why}); {spec.name} comes after it")

    def _note(self, run: Path, job: VolcanoJob, incarnation: int) -> Object:
        note: Object = {"incarnation": incarnation, "name": job.metadata.name, "job": manifest(job), "at": time.time()}
        write_atomic(run / NOTES, canonical([*self._notes(run), note]))
        return note

    def _notes(self, run: Path) -> list[Object]:
        path = run / NOTES
        found: list[Object] = json.loads(path.read_bytes()) if path.exists() else []
        return found

    def _create(self, note: Object) -> None:
        """Pool and openings first, then the gang; each is found where it exists. A template that the API server would refuse is refused
        here: the Job's own definition accepts it, and hangs."""
        job = note["job"]
        if self.cluster.get(JOB, note["name"], self.settings.namespace) is not None:
            return
        for task in job["spec"]["tasks"]:
            meta = task["template"]["metadata"] | {"name": f"{note['name']}-{task['name']}-dry", "namespace": self.settings.namespace}
            self.cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": task["template"]["spec"]}, dry_run=True)
        if self.settings.pool.kind == "static":
            self._wait_for_old_pool(note["name"])
            self.cluster.apply(NODE_POOL, manifest(static_pool(note["name"], job["spec"]["minAvailable"], self.settings, self.profile)))
        self.cluster.apply(NETWORK_POLICY, manifest(opening(note["name"], self.settings.namespace)))
        with contextlib.suppress(Taken):  # by another of us, or ourselves before a crash
            self.cluster.create(JOB, job)

    def _wait_for_old_pool(self, name: str) -> None:
        """Karpenter counts nodes that still go against the limit of a new pool of their name, and leaves it below its size for good."""
        pool = self.cluster.get(NODE_POOL, name)
        claims = self.cluster.list(NODE_CLAIM, labels={**RATCHET, GANG: name}).items
        going = [one for one in (pool, *claims) if one is not None and "deletionTimestamp" in one["metadata"]]
        if going or (pool is None and claims):
            raise Retryable(f"an earlier pool {name} still goes, or {len(claims)} of its nodes do; the gang comes after them")

    def observe(self, name: str) -> JobStatus:
        with disk(f"observe {name}"):
            spec = self.folders.spec(name)
            run = self.folders.run(spec) if spec else None
            notes = self._notes(run) if run else []
            if run is None or not notes:
                return JobStatus(state=JobState.ABSENT)
            note = notes[-1]
            look = None if note.get("ended") else self._look(note["name"])
            if look is not None and look.state is not State.ENDED:
                return self._alive(run, note, look)
            if look is None and not note.get("ended") and self.cluster.get(JOB, note["name"], self.settings.namespace) is not None:
                return JobStatus(state=JobState.PENDING, incarnation=self._newest(run)[0])  # newer than our mirror
            return self._ended(run, note, look)

    def _alive(self, run: Path, note: Object, look: Look) -> JobStatus:
        number = max(self._newest(run)[0], note["incarnation"] + (look.gang.version or 0))
        meter = self._metered(run)
        if self.settings.cap_run is not None and meter.cost >= self.settings.cap_run and not note.get("stop"):
            self._stop(run, f"stopped with a checkpoint at its cap: {meter.cost:.2f} of {self.settings.cap_run:.2f}")
        elif self.settings.cap_month is not None and self.spent(time.time()) >= self.settings.cap_month and not note.get("stop"):
            self._stop(run, f"stopped with a checkpoint: the line has spent its {self.settings.cap_month:.2f} of this month")
        elif meter.started is None and meter.waited > self.settings.pending and not note.get("stop"):
            self._stop(run, f"not started within {self.settings.pending:g} s: {look.why}", Outcome.LOST)
        elif look.broken > self.settings.pending and not note.get("stop"):
            self._stop(run, f"not whole again within {self.settings.pending:g} s: {look.why}", Outcome.LOST)
        running = look.state in (State.WHOLE, State.HALF_ALIVE)
        seen = status(run / f"i{number}", number, JobState.RUNNING if running else JobState.PENDING)
        return seen.model_copy(update={"reason": "" if running else look.why, "usage": meter.usage})

    def _stop(self, run: Path, why: str, outcome: Outcome = Outcome.PERMANENT) -> None:
        notes = self._notes(run)
        notes[-1] |= {"stop": why, "outcome": outcome.value}
        write_atomic(run / NOTES, canonical(notes))
        self._delete(notes[-1]["name"])

    def _ended(self, run: Path, note: Object, look: Look | None) -> JobStatus:
        """By the words of its newest incarnation, if it left any. The Job may be gone: nothing is left of one that has ended."""
        number, folder = self._newest(run)
        ended = read_json(folder / ENDED) if number >= note["incarnation"] else None
        if note.get("stop"):
            ended = {"outcome": note["outcome"], "reason": note["stop"]}
        if ended is None:
            why = f"its Job ended without a word ({look.why})" if look else "its Job is gone (deleted, or never accepted)"
            ended = {"outcome": Outcome.LOST.value, "reason": why}
        if not note.get("ended"):
            self._delete(note["name"])
            notes = self._notes(run)
            notes[-1] |= {"ended": True}
            write_atomic(run / NOTES, canonical(notes))
        last = ended_status(folder, max(number, note["incarnation"]), ended)
        return last.model_copy(update={"usage": self._metered(run).usage})

    def _newest(self, run: Path) -> tuple[int, Path]:
        """The newest incarnation that began, or was asked for."""
        begun = incarnations(run)
        asked = max((note["incarnation"] for note in self._notes(run)), default=0)
        number = max([asked, *(number for number, _ in begun)])
        return number, run / f"i{number}"

    def guard(self) -> list[str]:
        """One look at all gangs of the namespace, for whoever watches while the service is away: what was mended, in words."""
        with self._lock:
            return self._refresh()

    def _refresh(self) -> list[str]:
        looks = self.guardian.look()
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
        price = price_of(self.profile, self.settings.pool.capacity) or 0.0
        for look in self._looks.values():
            spec = self.folders.spec(look.gang.job) if look.state is not State.ENDED else None
            if spec is not None:
                run = self.folders.run(spec)
                write_atomic(run / METER, canonical(count(self._metered(run), look.gang, look.state, time.time(), price)))

    def _metered(self, run: Path) -> Meter:
        path = run / METER
        return Meter.model_validate_json(path.read_bytes()) if path.exists() else Meter()

    def meter(self, name: str) -> Meter:
        """What a job has cost so far; nothing for an unknown one."""
        spec = self.folders.spec(name)
        return self._metered(self.folders.run(spec)) if spec else Meter()

    def spent(self, now: float) -> float:
        """By the line's jobs that began in the calendar month (UTC) of `now`, in the price table's currency."""
        month = datetime.fromtimestamp(now, UTC).strftime("%Y-%m")
        found = 0.0
        for name in self.folders.names():
            spec = self.folders.spec(name)
            run = self.folders.run(spec) if spec else None
            notes = self._notes(run) if run else []
            if run is not None and notes and datetime.fromtimestamp(notes[0]["at"], UTC).strftime("%Y-%m") == month:
                found += self._metered(run).cost
        return found

    def _beats(self, gang: Gang) -> Mapping[str, str]:
        """Of the processes of a gang's newest incarnation, over the volume."""
        spec = self.folders.spec(gang.job)
        if spec is None:
            return {}
        run = self.folders.run(spec)
        first = next((note["incarnation"] for note in self._notes(run) if note["name"] == gang.name), 1)
        folder = run / f"i{first + (gang.version or 0)}"
        return {f"{folder.name}/{path.name}": path.read_text() for path in folder.glob(f"{BEAT}*")}

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        with disk(f"read the events of {name}"):
            return self.folders.events(name)[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        with disk(f"pin step {resume.step} of {spec.name}"):
            self.folders.pin(spec, resume)

    def cancel(self, name: str) -> None:
        for job in self.cluster.list(JOB, self.settings.namespace, {**RATCHET, JOB_NAME: name}).items:
            self._delete(job["metadata"]["name"])

    def live(self) -> list[str]:
        jobs = self.cluster.list(JOB, self.settings.namespace, {**RATCHET, LINE: self.line}).items
        return sorted(
            {_job_name(job) for job in jobs if gangs.phase_of(job) not in gangs.ENDED_PHASES and "deletionTimestamp" not in job["metadata"]}
        )

    def _delete(self, gang: str) -> None:
        """The gang and all that belongs to it. Its pods get SIGTERM and their grace, in which they write a checkpoint."""
        self.cluster.delete(JOB, gang, self.settings.namespace)
        self.cluster.delete(NETWORK_POLICY, gang, self.settings.namespace)
        if self.settings.pool.kind == "static":
            self.cluster.delete(NODE_POOL, gang)


def _job_name(job: Object) -> str:
    labels: dict[str, Any] = job["metadata"].get("labels", {})
    return str(labels.get(JOB_NAME, job["metadata"]["name"]))


def refuse_what_cannot_be_metered(settings: ClusterSettings, profile: Profile) -> None:
    """Permanent where a cap is set on machines whose price nobody knows: it would never be reached."""
    if (settings.cap_run or settings.cap_month) and price_of(profile, settings.pool.capacity) is None:
        types = ", ".join(profile.instance_types) or "any machine"
        raise Permanent(f"cluster.cap_run: the price table does not know {types}; add it to k8s/prices.json, or take the cap out")
