"""What to do about a quarantined record, by its reason."""

from __future__ import annotations

from collections.abc import Mapping

_FORMAT = "The record does not have the form that its source promises. Correct the exporter, or the mapping of the source, then replay."
_DIALECT = (
    "The conversation cannot be read whole, and a part of it would teach wrong answers. Upgrade Ratchet or install a dialect that reads "
    "it, then replay."
)
_ADVICE: Mapping[str, str] = {
    "malformed_json": "The line is no JSON. If its file was still being written, the entry is resolved when the whole line arrives. "
    "Otherwise correct the writer and send the record again.",
    "invalid_encoding": "The record is not UTF-8. Correct the writer and send the record again.",
    "malformed_protobuf": "The request is no valid protobuf message. Update the exporter.",
    "damaged_file": "The file or the compressed stream ends early. Restore the file; the entry is resolved when the rest is ingested.",
    "too_large": "Prompt and answer, or an identifier, are larger than the limit. Send shorter texts.",
    "too_deep": "The record is nested too deeply. Send a flatter one.",
    "wrong_type": _FORMAT,
    "bad_value": _FORMAT,
    "bad_id": _FORMAT,
    "rating_scale": "The source rates on a scale of its own. State its worst and its best number in the source's `rating_scale`, for "
    "example [1, 5], then replay. For langfuse, state `min` and `max` in options.scores, delete the folder of the source's state, and "
    "ingest again.",
    "missing_id": "The record names no id, so it could not be stored once only. Configure the exporter, or the mapping, to give one.",
    "bad_timestamp": "The time is missing or unreadable. Correct the exporter, or the mapping of `timestamp`, then replay.",
    "future_timestamp": "The time is more than a day ahead. Correct the clock of the sender. A replay after that time accepts the record.",
    "unknown_status": "The status is neither a known success nor a known failure. Map `status` to another key, or send one of the words "
    "that docs/howto/own-traces.md lists, then replay.",
    "redacted_content": "A tool has replaced the text. Switch its redaction off for this exporter, because Ratchet masks personal data "
    "itself, and send the record again. A replay finds the same text.",
    "dropped_content": "The exporter has dropped a part. Raise its limits (OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT, OTEL_SPAN_EVENT_COUNT_LIMIT, "
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT) and send the record again.",
    "error_reply": "The answer is the error of an API. Log the call with a status of failure.",
    "no_content": "The record has no prompt and no answer in a known form. Switch the capture of content on, or install a dialect that "
    "reads it, then replay.",
    "incomplete_record": "The record has what was known later about a call, and not the call itself. Export the whole record again, with "
    "its id, messages and response: the trace counts as a duplicate, and the right answer, rating or correction is added to it. Right "
    "answers and ratings alone can be sent to the receiver as feedback (docs/howto/connect-an-application.md).",
    "bad_origin": "The origin is unknown. Send traffic, probe or mirror, or leave it out.",
    "role_not_allowed": "The credential must not send this. Create a credential with the role (`ratchet token`) and send it again. "
    "A replay uses the role that the sender had.",
    "id_conflict": "Another record with this id is stored, with other content. Find out which sender reuses ids. A replay does not replace "
    "the stored record.",
    "later_version": "Langfuse has exported the observation again with other content, after an update. The first version stays, because "
    "editions and training sets may contain it. Export windows later, when their observations do not change any more.",
    "missing_trace": "Langfuse's export has no trace of this observation, and the trace may have a refusal of consent. When the file with "
    "the traces of the same window arrives or changes, its observations are read again.",
    "count_mismatch": "A file of Langfuse's export has another number of rows than its manifest promises. Export the window again.",
    "masking_failed": "The texts could not be searched for personal data. Check `privacy.patterns` of the loop file, then replay.",
    "ambiguous_dialect": "Several installed dialects recognise the record. Uninstall all but one, then replay.",
    "dialect_failed": "The dialect has a defect. Upgrade it or Ratchet, then replay.",
    "bad_row": "The dialect of another package made an invalid row. Upgrade it, then replay.",
}


def advice(reason: str) -> str:
    """Return what an operator can do about a record with this reason."""
    return _ADVICE.get(reason, _DIALECT)
