"""The init container of a model server: fetches the model of a version from the artifacts, and verifies every file.

Run: `python -m ratchet.k8s.pod.model DIGEST FOLDER`, with RATCHET_ARTIFACTS_URL in the environment.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.contracts.jobs.exit_codes import PERMANENT
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.bucket_artifacts import ARTIFACTS_URL, fetch_folder

TRIES, PAUSE = 30, 2.0
"""Number of tries while the bucket does not answer, and seconds between them. The kubelet then starts the container again."""


def main(arguments: Sequence[str]) -> int:
    """Fetch the folder with the digest DIGEST to FOLDER and return the exit code."""
    key, into = arguments
    bucket = Bucket(BucketSettings(url=os.environ[ARTIFACTS_URL]))
    for number in range(1, TRIES + 1):
        try:
            files = fetch_folder(bucket, key, Path(into))
        except Permanent as error:
            sys.stderr.write(f"{error}\n")
            return PERMANENT
        except Retryable as error:
            sys.stderr.write(f"try {number} of {TRIES}: {error}\n")
            time.sleep(PAUSE)
        else:
            sys.stdout.write(f"{len(files)} files of {key[:12]} are complete\n")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
