"""The places where libraries write the consents, user, session, region, slice, confidentiality and reference of a call.

A place is the beginning of a key: `ai.telemetry.metadata` has `ai.telemetry.metadata.userId`, and the same names in an object, or in the
JSON text of one, under its own key. The rest of the key is compared without case, dots, dashes and underscores.

A refusal counts from every place, also from one that is not in the table if the last part of its key is `consent`. A consent counts only
from the places that the loop file names. docs/howto/connect-an-application.md has the same table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

Fact: TypeAlias = Literal[
    "consent", "opt_out", "consent_time", "third_party", "user", "session", "region", "slice", "confidentiality", "reference"
]

PLAIN = "plain"
"""Name of the place whose keys have no beginning, for example `user.id`, `session_id` and `consent`."""
RESOURCE = "resource"
"""Beginning of the names of places in the attributes of an OpenTelemetry resource, for messages."""

PEOPLE = frozenset[Fact]({"consent", "consent_time", "third_party", "user", "session"})
DESCRIBED = PEOPLE | frozenset[Fact]({"region", "slice", "confidentiality"})
ALL = DESCRIBED | frozenset[Fact]({"reference"})


class FactPlace(NamedTuple):
    """A beginning of keys, and what is read from it."""

    name: str
    used_by: str
    facts: frozenset[Fact] = ALL
    """A reference is evidence, so it is not read where a key is too general to mean the right answer."""


PLACES: tuple[FactPlace, ...] = (
    FactPlace("metadata", "Ratchet; OpenInference; LiteLLM; Langfuse's exports (the observation's metadata)"),
    FactPlace("langfuse.observation.metadata", "Langfuse SDK 3 to 5"),
    FactPlace("langfuse.trace.metadata", "Langfuse SDK 3 to 5"),
    FactPlace("langfuse.trace", "Langfuse SDK 3 to 5", PEOPLE),
    FactPlace("langfuse", "Langfuse SDK 3 to 5 (`langfuse.user.id`, `langfuse.session.id`)", PEOPLE),
    FactPlace("traceloop.association.properties", "OpenLLMetry"),
    FactPlace("ai.telemetry.metadata", "Vercel AI SDK"),
    FactPlace("ai.settings.context", "Vercel AI SDK 7 (context of a call)"),
    FactPlace("gcp.vertex.agent", "Agent Development Kit (`gcp.vertex.agent.session_id`)", PEOPLE),
    FactPlace("langsmith.metadata", "LangSmith"),
    FactPlace("langsmith.trace.metadata", "LangSmith"),
    FactPlace("langsmith.trace", "LangSmith (`langsmith.trace.session_id`)", PEOPLE),
    FactPlace("mlflow.trace.metadata", "MLflow"),
    FactPlace("mlflow.traceMetadata", "MLflow"),
    FactPlace("mlflow.trace.tag", "MLflow"),
    FactPlace("mlflow.trace", "MLflow (`mlflow.trace.user`, `mlflow.trace.session`)", PEOPLE),
    FactPlace("mlflow", "MLflow", PEOPLE),
    FactPlace("metadata.requester_metadata", "LiteLLM"),
    FactPlace("requester_metadata", "LiteLLM"),
    FactPlace("metadata.spend_logs_metadata", "LiteLLM"),
    FactPlace("metadata.user_api_key_metadata", "LiteLLM", PEOPLE),
    FactPlace("metadata.user_api_key_auth_metadata", "LiteLLM", PEOPLE),
    FactPlace("model_parameters.metadata", "LiteLLM"),
    FactPlace("trace.metadata", "exports of Langfuse with their trace"),
    FactPlace("traceMetadata", "exports of Langfuse with their trace"),
    FactPlace("trace_metadata", "exports of Langfuse with their trace"),
    FactPlace("trace", "exports of Langfuse with their trace", PEOPLE),
    FactPlace("baggage", "OpenTelemetry baggage, Logfire"),
    FactPlace("baggage_conflict", "Logfire"),
    FactPlace("llm.invocation_parameters.metadata", "OpenInference"),
    FactPlace("gen_ai.request.metadata", "OpenLLMetry"),
    FactPlace("llm.invocation_parameters", "OpenInference (`user` of a request to OpenAI)", PEOPLE),
    FactPlace("gen_ai.request", "OpenLLMetry (`gen_ai.request.user`)", PEOPLE),
    FactPlace("gen_ai.openai.request", "OpenTelemetry", PEOPLE),
    FactPlace("gen_ai", "OpenTelemetry (`gen_ai.conversation.id`)", PEOPLE),
    FactPlace("llm", "OpenLLMetry, LiteLLM (`llm.user`)", PEOPLE),
    FactPlace(PLAIN, "OpenTelemetry (`user.id`, `enduser.id`, `session.id`); pydantic-ai and Logfire; Strands; JSON Lines", DESCRIBED),
)
"""All places, the most reliable first: of two users that a record names, the one of the first place counts. Plain keys come before all
others for users and sessions."""

_NAMES: Mapping[str, Fact] = {
    "consent": "consent",
    "consenttime": "consent_time",
    "consentthirdparty": "third_party",
    **dict.fromkeys(
        ("userid", "user", "enduserid", "enduser", "enduserpseudoid", "userapikeyenduserid", "langfuseuserid", "safetyidentifier"), "user"
    ),
    **dict.fromkeys(("sessionid", "session", "conversationid", "threadid", "chatid", "langfusesessionid"), "session"),
    "region": "region",
    "slice": "slice",
    "confidentiality": "confidentiality",
    "reference": "reference",
}
"""Rest of a key, without case and separators -> what it says."""

_ALLOWS = frozenset(
    (
        *("allowtraining", "trainingallowed", "traininggranted", "trainingoptin", "optin", "optedin", "canbeusedfortraining"),
        *("useformodeltraining", "usefortraining", "allowmodeltraining", "modeltrainingallowed", "datasharing"),
    )
)
"""Keys whose value refuses a training if it is false. No place has their names, so that they never agree."""
_OPT_OUT = frozenset(
    (
        *("optout", "optedout", "trainingoptout", "optoutoftraining", "optouttraining"),
        *("donottrain", "donottraining", "notraining", "notrain"),
        *("excludefromtraining", "noconsent", "withoutconsent", "consentwithdrawn", "consentrevoked", "consentdenied", "consentrefused"),
    )
)
"""Keys whose value refuses a training unless it is false."""

_RANKS: Mapping[str, int] = {place.name: rank for rank, place in enumerate(PLACES)}
ROOTS = frozenset(place.name.partition(".")[0] for place in PLACES)
"""First parts of the names of all places."""
_SEPARATORS = re.compile(r"[._\- ]")


class Meaning(NamedTuple):
    """What a key says, or which place it opens."""

    place: str
    rank: int
    fact: Fact | None
    """None: the value is an object, or the JSON text of one, with the names of the place."""


@lru_cache(maxsize=8192)
def meaning(key: str) -> Meaning | None:
    """Return what the value of a key says; None if it says nothing of the table."""
    if key in _RANKS and key != PLAIN and named(key) is None:
        return Meaning(key, _RANKS[key], None)
    head = key
    while "." in head:
        head = head.rpartition(".")[0]
        rank = _RANKS.get(head)
        fact = None if rank is None else named(key[len(head) + 1 :])
        if rank is not None and fact in PLACES[rank].facts:
            return Meaning(head, rank, fact)
    fact = named(key)
    if fact in DESCRIBED:
        people = fact in ("user", "session")
        return Meaning(PLAIN, -1 if people else _RANKS[PLAIN], fact)
    place, _, last = key.rpartition(".")
    if named(last) == "consent":
        return Meaning(place, len(PLACES), "consent")
    # `user_consent` and `hasConsent` may refuse, but no place of the loop file has their names, so that they never agree
    plain = _SEPARATORS.sub("", last).lower() if len(last) <= 64 else ""
    others = plain.endswith(("consent", "consentgiven")) and not plain.startswith(("require", "need", "ask", "no", "without"))
    if others or plain in _ALLOWS:
        return Meaning(key, len(PLACES), "consent")
    return Meaning(key, len(PLACES), "opt_out") if plain in _OPT_OUT else None


def named(text: str) -> Fact | None:
    """Return the fact with this name; None if there is none."""
    return _NAMES.get(_SEPARATORS.sub("", text).lower()) if len(text) <= 64 else None
