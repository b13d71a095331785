"""Decodes rows of Langfuse's exports and pages of its API: observations with the fields of their traces, and scores.

A source prepares the rows, because a trace and its scores are in other files than its observations: `observation_of` joins the fields
of the trace, `score_of` adds the generation that a score is about and what the score means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from ratchet.contracts.data.decoding import SCALED, Decoded, Limits
from ratchet.contracts.data.records import SENT_SIGNALS, FeedbackKind, Signal
from ratchet.contracts.errors import Rejected
from ratchet.contracts.model import Frozen
from ratchet.materializer.dialects.jsonl import JsonlDialect
from ratchet.materializer.dialects.langfuse import decode_observation, is_observation, json_object
from ratchet.materializer.dialects.people.told import told_in_record
from ratchet.materializer.dialects.values import name, number, person, rating, short_text, start_time

SCORE = "langfuse_score"
"""Key of a prepared score in its record."""
UNCLEAR = "langfuse_unclear"
"""Key of a record that only reports what is wrong with an export: {"reason": ..., "detail": ...}."""
UNCLEAR_REASONS = ("damaged_file", "count_mismatch", "missing_trace")
_SKIPPED = ("other_score", "other_category", "absent_signal")
"""Reasons for which `score_of` leaves out a score."""
_KINDS = {"rating": FeedbackKind.RATING, "correction": FeedbackKind.CORRECTION, "signal": FeedbackKind.SIGNAL}
_WORD = re.compile(r"_([a-z0-9])")
_JSON = ("metadata", "modelParameters", "usageDetails", "toolDefinitions")


def _sent(signal: Signal) -> Signal:
    if signal not in SENT_SIGNALS:
        raise ValueError(f"a signal must be one of {', '.join(SENT_SIGNALS)}")
    return signal


SentSignal = Annotated[Signal, AfterValidator(_sent)]
"""A signal that an application may send."""


class ScoreMeaning(Frozen):
    """What a score of Langfuse means: a rating, or a signal."""

    min: float = 0.0
    """The worst value of a numeric score, which becomes the rating 0."""
    max: float = 1.0
    """The best value of a numeric score, which becomes the rating 1. Smaller than `min` if a small value is good."""
    good: tuple[str, ...] = ()
    """Categories that become the rating 1."""
    bad: tuple[str, ...] = ()
    """Categories that become the rating 0. Other categories are skipped."""

    signal: SentSignal | None = None
    """What the user did with the answer, if the score states that and is no rating. A number or boolean says that it happened, unless it is
    0 or false."""
    happened: tuple[str, ...] = ()
    """For a categorical score that states a signal: the categories that say that it happened. Other categories say that it did not."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> ScoreMeaning:
        if self.signal is not None and {"min", "max", "good", "bad"} & self.model_fields_set:
            raise ValueError("a signal has no scale; leave out `min`, `max`, `good` and `bad`")
        if self.signal is None and self.happened:
            raise ValueError("`happened` needs a `signal`")
        return self

    @model_validator(mode="after")
    def _has_a_scale(self) -> ScoreMeaning:
        if self.min == self.max:
            raise ValueError("`min` and `max` must differ")
        if set(self.good) & set(self.bad):
            raise ValueError("a category is either good or bad")
        return self


Scores = Annotated[dict[str, ScoreMeaning], Field(max_length=100)]
USER_FEEDBACK: Mapping[str, ScoreMeaning] = {"user-feedback": ScoreMeaning(), "user_feedback": ScoreMeaning()}
"""The scores that are ratings unless the loop file names others: those that Langfuse's guide for user feedback uses."""


class LangfuseDialect(JsonlDialect):
    """Prepared rows of Langfuse. Batches in the format langfuse name this dialect."""

    name = "langfuse"

    def decode(self, record: Any, position: str, limits: Limits, into: Decoded) -> None:
        """Decode one row into `into`. Raises Rejected if it is none of Langfuse's, or cannot be read completely."""
        if not isinstance(record, dict):
            raise Rejected("wrong_type", f"a row must be an object, not {type(record).__name__}")
        if UNCLEAR in record:
            raise _unclear(record[UNCLEAR])
        if SCORE in record:
            _decode_score(record[SCORE], position, limits, into)
        elif is_observation(record):
            decode_observation(record, position, limits, into)
        else:
            raise Rejected("wrong_type", "the row is no observation of Langfuse: type, trace_id or start_time is missing")


def _unclear(report: Any) -> Rejected:
    found = report if isinstance(report, dict) else {}
    if found.get("reason") not in UNCLEAR_REASONS:
        return Rejected("wrong_type", "the row reports something unknown about an export of Langfuse")
    return Rejected(found["reason"], str(found.get("detail")))


def camel(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the names that Langfuse's API uses: `start_time` becomes `startTime`."""
    return {_WORD.sub(lambda found: found[1].upper(), key): value for key, value in row.items()}


def trace_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row of the table `traces` that its observations need. Prompt and answer are left out."""
    found = camel(row)
    kept = ("userId", "sessionId", "metadata", "tags", "release", "version", "environment", "name")
    return {key: found[key] for key in kept if found.get(key) not in (None, "", [], {})}


def observation_of(row: Mapping[str, Any], trace: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an observation as Langfuse's API gives it, from a row of any export, with the fields of its trace.

    The observation's own user, session and metadata count before those of the trace; a refusal of consent counts wherever it stands.
    """
    found = camel(row)
    for key in _JSON:
        if isinstance(found.get(key), str):
            found[key] = json_object(found[key])
    for key in ("input", "output", "userId", "sessionId"):
        if found.get(key) == "":
            found[key] = None
    if not trace:
        return found
    for key in ("userId", "sessionId", "environment", "release"):
        if not found.get(key) and trace.get(key):
            found[key] = trace[key]
    shared, own = json_object(trace.get("metadata")), json_object(found.get("metadata"))
    found["metadata"] = shared | own
    if told_in_record({"metadata": shared}).refuses():  # the observation's metadata may hide it, also in an object
        found["metadata"]["consent"] = False
    found["trace"] = {key: trace[key] for key in ("name", "tags", "release", "version", "environment") if key in trace}
    return found


def is_score(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a score, of an export or of the API."""
    found = camel(row)
    return "value" in found and ("dataType" in found or "stringValue" in found) and isinstance(found.get("name"), str)


def score_of(row: Mapping[str, Any], meanings: Mapping[str, ScoreMeaning]) -> dict[str, Any]:
    """Return a score prepared for this dialect: what it is about, when it was given, and what it means. Comments are left out.

    `becomes` is rating, correction, signal, or none with the reason why the score is skipped. Rejected values are left to the dialect.
    """
    found = camel(row)
    subject = found.get("subject")
    if isinstance(subject, dict):  # version 3 of the API
        kind = str(subject.get("kind", "")).lower()
        found["observationId"] = subject.get("id") if kind == "observation" else None
        found["traceId"] = subject.get("traceId") if kind == "observation" else subject.get("id") if kind == "trace" else None
    text = found.get("stringValue")
    value = found.get("value")
    score = {
        "id": found.get("id"),
        "traceId": found.get("traceId") or None,
        "observationId": found.get("observationId") or None,
        "name": found.get("name"),
        "time": found.get("updatedAt") or found.get("timestamp"),
        "rater": found.get("authorUserId"),
    }
    kind = str(found.get("dataType") or ("CATEGORICAL" if value is None else "NUMERIC")).upper()
    if kind == "CORRECTION":
        return score | {"becomes": "correction", "text": text if isinstance(text, str) and text else value}
    meaning = meanings.get(str(found.get("name")))
    if meaning is None:
        return score | {"becomes": "none", "why": "other_score"}
    if meaning.signal is not None:
        return score | _signal(meaning, kind, value, text)
    if kind == "BOOLEAN":
        return score | {"becomes": "rating", "value": value, "scale": [0, 1]}
    if kind == "NUMERIC":
        stated = {"min", "max"} & meaning.model_fields_set
        return score | {"becomes": "rating", "value": value} | ({"scale": [meaning.min, meaning.max]} if stated else {})
    category = text if isinstance(text, str) and text else value
    if kind != "CATEGORICAL" or category not in (*meaning.good, *meaning.bad):
        return score | {"becomes": "none", "why": "other_category"}
    return score | {"becomes": "rating", "value": 1 if category in meaning.good else 0, "scale": [0, 1]}


def _signal(meaning: ScoreMeaning, kind: str, value: Any, text: Any) -> dict[str, Any]:
    """Return what a score that states a signal becomes. A value that says neither yes nor no becomes a signal without a name."""
    if kind in ("BOOLEAN", "NUMERIC"):
        found = float(value) if isinstance(value, bool) else number(value)
        happened = None if found is None else found != 0
    else:
        category = text if isinstance(text, str) and text else value
        happened = category in meaning.happened if isinstance(category, str) else None
    if happened is False:
        return {"becomes": "none", "why": "absent_signal"}
    return {"becomes": "signal", "signal": str(meaning.signal) if happened else None}


def _scale_of(score: dict[str, Any]) -> tuple[float, float] | None:
    """Return the scale that the loop file states for a score; None if it states none."""
    match score.get("scale"):
        case [int() | float() as worst, int() | float() as best] if worst != best:
            return float(worst), float(best)
        case _:
            return None


def _decode_score(score: Any, position: str, limits: Limits, into: Decoded) -> None:
    """Write the feedback row of a prepared score, or count it as skipped."""
    becomes = score.get("becomes") if isinstance(score, dict) else None
    if becomes == "none" and score.get("why") in _SKIPPED:
        into.skip("feedback", score["why"])
        return
    if not isinstance(becomes, str) or becomes not in _KINDS:
        into.reject("feedback", position, Rejected("wrong_type", "the row is no prepared score of Langfuse"))
        return
    try:
        if name(score.get("id")) is None:
            raise Rejected("missing_id", "the score has no id")
        if score.get("traceId") is None and score.get("observationId") is None:
            into.skip("feedback", "not_about_a_call")  # of a session or of a run over a data set
            return
        kind = _KINDS[becomes]
        scale = _scale_of(score)
        value = rating(score.get("value"), scale) if becomes == "rating" else None
        text = short_text(score.get("text")) if becomes == "correction" else None
        signal = score.get("signal") if becomes == "signal" else None
        if becomes == "correction" and text is None:
            raise Rejected("bad_value", "the correction has no text")
        if becomes == "signal" and signal not in SENT_SIGNALS:
            raise Rejected("bad_value", "the score does not say whether the signal happened")
        time = start_time(score.get("time"), limits.now)
        about = name(score.get("observationId"))
    except Rejected as error:
        into.reject("feedback", position, error)
        return
    if about is None:
        into.skip("feedback", "score_without_generation")
        return
    known = {"trace_id": about, "response_id": None, "rater": person(score.get("rater")), "time": time, "position": position}
    into.feedback.append(known | {"kind": kind.value, "value": value, "text": text, "signal": signal, SCALED: scale is not None})
