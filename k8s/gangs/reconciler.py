"""Keeps a line's gangs within their limits: lets the guardian act, meters, stops gangs at caps and time limits, and ends gangs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.k8s.gangs.collector import GangCollector
from ratchet.k8s.gangs.gang_objects import GangObjects
from ratchet.k8s.gangs.gang_state import GangState
from ratchet.k8s.gangs.guardian import GangObservation, Guardian
from ratchet.k8s.gangs.meter import Meter, count
from ratchet.k8s.gangs.observer import STARTED, GangObserver
from ratchet.k8s.gangs.submissions import Submission
from ratchet.k8s.storage.sync import Remote
from ratchet.runtime.jobs.run_folder import RunFolders, disk
from ratchet.runtime.moments import steady_time

ROUND_SECONDS = 1.0
"""Minimum seconds between two rounds of the guardian. Calls within this time share one round."""


class GangReconciler:
    """Reconciles the gangs of one line. `price` is the price of a node and hour, and `report` receives the guardian's reports."""

    def __init__(
        self,
        settings: ClusterSettings,
        folders: RunFolders,
        objects: GangObjects,
        observer: GangObserver,
        guardian: Guardian,
        collector: GangCollector,
        remote: Remote | None,
        price: float,
        report: Callable[[str], None],
    ) -> None:
        self.settings, self.folders, self.submissions, self.remote = settings, folders, observer.submissions, remote
        self.objects, self.observer, self.guardian, self.collector = objects, observer, guardian, collector
        self.price, self.report = price, report
        self._lock = threading.Lock()
        self._observed_at = -ROUND_SECONDS
        self._observations: dict[str, GangObservation] = {}

    def reconcile(self, name: str) -> None:
        """Do what is due for a job's newest gang, and delete the remains of its gangs that are gone."""
        with disk(f"reconcile {name}"):
            spec, submission = self.folders.spec(name), self.observer.newest_submission(name)
            if spec is None or submission is None or submission.ended:
                return self.objects.collect(name)
            run, observation = self.folders.run(spec), self._newest_observation(submission.name)
            if observation is not None and observation.state is not GangState.ENDED:
                return self._keep(name, run, submission, observation)
            if observation is None and self.observer.exists(submission):
                return None  # newer than the last round, or its pods are terminating
            self.collector.end(spec, run, submission, observation)
            return self.objects.collect(name)

    def _keep(self, name: str, run: Path, submission: Submission, observation: GangObservation) -> None:
        """Record what the gang has reached, and stop it at a limit. A stop that was recorded before a crash is carried out."""
        with contextlib.suppress(Retryable):  # caps and limits apply even while the bucket is unreachable
            if self.remote:
                self.remote.pull(run)
        number = max(self.observer.newest(name, run)[0], submission.incarnation + (observation.gang.version or 0))
        waits = None if observation.state in STARTED else submission.waits or steady_time()
        if (True, number, waits) != (submission.created, submission.seen, submission.waits):
            self.submissions.change(name, submission.name, created=True, seen=number, waits=waits)
        stop = None if submission.stop else self._stop_for(self.submissions.meter(name), waits, observation)
        if stop is not None:
            self.submissions.stop(name, submission.name, *stop)
        if submission.stop or stop is not None:
            self.objects.delete(submission.name)

    def _stop_for(self, meter: Meter, waits: float | None, observation: GangObservation) -> tuple[str, Outcome] | None:
        """Return the reason and the outcome if the executor must stop the gang, else None."""
        caps, limit = self.settings, self.settings.pending
        death = self.observer.newest_death(observation.gang)
        why = "; ".join(filter(None, ["" if waits is None else observation.why, death])) or observation.why
        if caps.cap_run is not None and meter.cost >= caps.cap_run:
            return f"stopped with a checkpoint: the attempt reached its cap, {meter.cost:.2f} of {caps.cap_run:.2f}", Outcome.PERMANENT
        if caps.cap_month is not None and self.submissions.spent(time.time()) >= caps.cap_month:
            return f"stopped with a checkpoint: the line reached its cap of {caps.cap_month:.2f} for this month", Outcome.PERMANENT
        if observation.broken > limit or (waits is not None and steady_time() - waits > limit):
            ran = meter.started is not None or meter.lost or meter.preemptions  # a round may miss a short time in which it is whole
            again = " again" if ran else ""
            return f"not whole{again} within {limit:g} s: {why}", Outcome.LOST
        return None

    def guard(self) -> list[str]:
        """Observe all gangs of the installation once, repair and meter them, and return reports of what was done."""
        with self._lock:
            return self._round()

    def _newest_observation(self, name: str) -> GangObservation | None:
        """Return the newest observation of a gang, or None if its Job does not exist.

        A gang that was absent in the last round may exist now, so there is another round before it counts as gone.
        """
        with self._lock:
            if time.monotonic() - self._observed_at >= ROUND_SECONDS or name not in self._observations:
                for message in self._round():
                    self.report(message)
            return self._observations.get(name)

    def _round(self) -> list[str]:
        """Observe, repair and meter this installation's gangs only. Other installations in the namespace have their own guardians."""
        ours = self.submissions.installation
        observations = [observation for observation in self.guardian.observe_gangs() if ours and observation.gang.installation == ours]
        repairs = self.guardian.repair(observations)
        self._observations, self._observed_at = {observation.gang.name: observation for observation in observations}, time.monotonic()
        self._count()
        return repairs

    def _count(self) -> None:
        """Update the stored meters and pod failures of all observed gangs, so that they are available after the gang is gone."""
        for observation in self._observations.values():
            gang, state = observation.gang, observation.state
            self.submissions.died(gang.name, *self.guardian.informers.death(gang.name))
            if state is not GangState.ENDED:
                machines = self.guardian.informers.machines(gang.name) | self.guardian.free(gang, state)
                counted = partial(count, gang=gang, state=state, now=steady_time(), price=self.price, machines=machines)
                self.submissions.measure(gang.job, counted)
