"""Senders of records: the roles of the receiver's credentials, and what a record of each role may contain."""

from __future__ import annotations

from enum import StrEnum

from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.model import Frozen


class Role(StrEnum):
    """Role of a credential of the receiver. It determines which records the credential may send."""

    ROUTER = "router"
    """The line's router: spans of the calls that it forwarded."""
    TRACES = "traces"
    """An application: spans of its own calls of a model."""
    FEEDBACK = "feedback"
    """An application: ratings, corrections and signals of its users, and their refusals of consent."""
    REVIEW = "review"
    """Reviewers: references, which may enter the holdout."""
    OPERATOR = "operator"
    """The operator: everything except what only the router may send. Ratings count for any trace."""


_OF_TRACES = frozenset({Role.ROUTER, Role.TRACES, Role.OPERATOR})
_OF_FEEDBACK = {
    FeedbackKind.RATING: frozenset({Role.FEEDBACK, Role.OPERATOR}),
    FeedbackKind.CORRECTION: frozenset({Role.FEEDBACK, Role.OPERATOR}),
    FeedbackKind.SIGNAL: frozenset({Role.FEEDBACK, Role.OPERATOR}),
    FeedbackKind.REFERENCE: frozenset({Role.REVIEW, Role.OPERATOR}),
    FeedbackKind.LOGGED: frozenset(),  # it comes with a trace, and ingest makes it
    FeedbackKind.TEACHER: frozenset(),  # only the service itself asks a teacher
}

_OF_CONSENT = frozenset({Role.TRACES, Role.OPERATOR})
_OF_REFUSALS = frozenset({Role.TRACES, Role.FEEDBACK, Role.OPERATOR})


class Sender(Frozen):
    """The credential with which a request was sent."""

    name: str
    """Name of the credential."""
    roles: tuple[Role, ...]
    trusted: bool = False
    """Whether its ratings and corrections count for traces of any user. Otherwise they count only for traces of the same user."""

    @property
    def label(self) -> str:
        """Return the roles and the name as one text, for example `traces+feedback/shop`."""
        return f"{'+'.join(self.roles)}/{self.name}"

    @classmethod
    def of_label(cls, label: str) -> Sender:
        """Return the sender with this label. It is not trusted, because a label does not say so. Raises ValueError for another text."""
        roles, _, name = label.partition("/")
        return cls(name=name, roles=tuple(Role(role) for role in roles.split("+") if role))

    @property
    def vouches(self) -> bool:
        """Whether its ratings and corrections count for traces of any user."""
        return self.trusted or Role.OPERATOR in self.roles

    def may_send_traces(self) -> bool:
        """Return whether the sender may send traces."""
        return not _OF_TRACES.isdisjoint(self.roles)

    @property
    def operates(self) -> bool:
        """Whether the consent that it states counts for traces of all senders. `trusted` does not suffice for this."""
        return Role.OPERATOR in self.roles

    def may_state_consent(self, given: bool) -> bool:
        """Return whether the sender may send a record that only states consent.

        A refusal only restricts the use of data. Consent needs a role that may send traces, and then counts for the sender's own traces.
        """
        return not (_OF_CONSENT if given else _OF_REFUSALS).isdisjoint(self.roles)

    def may_send_feedback(self, kind: str) -> bool:
        """Return whether the sender may send feedback of this kind, the value of a FeedbackKind."""
        return not _OF_FEEDBACK[FeedbackKind(kind)].isdisjoint(self.roles)
