"""Marks: digests by which rows of artifacts are recognised that stem from removed rows of the lake.

The rows of training sets and evaluations do not name a person. They are recognised by their texts. Marks are stored before anything is
deleted, so that an erasure that was interrupted can be completed when the texts are gone from the lake. They contain no text.
"""

from __future__ import annotations

import contextlib
import json

from ratchet.contracts.conversation import without_call_ids
from ratchet.contracts.ids import Digest, canonical, digest
from ratchet.contracts.model import Frozen


class Marks(Frozen):
    """Digests that recognise rows of artifacts."""

    texts: tuple[Digest, ...] = ()
    """Prompts, answers, references and corrections that occur in removed rows and in no other row of the lake."""
    traces: tuple[Digest, ...] = ()
    """`source/id` of the removed traces."""
    people: tuple[Digest, ...] = ()
    """The people's ids in `records.SAMPLES`, which are salted hashes of their pseudonyms."""
    evidence: tuple[Digest, ...] = ()
    """Prompt and answer of samples that rested on removed rows. Pairs and demonstrations that were made from them name nothing else."""

    def __or__(self, other: Marks) -> Marks:
        return Marks(
            texts=_union(self.texts, other.texts),
            traces=_union(self.traces, other.traces),
            people=_union(self.people, other.people),
            evidence=_union(self.evidence, other.evidence),
        )

    def __bool__(self) -> bool:
        return bool(self.texts or self.traces or self.people)


def _union(one: tuple[Digest, ...], other: tuple[Digest, ...]) -> tuple[Digest, ...]:
    return tuple(sorted({*one, *other}))


def text_mark(text: str) -> Digest:
    """Return the mark of a text."""
    return digest(text.encode("utf-8", "surrogatepass"))


def text_marks(text: str) -> set[Digest]:
    """Return the marks of all forms in which artifacts store a text: as it is, without call ids, and as canonical JSON."""
    forms = {text_mark(text), text_mark(without_call_ids(text))}
    if text.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            forms.add(digest(canonical(json.loads(text))))
    return forms


def evidence_mark(prompt_id: str, answer: str) -> Digest:
    """Return the mark of an answer to a prompt."""
    return text_mark(f"{prompt_id}\x1f{answer}")
