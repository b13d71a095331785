"""A look at the first records of a source: what they say about their users, and whether one text answers everything, or begins everything.

It stores nothing.
"""

from __future__ import annotations

import io
import json
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, NamedTuple

import orjson

from ratchet.contracts.data.datasets import LEAST_SHARED_ROOT, SHARED_ROOT, RawBatch
from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import SkippedTexts, content_text, question_in, root_text, without_opening
from ratchet.contracts.loop import Loop
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.admission import Admission
from ratchet.materializer.dialects.decode import BUILT_IN, decode
from ratchet.materializer.dialects.people.told import Share, shares
from ratchet.materializer.dialects.screening.same_question import Edges, cut_short, edges_of, same_question

_LARGEST = 8 << 20
_SHORT = 200
_MOST_SHARE = 0.2
_LEAST_PROMPTS = 10
_MOST_ENDS = 0.02
_LEAST_TALKS = 5
_LEAST_BEGIN, _SHORT_BEGIN, _LONGEST = 3, 60, 300
"""Characters of a beginning that names messages."""


def limits_of(loop: Loop, source: str, now: int) -> Limits:
    """Return the parameters of decoding for a source of a loop file. `now` is in microseconds since the epoch."""
    settings = next((one for one in loop.sources if one.name == source), None)
    return Limits(
        now=now,
        assume_consent=loop.governance.consent == "assumed",
        mapping=settings.mapping if settings else {},
        consent_places=settings.consent_places if settings else None,
        placeholders=loop.quarantine.placeholders,
        rating_scale=settings.rating_scale if settings else None,
    )


@dataclass(frozen=True)
class RepeatedAnswer:
    """A short text that answers many different prompts: often the placeholder of a tool, an error message or a canned text."""

    text: str
    prompts: int
    """Number of different prompts that it answers."""
    calls: int
    """Number of calls with an answer."""

    @property
    def sentence(self) -> str:
        """The finding for an operator."""
        return (
            f"the text {cut_short(self.text)!r} answers {self.prompts:,} different prompts of {self.calls:,} calls; if it is a placeholder "
            "or an error message, add it to quarantine.placeholders"
        )


def repeated_answer(rows: Iterable[Row]) -> RepeatedAnswer | None:
    """Return the short text that answers at least 10 different prompts, and a fifth of all calls; None if there is none.

    `rows` are traces with the columns messages, answer and status.
    """
    prompts: defaultdict[str, set[str]] = defaultdict(set)
    times = Counter[str]()
    calls = 0
    for row in rows:
        if row["answer"] is None or row["messages"] is None or row["status"] != "ok":
            continue
        calls += 1
        if len(row["answer"]) <= _SHORT:
            text = " ".join(row["answer"].split())
            prompts[text].add(row["messages"])
            times[text] += 1
    found = [
        (len(prompts[text]), text) for text, count in times.items() if len(prompts[text]) >= _LEAST_PROMPTS and count >= calls * _MOST_SHARE
    ]
    most = max(found, default=None)
    return None if most is None else RepeatedAnswer(most[1], most[0], calls)


@dataclass(frozen=True)
class SameOpening:
    """User messages with which many different prompts begin, and with which none ends: few-shot examples, or an agent's environment."""

    messages: int
    """Number of these messages."""
    texts: tuple[str, ...]
    """Beginnings of those of these messages that begin as no other user message does, normalised."""
    prompts: int
    """Number of different prompts that begin with them."""
    of: int
    """Number of different prompts."""

    @property
    def sentence(self) -> str:
        """The finding for an operator."""
        same = f"the same {self.messages} user messages" if self.messages > 1 else "the same user message"
        named = f": {json.dumps(list(self.texts), ensure_ascii=False)}" if self.texts else " how they begin and the questions do not"
        return (
            f"{self.prompts:,} of {self.of:,} different prompts begin with {same}, and count as one conversation, on one side of the "
            "holdout; if these are examples, or the environment that an agent describes, add "
            f"to holdout.skip_messages{named}"
        )


@dataclass(frozen=True)
class SharedText:
    """A text by which many different prompts count as one conversation."""

    text: str
    """Its first characters, normalised."""
    prompts: int
    """Number of different prompts with it."""
    of: int
    """Number of different prompts."""

    @property
    def shown(self) -> str:
        """The text in quotation marks, cut."""
        return json.dumps(cut_short(self.text), ensure_ascii=False)


class SharedBeginning(SharedText):
    """A user message with which many prompts of different conversations begin, such as a greeting."""

    @property
    def sentence(self) -> str:
        """The finding for an operator."""
        return (
            f"{self.prompts:,} of {self.of:,} different prompts begin with the user message {self.shown}, and count as one "
            "conversation, on one side of the holdout; if it is a greeting, add it to holdout.skip_greetings, and if it is an example or "
            "describes an environment, to holdout.skip_messages"
        )


class SharedPart(SharedText):
    """A part of user messages that is the question of many prompts by the marks of the loop file, such as an instruction at their end."""

    @property
    def sentence(self) -> str:
        """The finding for an operator."""
        return (
            f"with holdout.question_after and holdout.question_until, {self.prompts:,} of {self.of:,} different prompts have the question "
            f"{self.shown}, and count as one conversation, on one side of the holdout; if this is no question, correct these settings"
        )


class Asked(NamedTuple):
    """A user message."""

    begin: str
    """Its first _LONGEST characters, normalised."""
    whole: int
    """A hash of the whole."""
    edges: Edges = Edges()
    """The first and last sentences of the first question."""
    message: int = 0
    """A hash of the whole message, if only a part of it counts as the question."""


def asked_in(messages: str, skipped: SkippedTexts = ()) -> tuple[Asked, ...]:
    """Return the user messages of a prompt, which is a JSON list of messages, from the first question on (`ids.root_text`)."""
    asked = [message for message in without_opening(orjson.loads(messages), skipped) if message["role"] == "user"]
    found = list[Asked]()
    for message in asked:
        whole = root_text([message])
        text = question_in(whole, skipped)
        edges = Edges() if found else edges_of(content_text(message["content"])) if text == whole else edges_of(text, least=2)
        found.append(Asked(text[:_LONGEST], hash(text), edges, hash(whole) if text != whole else 0))
    return tuple(found)


def same_opening(calls: Sequence[tuple[Asked, ...]]) -> SameOpening | None:
    """Return the user messages with which at least 10 different prompts, and a fifth of all, begin; None if there are none.

    `calls` are the user messages of calls. The first call of a real conversation ends with its first message, so hardly any call may end
    with these. They are the same as a whole, or begin alike, as the environment of an agent, which names the folder and the time.
    """
    found = _opening(calls, lambda message: message.whole)
    if found is None:
        alike = _opening(calls, lambda message: message.begin[:_SHORT_BEGIN])
        found = alike if alike is not None and len(alike.texts) == alike.messages else None
    return found


def shared_beginning(calls: Sequence[tuple[Asked, ...]]) -> SharedBeginning | None:
    """Return the first user message of at least 20 different prompts, and of more than a tenth of all, that go on in different ways; None
    if there is none.

    `calls` are those of `same_opening`. The turns of one conversation go on in one way.
    """
    inside = [texts for texts in dict.fromkeys(calls) if texts]
    most, count = Counter(texts[0] for texts in inside).most_common(1)[0] if inside else (Asked("", 0), 0)
    following = {texts[1] for texts in inside if texts[0] == most and len(texts) > 1}
    if count < LEAST_SHARED_ROOT or count <= SHARED_ROOT * len(inside) or len(following) < _LEAST_TALKS:
        return None
    return SharedBeginning(most.begin, count, len(inside))


def shared_part(calls: Sequence[tuple[Asked, ...]]) -> SharedPart | None:
    """Return the part that is the question of at least 20 different messages, and of more than a tenth of all; None if there is none.

    `calls` are those of `same_opening`.
    """
    asked = {(texts[0].whole, texts[0].message): texts[0] for texts in calls if texts}
    counts = Counter(whole for whole, message in asked if message)
    whole, count = counts.most_common(1)[0] if counts else (0, 0)
    if count < LEAST_SHARED_ROOT or count <= SHARED_ROOT * len(asked):
        return None
    return SharedPart(next(one.begin for one in asked.values() if one.whole == whole), count, len(asked))


def opening_sentence(calls: Sequence[tuple[Asked, ...]]) -> str | None:
    """Return the first finding of `shared_part`, `same_opening`, `shared_beginning` and `same_question`; None without one."""
    first = {texts[0].whole: texts[0].edges for texts in calls if texts}
    found = shared_part(calls) or same_opening(calls) or shared_beginning(calls) or same_question(first.values())
    return None if found is None else found.sentence


def _opening(calls: Sequence[tuple[Asked, ...]], key: Callable[[Asked], Hashable]) -> SameOpening | None:
    """Do what `same_opening` does. Messages with one `key` are the same."""
    inside, ends = list(dict.fromkeys(calls)), Counter(tuple(map(key, texts)) for texts in calls)
    opening, least, others = list[Asked](), max(_LEAST_PROMPTS, len(inside) * _MOST_SHARE), list[tuple[Asked, ...]]()
    prompts = len(inside)
    while True:
        at, before = len(opening), tuple(map(key, opening))
        following = Counter(key(texts[at]) for texts in inside if len(texts) > at + 1)
        most, count = following.most_common(1)[0] if following else (None, 0)
        begun = sum(n for texts, n in ends.items() if texts[: at + 1] == (*before, most))
        if count < least or ends[(*before, most)] > _MOST_ENDS * begun:
            rest = {one.begin for texts in (*others, *(texts[at:] for texts in inside)) for one in texts}
            return SameOpening(at, _beginnings(opening, rest - {one.begin for one in opening}), len(inside), prompts) if opening else None
        others += [texts for texts in inside if texts[at : at + 1] and key(texts[at]) != most]
        inside = [texts for texts in inside if texts[at : at + 1] and key(texts[at]) == most]
        opening.append(inside[0][at])


def _beginnings(opening: Sequence[Asked], others: Collection[str]) -> tuple[str, ...]:
    """Return the beginnings by which a loop file can name messages: long enough, and those of none of the `others`."""
    found = []
    for message in opening:
        text = message.begin
        cuts = (text if len(text) <= length else text[:length].rsplit(" ", 1)[0] for length in (_SHORT_BEGIN, _LONGEST))
        found.append(next((cut for cut in cuts if not any(text.startswith(cut) for text in others)), ""))
    return tuple(dict.fromkeys(text for text in found if len(text) >= _LEAST_BEGIN))


@dataclass
class Look:
    """What the first records of a source say."""

    decoded: Decoded = field(default_factory=Decoded)

    @property
    def shares(self) -> list[Share]:
        """Shares of the calls with consent, a refusal, a user and a session."""
        return shares(self.decoded.told)

    @property
    def without_tools(self) -> int:
        """Number of calls whose conversation calls tools, while the record names no tools."""
        return self.decoded.told["call without tools", ""]

    @property
    def repeated(self) -> RepeatedAnswer | None:
        """One text that answers many prompts."""
        return repeated_answer(self.decoded.traces)

    def opening(self, skipped: SkippedTexts) -> str | None:
        """Return the finding about user messages with which many prompts begin, besides those that are skipped; None without one."""
        return opening_sentence([asked_in(row["messages"], skipped) for row in self.decoded.traces if row["messages"] is not None])


def look(
    batches: Iterable[RawBatch],
    limits: Limits,
    dialects: Mapping[str, Dialect] = BUILT_IN,
    admission: Admission | None = None,
    records: int = 300,
) -> Look:
    """Decode the first `records` lines or frames of the batches, of at most 8 MiB. A batch that cannot be read ends the look."""
    found = Look()
    left = records
    for batch in batches:
        if left <= 0:
            break
        try:
            data, count = first_records(batch, left)
            part = replace(batch, open=lambda data=data: io.BytesIO(data))  # type: ignore[misc]
            found.decoded.merge(decode(part, limits, dialects, admission or Admission(batch.sender)), batch.origin)
        except (RatchetError, OSError, EOFError):
            break
        left -= max(count, 1)
    return found


def first_records(batch: RawBatch, count: int) -> tuple[bytes, int]:
    """Return the bytes of the first `count` lines or frames of a batch, of at most 8 MiB, and their number."""
    with batch.open() as stream:
        parts: Sequence[bytes] = _frames(stream, count) if batch.format == "otlp-proto" else _lines(stream, count)
    return b"".join(parts), len(parts)


def _lines(stream: BinaryIO, count: int) -> list[bytes]:
    found, size = list[bytes](), 0
    while len(found) < count and (line := stream.readline(_LARGEST - size)):
        if not line.endswith(b"\n") and size + len(line) >= _LARGEST:
            break  # a line that the look does not read whole
        found.append(line)
        size += len(line)
    return found


def _frames(stream: BinaryIO, count: int) -> list[bytes]:
    found, size = list[bytes](), 0
    while len(found) < count and len(head := stream.read(5)) == 5:
        length = struct.unpack(">I", head[1:])[0]
        if size + length > _LARGEST:
            break
        found.append(head + stream.read(length))
        size += length + 5
    return found
