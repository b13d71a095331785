"""Admits the decoded rows of one record. All dialects pass through here, also those of other packages.

A row that the role of its sender must not send is quarantined. A trace is marked as verified if the router has signed its span. Ids of
users and sessions become pseudonyms. Personal data in the texts is masked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from ratchet.contracts.data.decoding import Decoded, Kind, Row
from ratchet.contracts.data.records import ConsentSubject
from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import Rejected
from ratchet.materializer.privacy.search import Joined
from ratchet.runtime.secrets.pseudonyms import Subject

SIGNED = "signed"
"""Key of a trace row with (signed form, signature), which the OTLP dialect sets and `Admission` replaces by the column `verified`."""


DEFERRED = "deferred"
"""Key of a trace row with content that is stored only if another record of its batch consents; None for most rows. It is masked, too."""
HIDDEN: Mapping[str, Subject] = {ConsentSubject.USER: "u", ConsentSubject.USER_THIRD_PARTY: "u", ConsentSubject.SESSION: "s"}
"""Subjects of statements about consent whose id becomes a pseudonym."""


def unmasked(_row: Row) -> Counter[str]:
    """Leave the texts of a row as they are."""
    return Counter()


Findings: TypeAlias = Mapping[str, list[Any]]
"""Text -> what was found in it, for the texts with findings."""
Known: TypeAlias = Mapping[int, Findings]
"""Identity (`id`) of a row -> the findings in its texts, if they were searched."""


class Bulk(Protocol):
    """Masks rows after a search in the texts of many rows at once, which costs less. It finds the same as `Admission.mask`."""

    def search(self, rows: Sequence[Row]) -> Sequence[Findings] | None:
        """Return the findings in the texts of each row; None if the rows must be masked one by one."""

    def search_plain(self, joined: Joined, owners: Sequence[int], others: Mapping[int, Row]) -> Mapping[int, Findings] | None:
        """Return the findings of those plain rows that have any, by their number; None if each must be masked by itself.

        `joined` has their texts as `masking.contents` returns them, and `owners` the numbers of their rows. The columns of `others`, by
        their number, are read instead.
        """

    def mask(self, row: Row, known: Findings | None = None) -> Counter[str]:
        """Replace personal data in the texts of a row in place. Returns the number of replaced parts by kind."""


def never_signed(_form: bytes, _signature: str) -> bool:
    """Verify signatures without a key: none is valid."""
    return False


def in_clear(_subject: Subject, text: str) -> str:
    """Keep the id of a user or session. For tests of decoders only."""
    return text


@dataclass(frozen=True)
class Admission:
    """The rules for the rows of one batch."""

    sender: Sender | None = None
    """None is the operator, who may send any row."""
    is_signed: Callable[[bytes, str], bool] = never_signed
    """Whether a signature of the router is valid for the signed form of a span."""
    hide: Callable[[Subject, str], str] = in_clear
    """Returns the pseudonym of a user or session."""
    mask: Callable[[Row], Counter[str]] = unmasked
    """Replaces personal data in the texts of a row in place. Returns the number of replaced parts by kind."""
    bulk: Bulk | None = None
    """Does what `mask` does, if given."""

    def masked(self, row: Row, identity: int, known: Known) -> Counter[str]:
        """Mask a row in place. `identity` is that of the row when it was searched."""
        if self.bulk is None or identity not in known:
            return self.mask(row)
        findings = known[identity]
        return self.bulk.mask(row, findings) if findings else Counter()

    def hidden(self, subject: Subject, ids: Sequence[str | None]) -> list[str | None]:
        """Return the pseudonyms of ids; None stays None."""
        known = {one: self._hidden(subject, one) for one in set(ids)}
        return [known[one] for one in ids]

    def admit(self, found: Decoded, known: Known = MappingProxyType({})) -> None:
        """Complete the rows of `found`, and quarantine those that the sender must not send."""
        traces, feedback, consents = found.traces, found.feedback, found.consents
        found.traces, found.feedback, found.consents = [], [], []
        for row in traces:
            refused = self._refused_trace(row)
            if refused:
                found.reject("traces", row["position"], _not_allowed(refused))
            else:
                self._add("traces", found.traces, self._trace(row), found, id(row), known)
        halves, found.halves = found.halves, []
        for row in halves:
            if refused := self._refused_trace(row):
                found.reject("traces", row["position"], _not_allowed(refused))
            else:
                self._add("traces", found.halves, self._trace(row), found, id(row), known)
        if quarantined := len(halves) - len(found.halves):
            found.skipped["traces"]["content_not_captured"] -= quarantined
        for row in feedback:
            if self.sender is None or self.sender.may_send_feedback(row["kind"]):
                hidden = row | {"rater": self._hidden("u", row["rater"])}
                self._add("feedback", found.feedback, hidden, found, id(row), known)
            else:
                found.reject("feedback", row["position"], _not_allowed(f"feedback of the kind {row['kind']}"))

        for row in consents:
            if self.sender is None or self.sender.may_state_consent(row["given"]):
                subject = HIDDEN.get(row["subject"])
                found.consents.append(row | {"id": row["id"] if subject is None else self.hide(subject, row["id"])})
            else:
                found.reject("feedback", row["position"], _not_allowed("a consent" if row["given"] else "a refusal of consent"))

    def _add(self, kind: Kind, rows: list[Row], row: Row, found: Decoded, identity: int, known: Known) -> None:
        """Add the masked row. A row whose texts cannot be masked is quarantined."""
        try:
            found.masked += self.masked(row, identity, known)
            if (deferred := row.get(DEFERRED)) is not None:
                self.mask(deferred)
        except Rejected as error:
            found.reject(kind, row["position"], error)
        else:
            rows.append(row)

    def _refused_trace(self, row: Row) -> str | None:
        if self.sender is None:
            return None
        if not self.sender.may_send_traces():
            return "traces"
        references = {Role.TRACES, Role.OPERATOR} & set(self.sender.roles)
        return "references in traces" if row["reference"] is not None and not references else None

    def _trace(self, row: Row) -> Row:
        signed = row.get(SIGNED)
        made = dict(row)
        made.pop(SIGNED, None)
        made["verified"] = signed is not None and self.is_signed(*signed)
        made["user"], made["session"] = self._hidden("u", row["user"]), self._hidden("s", row["session"])
        return made

    def _hidden(self, subject: Subject, text: str | None) -> str | None:
        return None if text is None else self.hide(subject, text)


def _not_allowed(what: str) -> Rejected:
    return Rejected("role_not_allowed", f"{what} must not be sent with a credential of this role")
