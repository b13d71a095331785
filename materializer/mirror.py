"""Chooses the prompts of a rollout that both versions are asked again.

A prompt may be asked if its content may be used for evaluation now: the rules of governance.py, with the present consent. The rules about
the answer are left out, because the choice must not depend on what a version answered. If prompts that a version failed on were left out,
nobody would see its failures. Only requests with an empty answer are missing, because ingest does not store them. For the same reason
users' corrections are no references here: users correct wrong answers.

The order is a keyed hash. The key is random, known to nobody who sends requests, and deleted at the end of the rollout. People whose
prompts were asked less often come first. Near-duplicates of a chosen prompt are left out, because their pairs are not independent.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import polars as pl
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, In, LessThan

from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.ids import digest, prompt_id, root_text
from ratchet.contracts.loop import Loop
from ratchet.contracts.mirror import MIRROR_SHARE, MirrorAsk, MirrorPrompt, MirrorPrompts
from ratchet.contracts.schema import stamped, unstamped
from ratchet.materializer.consent import refusing_users, settle, spoken
from ratchet.materializer.governance import Governed, govern, with_facts
from ratchet.materializer.labels.masked_answers import without_masked
from ratchet.materializer.labels.scores import attach, references
from ratchet.materializer.lake.tables import Lake, preferred
from ratchet.materializer.late_references import LateReferences
from ratchet.materializer.privacy.masked_values import placeholder_pattern
from ratchet.materializer.texts import InMemory
from ratchet.materializer.training_sets.near_duplicates import NearIndex, Shingler, signature
from ratchet.rewards.scorer_set import ScorerSet
from ratchet.runtime.documents import LAYOUT as DOCUMENTS
from ratchet.runtime.documents import Documents, FolderDocuments, copy_documents, open_documents
from ratchet.runtime.sql_store import StoreDatabase

_KEY = "mirror.json"
"""Document with the rollout's key: a file beside the tables, or a row in the database of the ledger."""
LAYOUT = replace(DOCUMENTS, name="mirror")
"""In Postgres, the schema of the line NAME is `ratchet_mirror_NAME`, so that a backup can leave it out."""
_ANYONE = "anonymous"
"""Person of all requests without user. They count as one, because anybody can send many of them, with sessions of his own choice."""
_PER_PERSON = 2
"""Maximum number of prompts of one person in a batch."""

_Known = tuple[str, str, dict[str, Any]]
"""(key, person, row) of a prompt."""


class MirrorReader:
    """Reads the prompts of a line's rollout from its lake.

    `rewards` are the scorers of the loop file, and `near` returns the arguments of `NearIndex`.
    """

    def __init__(self, lake: Lake, loop: Loop, rewards: ScorerSet, near: Callable[[], tuple[float, Shingler]]) -> None:
        self._lake = lake
        self._loop = loop
        self._rewards = rewards
        self._near = near
        self._placeholder = placeholder_pattern(loop.privacy)
        self._known: set[str] = set()  # users who do not wait any more
        self._begin: Any = None  # when the line's first trace was ingested

    def prompts(self, rollout: str, versions: tuple[str, ...], window: tuple[datetime, datetime], asks: MirrorAsk) -> MirrorPrompts:
        """Return the prompts that `asks` wants (see the port `Datasets`)."""
        key = self._key(rollout)
        name = digest(key)[:12]
        rows = self._rows(versions, window)
        if rows.is_empty():
            return MirrorPrompts(secret=name)
        known = [
            (_hash(key, "trace", f"{row['source']}\x1f{row['id']}"), _hash(key, "person", row["person"] or _ANYONE), row)
            for row in rows.iter_rows(named=True)
        ]
        if asks.only is not None:
            only = frozenset(asks.only)
            chosen: Iterator[_Known] = (one for one in known if one[0] in only)
        else:
            chosen = self._chosen(sorted(known, key=lambda one: one[0]), asks)
        return MirrorPrompts(secret=name, prompts=tuple(_prompt(*one) for one in chosen))

    def _key(self, rollout: str) -> bytes:
        """Return the key of a rollout. The first call for it makes the key, and replaces that of an earlier rollout."""
        documents = _documents(self._lake)
        content = documents.read(_KEY)
        if _parsed(content).get("rollout") != rollout:
            new = stamped({"rollout": rollout, "key": secrets.token_hex(32)})
            content = documents.change(_KEY, lambda known: known if _parsed(known).get("rollout") == rollout else new)
        return bytes.fromhex(_parsed(content)["key"])

    def _rows(self, versions: tuple[str, ...], window: tuple[datetime, datetime]) -> pl.DataFrame:
        """Return source, id, person, messages, tools and reference of the prompts that may be used and scored, one per distinct prompt."""
        since, until = (time.astimezone(UTC).isoformat() for time in window)
        within = And(GreaterThanOrEqual("time", since), LessThan("time", until))
        statements = self._lake.scan("consent")
        traces = preferred(settle(self._lake.scan("traces", where=And(within, EqualTo("origin", "traffic"))), statements))
        signed = pl.col("verified").fill_null(False) & pl.col("model_version").is_in(versions).fill_null(False)
        live = traces.filter(signed) if versions else traces
        blind = live.with_columns(status=pl.lit("ok"), answer=pl.lit("-"), finish_reason=pl.lit(None, dtype=pl.String))
        described = with_facts(self._settled_in(blind, window[1]), self._placeholder)
        later = self._lake.scan("feedback", where=And(EqualTo("kind", FeedbackKind.LOGGED.value), GreaterThanOrEqual("time", since)))
        governed = govern(LateReferences(later, self._placeholder).given_to(described, InMemory()), self._loop.governance)
        if governed.used.is_empty():
            return governed.used
        return self._with_references(governed, since, refusing_users(statements))

    def _settled_in(self, traces: pl.DataFrame, until: datetime) -> pl.DataFrame:
        """Return the traces without those of new users, whose ratings would wait, too (`snapshot.newcomer_days`).

        Otherwise somebody with many new ids could send most of the prompts that are asked. Users who came within this time after the line's
        first trace do not wait.
        """
        wait = timedelta(days=self._loop.snapshot.newcomer_days)
        users = [user for user in traces["user"].drop_nulls().unique().sort().to_list() if user not in self._known]
        if users:
            first = self._lake.scan("traces", ("user", "ingested"), where=In("user", users)).group_by("user").agg(pl.col("ingested").min())
            begin = self._begin = self._begin or self._lake.scan("traces", ("ingested",))["ingested"].min()
            old = first.filter((pl.col("ingested") <= until - wait) | (pl.col("ingested") <= pl.lit(begin) + wait))
            self._known |= set(old["user"].to_list())
        return traces.filter(pl.col("user").is_null() | pl.col("user").is_in(sorted(self._known)))

    def _with_references(self, governed: Governed, since: str, refusing: list[str]) -> pl.DataFrame:
        distinct = governed.used.select("messages", "tools")
        ids = [prompt_id(orjson.loads(text), orjson.loads(tools) if tools else ()) for text, tools in distinct.iter_rows()]
        identified = distinct.with_columns(pl.Series("prompt_id", ids, dtype=pl.String))
        said = And(EqualTo("kind", FeedbackKind.REFERENCE.value), GreaterThanOrEqual("time", since))
        feedback, _ = attach(spoken(self._lake.scan("feedback", where=said), refusing), governed.asked, governed)
        right = without_masked(feedback, governed, self._placeholder)
        known = references(_joined(governed.asked, identified), right).select("prompt_id", "reference")
        found = _joined(governed.used.drop("reference"), identified).join(known, on="prompt_id", how="left", maintain_order="left")
        scorable = found if self._rewards.without_reference() else found.filter(pl.col("reference").is_not_null())
        return scorable.select("source", "id", pl.col("user").alias("person"), "messages", "tools", "reference")

    def _chosen(self, known: list[_Known], asks: MirrorAsk) -> Iterator[_Known]:
        """Yield prompts in turns of people, those with the fewest turns first, and for each person in the order of the keys."""
        threshold, make = self._near()
        taken, index = Counter(asks.turns), NearIndex(threshold, make)
        for key, _, row in known:
            if key in asks.asked:
                text = self._text(row)
                index.add(key, signature(make(text)), text)
        waiting: dict[str, list[_Known]] = {}
        for one in reversed(known):
            if one[0] not in asks.asked:
                waiting.setdefault(one[1], []).append(one)
        here, left = Counter[str](), asks.limit
        while left and waiting:
            person = min(waiting, key=lambda name: (taken[name], waiting[name][-1][0]))
            if taken[person] + 1 > _PER_PERSON + MIRROR_SHARE * (taken.total() + 1):
                return  # the others have sent no more prompts yet
            one = waiting[person].pop()
            if not waiting[person]:
                del waiting[person]
            text = self._text(one[2])
            signed = signature(make(text))
            if index.near(text, signed):
                continue
            index.add(one[0], signed, text)
            taken[person] += 1
            here[person] += 1
            left -= 1
            if here[person] == _PER_PERSON:
                waiting.pop(person, None)
            yield one

    def _text(self, row: dict[str, Any]) -> str:
        return root_text(orjson.loads(row["messages"]), self._loop.holdout.skipped)


def forget_key(lake: Lake) -> None:
    """Delete the key of the last rollout. Its rows in the ledger can then be joined to nobody any more."""
    documents = _documents(lake)
    if documents.read(_KEY) is not None:
        documents.change(_KEY, lambda _: None)


def copy_key(folder: Path, database: StoreDatabase) -> None:
    """Move the key from the file of an earlier release, beside the tables, to the database, unless that has a key."""
    file = FolderDocuments(folder)
    if file.read(_KEY) is not None:
        copy_documents(file, open_documents(folder, database, "", LAYOUT), [_KEY])
        file.change(_KEY, lambda _: None)  # otherwise a key that is forgotten later would come back


def _documents(lake: Lake) -> Documents:
    return open_documents(lake.root, lake.place.database, "", LAYOUT)


def _parsed(content: bytes | None) -> dict[str, str]:
    """Return the stored key and its rollout; nothing if there is none, or if it is damaged."""
    try:
        return {} if content is None else unstamped(content, "mirror key")
    except ValueError:
        return {}


def _hash(key: bytes, kind: str, text: str) -> str:
    return hmac.digest(key, f"{kind}\x1f{text}".encode(), "sha256").hex()[:16]


def _joined(rows: pl.DataFrame, identified: pl.DataFrame) -> pl.DataFrame:
    return rows.join(identified, on=["messages", "tools"], how="left", nulls_equal=True, maintain_order="left")


def _prompt(key: str, person: str, row: dict[str, Any]) -> MirrorPrompt:
    tools = orjson.loads(row["tools"]) if row["tools"] else ()
    return MirrorPrompt(
        key=key, person=person, messages=tuple(orjson.loads(row["messages"])), tools=tuple(tools), reference=row["reference"]
    )
