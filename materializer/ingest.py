"""Ingest of one line: its rules, its keys, and its batches on their way to the lake."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ratchet.contracts.data.datasets import IngestReport, RawBatch
from ratchet.contracts.data.decoding import Limits
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.contracts.ports import Clock, Compute, Dialect
from ratchet.materializer.dialects.screening.sample import limits_of
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.lake.storing.ingest import commit, ingest_batch
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.privacy.masking import Masker
from ratchet.materializer.quarantine.replay import LakeQuarantine, Rules
from ratchet.materializer.quarantine.writing import Keeping
from ratchet.materializer.receive.files.source import open_file
from ratchet.materializer.workers.decoding import Begun, DecodeBatch, decoded_each, with_keys
from ratchet.runtime.collection import without_collection
from ratchet.runtime.secrets.keyring import Key, KeyFile
from ratchet.runtime.secrets.pseudonyms import Subject, pseudonym
from ratchet.runtime.secrets.sealed import NONCE, seal, unseal
from ratchet.runtime.secrets.span_signature import is_signed


@dataclass(frozen=True)
class IngestKeys:
    """The keys that ingest needs."""

    spans: KeyFile
    """Keys of the router's signatures."""
    users: KeyFile
    """Keys of the pseudonyms of users and sessions. The newest is used."""


class LineIngest:
    """Commits the batches of one line."""

    def __init__(
        self,
        lake: Lake,
        seen: DedupIndex,
        loop: Loop,
        clock: Clock,
        keys: IngestKeys,
        dialects: Mapping[str, Dialect],
        masker: Masker,
        compute: Compute,
    ) -> None:
        self._lake, self._seen, self._loop, self._clock, self._keys = lake, seen, loop, clock, keys
        self._dialects, self._masker, self._compute = dialects, masker, compute

    def each(self, batches: Iterable[RawBatch]) -> Iterator[IngestReport]:
        """Commit batches in their order, each exactly once. The engine decodes some of them ahead; only this process writes."""
        rules, function = self.rules(), DecodeBatch.of(self._loop.privacy, self._dialects)
        with_limits = ((batch, rules.limits(batch.source)) for batch in batches)
        for begun in decoded_each(self._compute, function, with_limits):
            yield self._commit(begun, rules)

    def _commit(self, begun: Begun, rules: Rules) -> IngestReport:
        batch, limits, decoded = begun
        keeping = Keeping(self._loop.quarantine, self._masker.masked_value, self._seal)
        if decoded is not None:
            with without_collection():
                known = with_keys(decoded, rules.hide, rules.is_signed)
                return commit(self._lake, self._seen, batch, *known, limits, hide=rules.hide, keeping=keeping)
        return ingest_batch(
            self._lake,
            self._seen,
            batch,
            limits,
            rules.dialects,
            is_signed=rules.is_signed,
            hide=rules.hide,
            mask=rules.mask,
            bulk=self._masker,
            keeping=keeping,
        )

    def quarantine(self) -> LakeQuarantine:
        """Return the quarantined records of the line, which are replayed by the same rules."""
        return LakeQuarantine(self._lake, self._seen, self._clock, self.rules, open_file)

    def rules(self) -> Rules:
        """Return the rules of the present time. Raises ConfigError without the key of the pseudonyms."""
        spans = self._keys.spans.keys()
        return Rules(
            limits=self._limits,
            dialects=self._dialects,
            is_signed=lambda form, signature: is_signed(form, signature, spans),
            hide=self._pseudonyms(),
            mask=self._masker.mask,
            unseal=lambda sealed: unseal(sealed, self._keys.users.keys()),
        )

    def _limits(self, source: str) -> Limits:
        return limits_of(self._loop, source, int(self._clock.now().timestamp() * 1_000_000))

    def _seal(self, data: bytes) -> bytes:
        return seal(data, self._user_key(), os.urandom(NONCE))

    def _user_key(self) -> Key:
        users = self._keys.users.keys().newest
        if users is None:
            raise ConfigError("the key file of the pseudonyms is missing or damaged; restore it from a backup, then try again")
        return users

    def _pseudonyms(self) -> Callable[[Subject, str], str]:
        users = self._user_key()
        return lru_cache(maxsize=100_000)(lambda subject, text: pseudonym(subject, text, users))  # one person sends many records
