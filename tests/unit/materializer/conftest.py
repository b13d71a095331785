"""Helpers for the materializer tests: small loop files, a clock, and datasets in a temporary folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.loop import Loop
from ratchet.contracts.moment import Moment
from ratchet.contracts.ports import Compute
from ratchet.contracts.schema import stamped
from ratchet.materializer.consent import settle
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.governance import Governed, govern, with_facts
from ratchet.materializer.ingest import IngestKeys
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.materializer.privacy.masked_values import placeholder_pattern
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.secrets.files import create_secret
from ratchet.runtime.secrets.keyring import Key, KeyFile, Keyring, ensure_keyring
from ratchet.runtime.secrets.pseudonyms import Subject, pseudonym
from ratchet.runtime.secrets.span_signature import SIGNATURE, SPAN_KEYS, signature_of, signed_form
from tests.needs import shared_data
from tests.unit.materializer.records import attribute

NOW = datetime(2026, 11, 1, tzinfo=UTC)


class SteppingClock:
    """Advances by one second each time it is read."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time

    def moment(self) -> Moment:
        return Moment(self.now().timestamp())

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def make_loop(**more: Any) -> Loop:
    """A loop with a JSONL source and an OTLP source, without development prompts (few records are enough). `more` replaces fields."""
    fields: dict[str, Any] = {
        "line": {"name": "math", "served_model": "m"},
        "sources": [{"name": "app", "kind": "jsonl", "path": "app"}, {"name": "gateway", "kind": "otlp", "path": "otlp"}],
        "rewards": [{"name": "final_number"}, {"name": "user_feedback"}],
        "holdout": {},
    }
    fields |= more
    return Loop.model_validate({**fields, "holdout": {"development": 0, **fields["holdout"]}})


def span_keys(folder: Path) -> KeyFile:
    """The keys of the router whose spans the datasets in `folder` verify."""
    ensure_keyring(folder / SPAN_KEYS, NOW)
    return KeyFile(folder / SPAN_KEYS)


def ingest_keys(folder: Path) -> IngestKeys:
    """The keys of the datasets in `folder`."""
    same = Key(id=1, secret="5e" * 32, created=NOW)  # equal records give equal content in every folder
    create_secret(folder / "user-keys.json", stamped(Keyring(keys=(same,))))
    return IngestKeys(span_keys(folder), KeyFile(folder / "user-keys.json"))


def pseudonym_of(datasets: LakeDatasets, subject: Subject, text: str) -> str:
    """The pseudonym that `datasets` store for the id of a user or session."""
    key = datasets.keys.users.keys().newest
    assert key is not None
    return pseudonym(subject, text, key)


def signed(folder: Path, item: dict[str, Any]) -> dict[str, Any]:
    """The span with the signature of the router, as it is after a change by `|`."""
    values = Attributes(item["attributes"]).plain()
    times = int(item["startTimeUnixNano"]), int(item["endTimeUnixNano"])
    form = signed_form(item["traceId"], item["spanId"], *times, item["status"].get("code") == 2, values)
    key = span_keys(folder).keys().newest
    assert key is not None
    return item | {"attributes": [*item["attributes"], attribute(SIGNATURE, signature_of(form, key))]}


def make_datasets(folder: Path, loop: Loop | None = None, compute: Compute | None = None, place: LakePlace | None = None) -> LakeDatasets:
    """The datasets of `loop`, stored below `folder`, with the engine `compute`. The lake is at `place`, by default in the folder."""
    loop = loop or make_loop()
    return LakeDatasets(
        place or folder / "lake",
        loop,
        folder,
        build_scorer_set(loop.rewards),
        FolderArtifacts(folder / "artifacts"),
        SteppingClock(),
        ingest_keys(folder),
        compute=compute,
    )


@pytest.fixture(scope="session")
def traces() -> Path:
    """The shared GSM8K traces."""
    return shared_data("gsm8k_traces")


def governed_by_rules(datasets: LakeDatasets, traces: pl.DataFrame) -> Governed:
    """Apply the rules to stored traces with their present consent."""
    settled = settle(traces, datasets.lake.scan("consent"))
    return govern(with_facts(settled, placeholder_pattern(datasets.loop.privacy)), datasets.loop.governance)
