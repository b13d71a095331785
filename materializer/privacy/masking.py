"""Replaces personal data and secrets in a conversation by placeholders such as `[EMAIL_1]`.

Equal values get equal placeholders within one conversation, so that a model still sees who is meant where. The numbers begin with 1 in
each conversation: a placeholder links nothing across conversations.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import orjson

from ratchet.contracts.conversation import answer_message, stored_answer
from ratchet.contracts.errors import Rejected
from ratchet.contracts.loop import NameSettings, PersonalData, PrivacySettings
from ratchet.materializer.dialects.values import dump
from ratchet.materializer.privacy.emails import EMAILS
from ratchet.materializer.privacy.finding import Finding, beside, disjoint
from ratchet.materializer.privacy.identities import IDENTITIES
from ratchet.materializer.privacy.ips import IPS
from ratchet.materializer.privacy.names import NameFinder
from ratchet.materializer.privacy.numbers import CARDS, IBANS
from ratchet.materializer.privacy.phones import phones
from ratchet.materializer.privacy.search import Check, Joined, Rule, Search, everywhere
from ratchet.materializer.privacy.secrets import SECRETS

Detector = Callable[[str], Iterable[Finding]]
"""Returns the findings in a text."""

Findings = Mapping[str, list[Finding]]
"""Text -> its findings, of those that have any."""
_NOTHING: Findings = {}
PLACEHOLDER = r"\[([A-Z][A-Z_]{1,30})_(\d{1,6})\]"
"""What stands for a masked value: the name of its kind in upper case, and its number in the conversation."""
_TAKEN = re.compile(PLACEHOLDER)
_DEPTH = 64
"""Nesting of JSON below which texts are masked. Deeper JSON is masked as one text."""
_STRUCTURE = frozenset({"role", "type", "id", "tool_call_id"})
"""Keys of messages whose values are no text of people. They are not searched for names: a model that takes `user` for one breaks them."""
_KEYS = _STRUCTURE | frozenset(
    {
        *("content", "name", "text", "refusal", "reasoning_content", "tool_calls", "function", "arguments", "image_url", "url", "detail"),
        *("parameters", "properties", "description", "required", "enum", "items", "strict", "additionalProperties"),
    }
)
"""Keys of messages and of the definitions of tools. They are no text of people, so they are not searched."""
_CONSTANTS = frozenset(
    {
        *("system", "developer", "user", "assistant", "tool", "function"),
        *("text", "image_url", "input_text", "output_text", "object", "string", "array", "integer", "number", "boolean", "null"),
    }
)
"""Values of `role` and `type` that are not searched, either."""


def rules(settings: PrivacySettings) -> list[Rule]:
    """Return the rules that the settings select, in the order of the settings."""
    known: Mapping[str, Sequence[Rule]] = {
        "email": EMAILS,
        "phone": phones(settings.phone_regions),
        "card": CARDS,
        "iban": IBANS,
        "national_id": IDENTITIES,
        "secret": SECRETS,
        "ip": IPS,
    }
    own = [Rule(re.compile(pattern), _own(kind), everywhere) for kind, pattern in sorted(settings.patterns.items())]
    return [rule for kind in settings.mask for rule in known[kind]] + own


def detectors(settings: PrivacySettings) -> list[Detector]:
    """Return the detectors that the settings select: one that applies all rules, or none."""
    selected = rules(settings)
    return [Search(selected)] if selected else []


def kinds_of(settings: PrivacySettings) -> list[str]:
    """Return the kinds that the settings mask, in the order of the settings."""
    return [*settings.mask, *sorted(settings.patterns), *(name.lower() for name in (settings.ner.entities if settings.ner else ()))]


def known_kinds(settings: PrivacySettings) -> list[str]:
    """Return the kinds that every line can mask, and those that this one defines, whether the settings mask them or not."""
    names = (name.lower() for name in NameSettings.model_fields["entities"].default)
    return list(dict.fromkeys([*get_args(PersonalData), *names, *kinds_of(settings)]))


def _own(kind: str) -> Check:
    return lambda match: (Finding(*match.span(), kind, match.group()),) if match.group() else ()


@dataclass
class Masking:
    """The masking of one conversation: all texts go through `text` or `content`, in their order."""

    detectors: Sequence[Detector]
    allowed: frozenset[str] = frozenset()
    """Values in lower case that stay, for example the address of the support."""
    names: Detector | None = None
    """Finds names. Other findings, and placeholders that a text already contains, take precedence over its findings."""
    known: Mapping[str, list[Finding]] | None = None
    """The findings of the detectors in the texts that have any, if all texts were searched before."""
    counts: Counter[str] = field(default_factory=Counter)
    """Kind -> number of replaced parts."""
    _names: dict[tuple[str, str], str] = field(default_factory=dict)
    _last: Counter[str] = field(default_factory=Counter)

    def reserve(self, texts: Iterable[str]) -> None:
        """Take note of the placeholders that texts already contain, so that other values do not get them."""
        for text in texts:
            for kind, number in _TAKEN.findall(text):
                self._last[kind] = max(self._last[kind], int(number))

    def text(self, text: str, name: str = "", named: bool = True) -> str:
        """Return the text with placeholders. `name` is the key under which a JSON document has the text; it may tell what a number is.

        The text is searched for names only if `named` is true.
        """
        if _is_image(text):
            return text
        before = f"{name}: " if name else ""
        searched = before + text
        if self.known is None:
            found = disjoint(one for detector in self.detectors for one in detector(searched))
        else:
            found = disjoint(self.known.get(searched, ()))
        if named and self.names is not None:
            found = sorted(found + self._named(text, searched, found, len(before)))
        if not found:
            return text
        parts, at = [], len(before)
        for one in found:
            if one.start < len(before) or one.value.casefold() in self.allowed or searched[one.start : one.end].casefold() in self.allowed:
                continue
            self.counts[one.kind] += 1
            parts += [searched[at : one.start], self._name(one)]
            at = one.end
        return "".join([*parts, searched[at:]])

    def _named(self, text: str, searched: str, found: list[Finding], begin: int) -> list[Finding]:
        """Return the names in a text, which is `searched` from `begin` on, where there are no other findings and no placeholders."""
        assert self.names is not None
        taken = [(one.start, one.end) for one in found] + [match.span() for match in _TAKEN.finditer(searched)]
        names = [one._replace(start=one.start + begin, end=one.end + begin) for one in self.names(text)]
        return beside(disjoint(names), taken, searched)

    def content(self, value: Any, name: str = "", depth: int = 0, named: bool = True, structure: frozenset[str] = _STRUCTURE) -> Any:
        """Return a JSON value with placeholders in all texts, also in texts that are JSON documents themselves, and for whole numbers.

        It is searched for names only if `named` is true, and then without what is structure: keys of one word, values of the keys
        `structure`, and the names of functions. Known keys, roles and types of the structure are not searched at all. Texts that are JSON
        documents, for example the arguments of a tool, have no structure.
        """
        if depth > _DEPTH:
            return self.text(json.dumps(value, ensure_ascii=False), named=named)
        if isinstance(value, str):
            return self._document(value, name, depth, named) if value[:1] in ("{", "[") else self.text(value, name, named)
        if isinstance(value, dict):
            fixed = structure | {"name"} if structure and value.keys() >= {"name", "arguments"} else structure
            return {
                key if structure and key in _KEYS else self.text(key, named=named and " " in key): (
                    item
                    if item is None or (structure and key in ("role", "type") and isinstance(item, str) and item in _CONSTANTS)
                    else self.content(item, key, depth + 1, named and key not in fixed, structure)
                )
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.content(item, name, depth + 1, named, structure) for item in value]
        if isinstance(value, int) and not isinstance(value, bool):
            masked = self.text(str(value), name, named=False)
            return value if masked == str(value) else masked
        return value

    def _document(self, text: str, name: str, depth: int, named: bool) -> str:
        """Return the masked text. The strings of a JSON document are masked one by one, because its escapes could hide a value."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text, name, named)
        masked = self.content(value, name, depth + 1, named, frozenset())
        return text if masked == value else json.dumps(masked, ensure_ascii=False)

    def _name(self, one: Finding) -> str:
        key = one.kind, one.value
        if key not in self._names:
            kind = one.kind.upper()
            self._last[kind] += 1
            self._names[key] = f"[{kind}_{self._last[kind]}]"
        return self._names[key]


def texts_of(value: Any, name: str = "", depth: int = 0, structure: frozenset[str] = _STRUCTURE) -> Iterator[str]:
    """Yield the texts that `Masking.content` searches in a JSON value, as it searches them: behind their names."""
    if isinstance(value, dict) and depth <= _DEPTH:
        for key, item in value.items():
            if not (structure and key in _KEYS):
                yield key
            if item is not None and not (structure and key in ("role", "type") and isinstance(item, str) and item in _CONSTANTS):
                yield from texts_of(item, key, depth + 1, structure)
    elif isinstance(value, list) and depth <= _DEPTH:
        for item in value:
            yield from texts_of(item, name, depth + 1, structure)
    elif isinstance(value, str) and depth <= _DEPTH:
        if value[:1] in ("{", "["):
            try:
                document = json.loads(value)
            except (ValueError, RecursionError):
                pass
            else:
                yield from texts_of(document, name, depth + 1, frozenset())
                return
        if not _is_image(value):
            yield f"{name}: {value}" if name else value
    elif depth > _DEPTH:
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield f"{name}: {value}" if name else str(value)


def _is_image(text: str) -> bool:
    """Return whether a text is the bytes of an image."""
    return text.startswith("data:") and ";base64," in text[:128]


def _list(masking: Masking, text: str) -> str:
    """Mask a column with a JSON list. A list without findings keeps its bytes."""
    value = json.loads(text)
    masked = masking.content(value)
    return text if masked == value else dump(masked)


def _tools(masking: Masking, text: str) -> str:
    """Mask the tools, which the application defines. They are not searched for names: a call must fit their definition."""
    value = json.loads(text)
    masked = masking.content(value, named=False)
    return text if masked == value else dump(masked)


def _answer(masking: Masking, text: str) -> str:
    """Mask an answer, which is text or a message with tool calls."""
    return stored_answer(masking.content(answer_message(text)))


def _text(masking: Masking, text: str) -> str:
    """Mask a reference or correction, which may be a JSON document."""
    return str(masking.content(text))


_COLUMN: Mapping[str, Callable[[Masking, str], str]] = {
    "messages": _list,
    "answer": _answer,
    "tools": _tools,
    "reference": _text,
    "text": _text,
}
"""Columns of decoded rows with texts of people, in the order in which the placeholders are numbered, and how they are masked."""


_VALUE: Mapping[str, Callable[[str], Any]] = {"messages": orjson.loads, "answer": answer_message, "tools": orjson.loads}
"""Columns that hold a JSON value, which `dump` has written, and how it is read."""
_OF_MESSAGE = frozenset({"role", "content"})
OF_DOCUMENTS = ("{", "[", "data:")
"""Beginnings of texts that may be a document or an image."""


def _texts_of_row(row: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name in _COLUMN:
        if text := row.get(name):
            value = _VALUE.get(name, str)(text)
            for one in value if name == "messages" and isinstance(value, list) else (value,):
                found += (f"content: {one['content']}",) if _is_plain(one) else texts_of(one)
    return list(dict.fromkeys(found))


def _is_plain(message: Any) -> bool:
    """Return whether a message has one text, and no document or image in it: `texts_of` yields this text, and nothing else."""
    return (
        isinstance(message, dict)
        and message.keys() == _OF_MESSAGE
        and isinstance(message["role"], str)
        and message["role"] in _CONSTANTS
        and isinstance(message["content"], str)
        and not message["content"].startswith(OF_DOCUMENTS)
    )


def contents(texts: Iterable[str]) -> list[str]:
    """Return texts under the key `content` as they are searched: behind their key. Of a document, the texts inside are searched."""
    return [f"content: {text}" for text in texts]


class Masker:
    """Masks the decoded rows of one line by its settings."""

    def __init__(self, settings: PrivacySettings) -> None:
        self._detectors = detectors(settings)
        self._allowed = frozenset(value.casefold() for value in settings.allow)
        self._settings = settings
        self._is_ready = False
        self._names = None if settings.ner is None else NameFinder(settings.ner)

    @property
    def kinds(self) -> list[str]:
        """The kinds that are masked."""
        return kinds_of(self._settings)

    def ready(self) -> None:
        """Load the models of names at the first call. Raises ConfigError if a package or a model is missing or damaged."""
        if self._names is not None and not self._is_ready:
            self._names.ready()
            self._is_ready = True

    def _masking(self) -> Masking:
        return Masking(self._detectors, self._allowed, self._names)

    def masked_messages(self, messages: str) -> str:
        """Return the masked form of a JSON list of messages."""
        row = {"messages": messages}
        self.mask(row)
        return row["messages"]

    def masked_value(self) -> Callable[[Any], Any]:
        """Return a function that masks the texts of one record, one JSON value after the other. They share the placeholders.

        Raises ConfigError if a model of names is missing.
        """
        self.ready()
        return self._masking().content

    def search(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Findings] | None:
        """Search the texts of many rows as one. Return the findings of each row, or None if the rows must be masked one by one."""
        if not self._detectors and self._names is None:
            return [_NOTHING] * len(rows)
        if (search := self._only_search()) is None:
            return None
        try:
            searched, owners = list[str](), list[int]()
            for number, row in enumerate(rows):
                its = _texts_of_row(row)
                searched += its
                owners += [number] * len(its)
            found = search.each(searched)
        except Exception:  # whatever the defect, each row is masked by itself, and a bad one is quarantined
            return None
        touched = {owners[number] for number, text in enumerate(searched) if text in found} if found else ()
        return [found if number in touched else _NOTHING for number in range(len(rows))]

    def search_plain(self, joined: Joined, owners: Sequence[int], others: Mapping[int, Mapping[str, Any]]) -> dict[int, Findings] | None:
        """Search the texts of many plain rows as one. Return the findings of those that have any; None if each must be masked by itself.

        `joined` has the texts as `contents` returns them, and `owners` the numbers of their rows. The columns of `others`, by their
        numbers, are read instead, because they have more texts, or a document in a text.
        """
        if not self._detectors and self._names is None:
            return {}
        if (search := self._only_search()) is None:
            return None
        try:
            found = search.each(joined)
        except Exception:  # as in `search`
            return None
        touched = {owners[number] for number, text in enumerate(joined.given) if text in found} if found else set[int]()
        result: dict[int, Findings] = dict.fromkeys(touched.difference(others), found)
        if others:
            more = self.search(list(others.values()))
            if more is None:
                return None
            result |= {number: its for number, its in zip(others, more, strict=True) if its}
        return result

    def _only_search(self) -> Search | None:
        """Return the search of all detectors; None if there are others, or models of names."""
        one = self._detectors[0] if len(self._detectors) == 1 and self._names is None else None
        return one if isinstance(one, Search) else None

    def mask(self, row: dict[str, Any], known: Findings | None = None) -> Counter[str]:
        """Replace personal data in the texts of a row in place, and return the number of replaced parts by kind.

        `known` are the findings of `search`. All texts of the row share the placeholders. Raises Rejected `masking_failed` if a text cannot
        be searched, and ConfigError if a model of names is missing.
        """
        self.ready()
        texts = {name: row[name] for name in _COLUMN if row.get(name)}
        masking = self._masking()
        try:
            if known is not None:
                masking.known = known
            elif len(self._detectors) == 1 and isinstance(self._detectors[0], Search):
                searched = (one for name, text in texts.items() for one in texts_of(_VALUE.get(name, str)(text)))
                masking.known = self._detectors[0].each(list(dict.fromkeys(searched)))
                if not masking.known and self._names is None:
                    return masking.counts
            masking.reserve(texts.values())
            masked = {name: _COLUMN[name](masking, text) for name, text in texts.items()}
        except Exception as error:  # nothing is stored that was not searched, whatever the defect
            raise Rejected("masking_failed", f"the texts could not be searched for personal data: {type(error).__name__}") from error
        row.update(masked)
        return masking.counts
