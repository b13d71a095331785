"""Heartbeats of a gang's processes, from its run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from ratchet.contracts.errors import Retryable
from ratchet.k8s.gangs.gang_state import Gang
from ratchet.k8s.gangs.submissions import Submissions
from ratchet.k8s.storage.sync import Remote
from ratchet.runtime.jobs.job_protocol import incarnation_folder
from ratchet.runtime.jobs.run_folder import RunFolders, read_beats


class Heartbeats:
    """Reads the heartbeats of one line's gangs. With a bucket, it first downloads the run's small files."""

    def __init__(self, folders: RunFolders, submissions: Submissions, remote: Remote | None) -> None:
        self.folders, self.submissions, self.remote = folders, submissions, remote

    def __call__(self, gang: Gang) -> Mapping[str, str]:
        """Return the newest heartbeat per process of a gang's newest incarnation.

        Unreadable heartbeats give an empty mapping, so that no process counts as silent while the volume or the bucket is away.
        A file that is not a heartbeat, such as a FIFO or a link, counts as absent.
        """
        spec = self.folders.spec(gang.job)
        if spec is None or gang.installation != self.submissions.installation:
            return {}
        first = next((submission.incarnation for submission in self.submissions.of(gang.job) if submission.name == gang.name), 1)
        folder = self.folders.run(spec) / incarnation_folder(first + (gang.version or 0))
        with contextlib.suppress(OSError, Retryable):
            if self.remote:
                self.remote.pull(folder.parent)
            return {f"{folder.name}/{name}": beat for name, beat in read_beats(folder, spec.nodes).items()}
        return {}
