"""What one record says about its user: the statement about consent that counts, and the facts of the table of places."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.places import ROOTS, Fact, Meaning, meaning, named
from ratchet.materializer.dialects.statement import Statement
from ratchet.materializer.dialects.values import consent, person, stated
from ratchet.runtime.secrets.pseudonyms import Subject

_DEPTH = 6
_MAX_PRINTED = 65_536
_CONTENT = re.compile(
    r"^(?:messages?|input|output|prompt|response|answer|choices|content|contents|tools?|functions?|schema|json_schema|parameters"
    r"|response_format|arguments|tool_calls|tool_definitions|toolDefinitions|model_map_information)$"
)
"""Keys of content and of schemas, where `consent` can be the name of a parameter."""
_NAMED_IN_TEXT = re.compile(r"consent(?:[._-]?given)?\\*[\"']?\s*[:=]", re.IGNORECASE)
"""A key that means consent, in the text of an object."""
REFUSED = -3
"""Rank of a refusal of sending to a third party: it counts against a consent of every place."""
_OPENED = re.compile(r"metadata$|^(?:trace|user|session|baggage|privacy|governance|resource|extra|custom|headers)$")
"""Keys of a record whose objects describe it."""


@dataclass
class Told:
    """All that a record says, with the place of each value."""

    facts: dict[Fact, tuple[int, str, Any]] = field(default_factory=dict)
    """Fact -> rank and name of its place, and its value. Of several places, the first of the table."""
    consents: list[tuple[str, Any]] = field(default_factory=list)
    """Place and value of each statement about consent."""
    times: dict[str, Any] = field(default_factory=dict)
    """Place -> its consent_time."""

    def value(self, fact: Fact) -> Any:
        """Return a fact; None if no place has it."""
        return self.facts[fact][2] if fact in self.facts else None

    def place(self, fact: Fact) -> str | None:
        """Return the place of a fact; None if no place has it."""
        return self.facts[fact][1] if fact in self.facts else None

    def refuses(self) -> bool:
        """Return whether a place refuses consent."""
        return any(refuses(value) for _, value in self.consents)

    def _add(self, found: Meaning, value: Any) -> None:
        if value is None:
            return
        if found.fact == "opt_out":
            if not _is_no(value):
                self.consents.append((found.place, False))
            return
        if found.fact == "consent":
            self.consents.append((found.place, value))
        elif found.fact == "consent_time":
            self.times.setdefault(found.place, value)
        elif found.fact in ("user", "session"):
            value = _person(value)
        if found.fact == "third_party" and consent(value) is False:
            self.facts["third_party"] = (REFUSED, found.place, False)
            return
        if found.fact is not None and value not in (None, "") and (found.fact not in self.facts or self.facts[found.fact][0] > found.rank):
            self.facts[found.fact] = (found.rank, found.place, value)


def _is_no(value: Any) -> bool:
    """Return whether a value says that nobody opted out: false, nothing, or a word for it."""
    word = value.strip().strip('"').lower() if isinstance(value, str) else value
    return word in (False, 0, "", "false", "0", "no", "none", "null", "n", "off") or word == [] or word == {}


def refuses(value: Any) -> bool:
    """Return whether the value of a consent refuses it."""
    return value is not True and stated(value, None, 0, 0) == Statement(False, 0)


def told(attributes: Attributes) -> Told:
    """Return what attributes say: of a span, a log record or a resource.

    Of a repeated key the last value counts, but a refusal counts from every value. A consent that cannot be read is a refusal.
    """
    made = Told()
    for key in attributes:
        found = meaning(key)
        if found is not None:
            _tell(made, attributes, key, found)
    return made


def told_in_part(attributes: Attributes) -> Told:
    """Return what attributes say of which some cannot be read, so that `told` raises Rejected. These are left out.

    One that cannot be read is a refusal if its key means consent, or if it names consent inside.
    """
    made = Told()
    for key in attributes:
        found, one = meaning(key), Told()
        if found is None:
            continue
        try:
            _tell(one, attributes, key, found)
        except Rejected:
            values = [attributes.raw(key), *(part.raw(key) for part in attributes.earlier(key))]
            refuses = found.fact == "consent" or (found.fact is None and _names_consent(values))
            one = Told(consents=[(found.place, False)] if refuses else [])
        made = merged(made, one)
    return made


def _tell(made: Told, attributes: Attributes, key: str, found: Meaning) -> None:
    """Add what one attribute says. `found` is the meaning of its key."""
    if found.fact in (None, "consent", "opt_out"):
        for part in attributes.earlier(key):
            before = Told()
            _tell(before, part, key, found)
            made.consents += [one for one in before.consents if Told(consents=[one]).refuses()]
    value = attributes.get(key)
    if found.fact is None:
        _open(made, found.place, unquoted(value), 0)
        for inside in attributes.unreadable_inside(key):
            _refuse_if_consent(made, f"{found.place}.{inside}")
    elif found.fact == "consent" and attributes.is_unreadable(key):
        made._add(found, False)
    else:
        is_answer = found.fact == "reference" and not key.startswith("mlflow.")  # an answer may have quotation marks of its own
        made._add(found, value if is_answer else unquoted(value))


def _refuse_if_consent(made: Told, path: str) -> None:
    """Add a refusal if a key whose value cannot be read means consent."""
    found = meaning(path)
    if found is not None and found.fact == "consent" and not any(map(_CONTENT.match, path.split("."))):
        made.consents.append((found.place, False))


def _names_consent(raw: Any) -> bool:
    """Return whether an OTLP value, which may be nested too deep to be converted, has a key that means consent."""
    left = [raw]
    while left:
        at = left.pop()
        if isinstance(at, list):
            left += at
        elif isinstance(at, dict):
            found = meaning(at["key"]) if isinstance(at.get("key"), str) else None
            if found is not None and found.fact == "consent":
                return True
            left += at.values()
    return False


def told_in_record(record: Mapping[str, Any], content: Iterable[str] = ()) -> Told:
    """Return what a JSON record says, for example an observation of Langfuse. `content` are keys that are not searched."""
    made = Told()
    left_out = set(content)
    for key, value in record.items():
        if key in left_out or _CONTENT.match(key):
            continue
        found = meaning(key)
        is_person = found is not None and found.fact in ("user", "session")
        is_object = isinstance(value, dict) or (is_person and bool(as_object(value)))  # a refusal may be beside the id of a person
        is_answer = found is not None and found.fact == "reference"  # it may be an object itself
        if found is not None and found.fact is not None and (is_answer or not is_object):
            made._add(found, value)
            if is_object:
                _open(made, key, value, 0)  # a refusal counts from everywhere
        elif is_person or (found is not None and found.fact is None) or key in ROOTS or _OPENED.search(key):
            _open(made, key, value, 0)
        elif key == "model_parameters":
            _open(made, "model_parameters.metadata", as_object(value).get("metadata"), 0)
    return made


def may_tell(key: str) -> bool:
    """Return whether `told_in_record` looks at the value of a key."""
    if _CONTENT.match(key):
        return False
    return meaning(key) is not None or key in ROOTS or _OPENED.search(key) is not None or key == "model_parameters"


def merged(*parts: Told) -> Told:
    """Return all that the parts of one record say."""
    made = Told()
    for part in parts:
        if not (part.facts or part.consents or part.times):
            continue
        made.consents += part.consents
        made.times = part.times | made.times
        for fact, found in part.facts.items():
            if fact not in made.facts or made.facts[fact][0] > found[0]:
                made.facts[fact] = found
    return made


def _open(made: Told, place: str, value: Any, depth: int) -> None:
    """Add what an object says, and the objects inside of it. Only consent is read from objects that the table does not have.

    The text of an object that cannot be read, for example because it was cut off, is a refusal if it names consent.
    """
    if isinstance(value, str) and value.lstrip()[:1] == "{" and _NAMED_IN_TEXT.search(value) and not as_object(value):
        made.consents.append((place, False))
    for key, item in as_object(value).items():
        if not isinstance(key, str) or _CONTENT.match(key):
            continue
        path = f"{place}.{key}"
        if key in ("attributes", "resourceAttributes", "resource_attributes") and isinstance(item, dict):
            flat = told(Attributes.of_values(item))  # an export of Langfuse has the attributes of the span there
            both = merged(made, flat)
            made.facts, made.consents, made.times = both.facts, both.consents, both.times
            continue
        found = meaning(path)
        is_answer = found is not None and found.fact == "reference"  # it may be an object itself
        is_object = isinstance(item, dict) or (isinstance(item, str) and item.lstrip()[:1] == "{")
        if found is None or found.fact is None or is_object:
            if depth < _DEPTH:
                _open(made, path, item, depth + 1)
            if found is None or (found.fact != "user" and not is_answer):
                continue
        made._add(found, item)


def consent_at(record: Mapping[str, Any], path: str) -> Any:
    """Return the consent at a dotted key; None if it is missing. Objects on the way may be text; one that cannot be read is a refusal."""
    value: Any = record
    for part in path.split("."):
        held = as_object(value)
        if not held and isinstance(value, str) and value.lstrip()[:1] == "{":
            return False
        value = held.get(part)
    return value


def as_object(value: Any) -> dict[str, Any]:
    """Return an object, read from JSON text or from Python's printed form of a dictionary; an empty one for anything else.

    LiteLLM prints dictionaries into attributes.
    """
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            value = _printed(value)
    return value if isinstance(value, dict) else {}


def _printed(text: str) -> Any:
    if len(text) > _MAX_PRINTED:
        return None
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _person(value: Any) -> str | None:
    if isinstance(value, dict):
        value = next((value[key] for key in ("id", "user_id", "userId", "session_id") if value.get(key) is not None), None)
    return person(value)


def unquoted(value: Any) -> Any:
    """Return an attribute, parsed if it is the JSON text of a text: MLflow writes each value, also those of applications, in this way."""
    if isinstance(value, str) and value[:1] == '"':
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


MAPPED = "the key of the trace format"
"""Place of the consent that the loop file maps, or of the key `consent` of JSON Lines. It always counts."""


def statement(
    own: Told, shared: Told | None, begin: int, limits: Limits, default: tuple[str, ...], signed: bool = False
) -> Statement | None:
    """Return what a record states about consent; None if it does not mention it. Within one record, a refusal counts against a consent.

    `shared` is what its resource says, whose consent does not count if the router has `signed` the record. `default` are the places whose
    consent counts if the loop file names none. `begin` is the start of the call in microseconds.
    """
    places = default if limits.consent_places is None else limits.consent_places
    said: list[Statement] = []
    for part, may_agree in ((own, True), (shared, not signed)):
        for place, value in part.consents if part is not None else ():
            found = stated(value, None, begin, limits.now)
            if found is not None and (not found.given or (may_agree and (place == MAPPED or place in places))):
                said.append(stated(value, part.times.get(place), begin, limits.now) or found)  # type: ignore[union-attr]
    refusals = [one for one in said if not one.given]
    return max(refusals or said, key=lambda one: one.time, default=None)


def third_party(own: Told, shared: Told | None, limits: Limits, default: tuple[str, ...], signed: bool = False) -> bool | None:
    """Return whether a record consents to sending its prompt to a third party; None if it does not say so.

    The arguments are those of `statement`. A consent counts from the places whose consent to training counts, a refusal from every place.
    """
    places = default if limits.consent_places is None else limits.consent_places
    found = None
    for part, may_agree in ((own, True), (shared, not signed)):
        place = part.place("third_party") if part is not None else None
        if part is None or place is None:
            continue
        if not consent(part.value("third_party")):
            return False
        if may_agree and (place == MAPPED or place in places):
            found = True
    return found


def subject_of(key: str) -> Subject | None:
    """Return `u` if a key names a user, `s` if it names a session; None for any other key."""
    found = meaning(key)
    fact = found.fact if found is not None else named(key.rpartition(".")[2])
    return "u" if fact == "user" else "s" if fact == "session" else None


def count_told(into: Decoded, own: Told, shared: Told | None = None) -> None:
    """Count in `into.told` what the record of one model call says, and where."""
    both = merged(own, shared) if shared is not None else own
    counts = into.told
    counts["call", ""] += 1
    stated_by = [(place, consent(value)) for place, value in both.consents]
    for fact, given in (("refusal", False), ("consent", True)) if stated_by else ():
        places = {place for place, said in stated_by if said is given}
        for place in places:
            counts[fact, place] += 1
        if places:
            counts[fact, ""] += 1
    for fact in ("user", "session"):
        if found := both.facts.get(fact):  # type: ignore[call-overload]
            counts[fact, found[1]] += 1
            counts[fact, ""] += 1


@dataclass(frozen=True)
class Share:
    """How many of the calls that were read name a fact."""

    fact: str
    calls: int
    """Number of calls with the fact. A call that states it in two places counts in both, so the places may add up to more."""
    read: int
    places: dict[str, int]

    @property
    def where(self) -> str:
        """The places with their numbers of calls."""
        return ", ".join(f"{place} {count:,}" for place, count in sorted(self.places.items(), key=lambda one: (-one[1], one[0])))

    @property
    def sentence(self) -> str:
        """The share and its places."""
        percent = f"{100 * self.calls / self.read:.0f} %" if self.read else "none"
        return f"{self.fact} in {self.calls:,} of {self.read:,} calls ({percent})" + (f": {self.where}" if self.where else "")


def shares(counts: Mapping[tuple[str, str], int]) -> list[Share]:
    """Return the shares of consent, refusal, user and session in `Decoded.told`."""
    read = counts.get(("call", ""), 0)
    found = []
    for fact in ("consent", "refusal", "user", "session"):
        places = {place: count for (name, place), count in counts.items() if name == fact and place}
        found.append(Share(fact, counts.get((fact, ""), 0), read, places))
    return found
