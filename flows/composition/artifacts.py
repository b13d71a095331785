"""Opens the artifacts of an installation: a folder of the home, or a bucket with a copy in that folder."""

from __future__ import annotations

import os

from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.flows.config.home import Home
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.bucket_artifacts import ARTIFACTS_URL, BucketArtifacts


def open_artifacts(home: Home) -> FolderArtifacts:
    """Open the installation's artifact store. Raises ConfigError if RATCHET_ARTIFACTS_URL is not a URL of a bucket."""
    url = os.environ.get(ARTIFACTS_URL)
    if not url:
        return FolderArtifacts(home.artifacts)
    from ratchet.runtime.bucket import Bucket

    try:
        return BucketArtifacts(Bucket(BucketSettings(url=url)), home.artifacts)
    except ValidationError as error:
        raise ConfigError(f"{ARTIFACTS_URL}={url!r} is not a URL of the form s3://BUCKET/PREFIX; correct it") from error
