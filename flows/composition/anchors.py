"""Opens the store and the key of the ledger's signed exports, and verifies the whole ledger."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from ratchet.contracts.cycle import Head
from ratchet.contracts.errors import ConfigError, NewerRelease, Permanent, Retryable
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.contracts.ports import Ledger
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.core.anchors import Damage, Export, Unanchored, anchor_damage, chain_damage, unanchored
from ratchet.flows.ledger.anchor_key import AnchorKey
from ratchet.flows.ledger.anchors import Anchors, ExportStore, FolderExports


class BucketExports:
    """Exports in a bucket on S3, below a prefix. An existing object is never replaced.

    Raises ConfigError for an invalid URL. Credentials, region and endpoint follow the lookup order of the AWS SDK.
    """

    def __init__(self, url: str) -> None:
        from ratchet.runtime.bucket import Bucket

        try:
            self._bucket = Bucket(BucketSettings(url=url))
        except ValidationError as error:
            raise ConfigError(f"{variables.ANCHORS}={url!r} is not a URL of the form s3://BUCKET/PREFIX; correct it") from error
        self.where = url

    def names(self) -> list[str]:
        """Return the names of all objects below the prefix. Raises Retryable if the bucket cannot be reached."""
        return list(self._bucket.list(""))

    def get(self, name: str) -> bytes:
        """Return the content of an object. Raises Retryable if it cannot be read."""
        data = self._bucket.get(name)
        if data is None:
            raise Retryable(f"{self.where}/{name} was deleted in the meantime; run the command again")
        return data

    def add(self, name: str, data: bytes) -> None:
        """Write a new object. Raises Retryable if it cannot be written."""
        self._bucket.put_new(name, data)


def open_anchors(home: Home) -> Anchors:
    """Return the exports of the installation's ledger. Raises ConfigError if the URL of their bucket is invalid."""
    store: ExportStore = BucketExports(home.anchors) if home.anchors.startswith("s3://") else FolderExports(Path(home.anchors))
    return Anchors(store, AnchorKey(home.anchor_key))


class Verification(NamedTuple):
    """Result of the verification of a ledger."""

    heads: list[Head]
    """Last row of each stream."""
    damage: list[Damage]
    """Everything that contradicts the hash chains or the exports."""
    exports: int
    """Number of exports with a valid signature."""
    newest: Export | None
    """The newest export with a valid signature; None if there is none."""
    unanchored: list[Unanchored]
    """Rows that are newer than the newest export."""


def verify_ledger(ledger: Ledger, anchors: Anchors) -> Verification:
    """Verify the hash chains of all streams, the chain of exports, and the streams against all exports. Changes nothing."""
    exports, damage = anchors.read()  # first: the ledger then contains at least the exported rows
    heads = ledger.heads()
    hashes = {}
    broken: list[Damage] = []
    for head in heads:
        try:
            entries = ledger.read(head.stream)
        except NewerRelease:
            raise
        except Permanent as error:  # a row cannot be read
            broken.append(Damage(what="chain", where=head.stream, text=str(error)))
            continue
        broken += chain_damage(head.stream, entries)
        hashes[head.stream] = [entry.hash for entry in entries]
    known = {one.where for one in broken}
    differing = [one for one in anchor_damage(hashes, exports) if one.where not in known]
    newest = exports[-1] if exports else None
    return Verification(heads, [*broken, *differing, *damage], len(exports), newest, unanchored(heads, newest))
