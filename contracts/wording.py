"""Words what pydantic found wrong with a value, for a person who has never heard of pydantic. No other text of its errors is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ratchet.contracts.errors import ConfigError

FORMS: Final[dict[str, str]] = {
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$": "text of the form `namespace/name`",
    r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$": "text of lower-case letters, digits and hyphens, at most 40",
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": "text of lower-case letters, digits and hyphens, at most 63",
    r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*$": "`s3://` URL",
    r"^https?://[^/@\s]+$": "`http://` or `https://` URL without path and user",
    r"^[A-Z]{2}$": "code of a country in two capital letters (ISO 3166)",
    r"^[A-Z]{3}$": "code of a currency in three capital letters (ISO 4217)",
    r"^[a-z][a-z_]{1,30}$": "text of lower-case letters and underscores, at most 31",
    r"^[A-Z][A-Z_]{1,30}$": "text of capital letters and underscores, at most 31",
    r"^[a-z]{2,3}$": "code of a language in two or three lower-case letters (ISO 639)",
    r"^https?://[^/@\s]+(/[^@\s?#]*)?$": "`http://` or `https://` URL without user and query",
    r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)$": "quantity with the unit `Ki`, `Mi`, `Gi` or `Ti`",
}
"""Pattern of a setting -> its form in words. Messages and the reference page show the words."""

UNKNOWN_KEY: Final = "extra_forbidden"
MISSING_KEY: Final = "missing"
"""Kinds of problems for which a caller may suggest a similar key."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a value."""

    location: tuple[str | int, ...]
    kind: str
    """Pydantic's identifier of the problem, for example `missing`. It is not shown."""
    text: str
    """What is wrong, without the key, for example `a number is required`."""
    found: Any
    """The value, if it is a text, a number or a truth value; otherwise None."""

    @property
    def key(self) -> str:
        """The location as in a loop file, for example `sources[2].kind`; empty if the value as a whole is wrong."""
        return dotted(self.location)

    def said(self, quote: bool = True) -> str:
        """Return the problem and, with `quote`, the value. A text that looks like a URL is not quoted: it may contain a password."""
        if not quote or self.found is None or "://" in str(self.found):
            return self.text
        return f"{self.text} (found {str(self.found).lower() if isinstance(self.found, bool) else repr(self.found)})"

    def sentence(self, quote: bool = True) -> str:
        """Return the key and what `said` returns."""
        return f"{self.key}: {self.said(quote)}" if self.key else self.said(quote)


def problems(error: ValidationError) -> list[Problem]:
    """Return all problems that pydantic found, in its order. A value that fits none of several types is one problem."""
    found: dict[tuple[str | int, ...], Problem] = {}
    for one in map(_problem, error.errors(include_url=False)):
        first = found.get(one.location)
        if first is None:
            found[one.location] = one
        elif one.text not in first.text:
            found[one.location] = replace(first, text=f"{first.text}, or {one.text}")
    return list(found.values())


def first_problem(error: Exception, quote: bool = False) -> str:
    """Return the first problem in words. An exception that is not of pydantic says it itself.

    Without `quote`, no value is shown: for stored data, which may contain texts of users.
    """
    return problems(error)[0].sentence(quote) if isinstance(error, ValidationError) else str(error)


def invalid_options(where: str, options: type[BaseModel], error: ValidationError) -> ConfigError:
    """Return the error for options of a server or router that are invalid. `where` is their key in the loop file."""
    return ConfigError(f"{where}.{first_problem(error, quote=True)}; known options: {', '.join(options.model_fields)}")


def dotted(location: tuple[str | int, ...]) -> str:
    """Return a location as a dotted key. Positions in lists count from 1."""
    text = ""
    for part in location:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text


_BRANCH: Final = re.compile(r"(int|str|float|bool|none)$|(constrained|function|is-instance|json-or-python|lax-or-strict)-|\w+\[")
"""Names of the types of a union, which pydantic adds to the location. They are no keys."""


def _problem(one: Any) -> Problem:
    kind, context, found = one["type"], one.get("ctx", {}), one.get("input")
    word = _WORDS.get(kind)
    text = word(context) if callable(word) else word
    return Problem(
        location=tuple(part for part in one["loc"] if not _BRANCH.match(str(part))),
        kind=kind,
        text=text or _of_family(kind),
        found=found if isinstance(found, str | int | float | bool) else None,
    )


def _of_family(kind: str) -> str:
    """Word a kind that has no words of its own, for example one of a newer pydantic, by the type in its name."""
    return next((text for prefix, text in _FAMILIES.items() if kind.startswith(prefix)), "the value is not valid")


def _form(context: Mapping[str, Any]) -> str:
    form = FORMS.get(context.get("pattern", ""))
    return f"it must be a {form}" if form else f"it must match the pattern {context.get('pattern')}"


def _own(context: Mapping[str, Any]) -> str:
    """Return the message of a check of our own."""
    return str(context.get("error") or "") or "the value is not valid"


def _plain(bound: Any) -> str:
    """Return a bound as people write it: 1 instead of 1.0."""
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


_NUMBER = "a number is required"
_WHOLE = "a whole number is required"
_TEXT = "text is required"
_TRUTH = "true or false is required"
_LIST = "a list is required"
_TABLE = "a table of keys and values is required"
_DATE = "a date is required, for example 2026-11-01"
_TIME = "a date and time is required, for example 2026-11-01T12:00:00Z"
_SPAN = "a duration is required"

_WORDS: Final[dict[str, str | Callable[[Mapping[str, Any]], str]]] = {
    MISSING_KEY: "it is required",
    UNKNOWN_KEY: "it is not known",
    "unexpected_keyword_argument": "it is not known",
    "value_error": _own,
    "assertion_error": _own,
    "greater_than": lambda c: f"it must be more than {_plain(c.get('gt'))}",
    "greater_than_equal": lambda c: f"it must be at least {_plain(c.get('ge'))}",
    "less_than": lambda c: f"it must be less than {_plain(c.get('lt'))}",
    "less_than_equal": lambda c: f"it must be at most {_plain(c.get('le'))}",
    "multiple_of": lambda c: f"it must be a multiple of {_plain(c.get('multiple_of'))}",
    "finite_number": "a finite number is required",
    "int_parsing_size": "the number is too large",
    "none_required": "it must be left out",
    "string_too_short": lambda c: f"at least {c.get('min_length')} characters are required",
    "string_too_long": lambda c: f"at most {c.get('max_length')} characters are allowed",
    "string_pattern_mismatch": _form,
    "string_unicode": "it is not valid Unicode text",
    "literal_error": lambda c: f"it must be {c.get('expected')}",
    "enum": lambda c: f"it must be {c.get('expected')}",
    "too_short": lambda c: f"at least {c.get('min_length')} entries are required, and there are {c.get('actual_length')}",
    "too_long": lambda c: f"at most {c.get('max_length')} entries are allowed, and there are {c.get('actual_length') or 'more'}",
    "bytes_too_short": lambda c: f"at least {c.get('min_length')} bytes are required",
    "bytes_too_long": lambda c: f"at most {c.get('max_length')} bytes are allowed",
    "json_invalid": "it is not valid JSON",
    "json_type": "JSON is required",
    "timezone_aware": "a time with a time zone is required",
    "timezone_naive": "a time without a time zone is required",
    "datetime_past": "the time must be in the past",
    "datetime_future": "the time must be in the future",
    "date_past": "the date must be in the past",
    "date_future": "the date must be in the future",
    "union_tag_invalid": lambda c: f"{c.get('discriminator')} must be {c.get('expected_tags')}",
    "union_tag_not_found": lambda c: f"the key {c.get('discriminator')} is required",
    "recursion_loop": "it refers to itself",
    "frozen_field": "it cannot be changed",
    "frozen_instance": "it cannot be changed",
}
"""Kind of problem -> its words, or a function of its context."""

_FAMILIES: Final[dict[str, str]] = {
    "int_": _WHOLE,
    "float_": _NUMBER,
    "decimal_": _NUMBER,
    "complex_": _NUMBER,
    "bool_": _TRUTH,
    "string_": _TEXT,
    "bytes_": "bytes are required",
    "list_": _LIST,
    "tuple_": _LIST,
    "set_": _LIST,
    "frozen_set_": _LIST,
    "iterable_": _LIST,
    "dict_": _TABLE,
    "mapping_": _TABLE,
    "model_": _TABLE,
    "dataclass_": _TABLE,
    "datetime_": _TIME,
    "date_": _DATE,
    "time_delta_": _SPAN,
    "time_": "a time of the day is required, for example 12:00",
    "timezone_": "a time zone is required",
    "url_": "a URL is required",
    "uuid_": "a UUID is required",
    "missing_": "it is required",
    "unexpected_": "it is not known",
}
"""Begin of a kind -> its words. The first that fits applies."""
