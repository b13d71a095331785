"""Finds e-mail addresses, phone numbers and IP addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence

from phonenumbers import (
    Leniency,
    NumberParseException,
    PhoneNumberFormat,
    PhoneNumberMatcher,
    format_number,
    is_possible_number,
    is_valid_number,
    parse,
)

from ratchet.materializer.privacy.finding import Finding, digits, words_before

_EMAIL = re.compile(r"(?<![\w.+-])[\w][\w.+%'-]{0,63}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9_-])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)", re.ASCII)
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9a-f]{0,4}:[0-9a-f:]*:)[0-9a-f:]{3,39}(?![\w:])", re.IGNORECASE | re.ASCII)
_VERSION_WORDS = re.compile(r"\b(?:v|ver|version|release|build|update|upgrade|driver|firmware)\b[^,;]*$")
_RUN = re.compile(r"(?<![\w.,$€£#-])\(?(?:\+|00)?\(?\d(?:[ \t\u00a0().\-\u2010-\u2015\u2212/·]{0,3}\d){6,18}(?![\w%])", re.ASCII)
"""A run of digits and separators that may contain a phone number."""
_GROUPS = 7
"""Largest number of groups of digits of one phone number."""
_LENGTHS = range(7, 16)
_MOBILE_KR = re.compile(r"01[016789]\d{7,8}")
_SINGLE = re.compile(r"(?<!\d)\d(?!\d)")
_GROUP = re.compile(r"\(?\+?\d+\)?")
_DATE = re.compile(
    r"(?:19|20)\d\d[-./ ](?:0?[1-9]|1[0-2])[-./ ](?:0?[1-9]|[12]\d|3[01])|"
    r"(?:0?[1-9]|[12]\d|3[01])[-./ ](?:0?[1-9]|1[0-2])[-./ ](?:19|20)\d\d"
)
_PHONE_WORDS = re.compile(
    r"phone|mobile|\bcell\b|\btel\b|\btel[.:/]|\bfax\b|\bcall\b|\bring\b|\btext\b|\bsms\b|whats ?app|contact|telefon|handy|mobil|rufnummer|"
    r"anruf|t[eé]l[eé]phone|portable|appel|m[oó]vil|llam|telefono|cellulare|chiam|telefoon|bel\b|kom[oó]rk|dzwo|전화|연락처|휴대폰|핸드폰|번호로"
)


_SPELLED = re.compile(
    r"(?<![\w.+-])\w[\w.+%-]{0,63} ?[(\[{] ?at ?[)\]}] ?"
    r"[^\W_][\w-]{0,61}(?: ?(?:\.|[(\[{] ?dot ?[)\]}]) ?[^\W_][\w-]{1,61}){1,4}",
    re.IGNORECASE,
)
"""An address with `(at)`, as people write it to avoid being found."""


def find_emails(text: str) -> Iterator[Finding]:
    """Yield the e-mail addresses in a text. Addresses with equal letters in another case are one address."""
    if "@" in text:
        for match in _EMAIL.finditer(text):
            yield Finding(*match.span(), "email", match.group().casefold())
    for match in _SPELLED.finditer(text):
        plain = re.sub(
            r" ?[(\[{] ?(at|dot) ?[)\]}] ?", lambda word: "@" if word[1].lower() == "at" else ".", match.group(), flags=re.IGNORECASE
        )
        yield Finding(*match.span(), "email", plain.casefold())


def find_ips(text: str) -> Iterator[Finding]:
    """Yield the public IP addresses in a text. Private, loopback and documentation addresses identify nobody."""
    for pattern in (_IPV4, _IPV6):
        for match in pattern.finditer(text):
            try:
                address = ipaddress.ip_address(match.group())
            except ValueError:
                continue
            if address.is_global and not _is_version(text, match):
                yield Finding(*match.span(), "ip", address.compressed)


def _is_version(text: str, match: re.Match[str]) -> bool:
    """Return whether four numbers are rather a version: each has one digit, or a word before them says so."""
    return len(match.group()) == 7 or _VERSION_WORDS.search(words_before(text, match.start())) is not None


def phone_finder(regions: Sequence[str]) -> Callable[[str], Iterator[Finding]]:
    """Return the function that yields the phone numbers in a text.

    Numbers with a country code are found in any form. National numbers are found if they are valid in one of the `regions` (ISO 3166)
    and written in a usual grouping. Digits without any separator also need a word before them that announces a phone number.
    """

    def find(text: str) -> Iterator[Finding]:
        for run in _RUN.finditer(text):
            groups = [(run.start() + group.start(), run.start() + group.end()) for group in _GROUP.finditer(run.group())]
            announced = _PHONE_WORDS.search(words_before(text, run.start())) is not None
            first = 0
            while first < len(groups):
                for last in range(min(len(groups), first + _GROUPS), first, -1):
                    start, end = groups[first][0], groups[last - 1][1]
                    number = _number(text[start:end], announced, regions)
                    if number is not None:
                        yield Finding(start, end, "phone", number)
                        first = last
                        break
                else:
                    first += 1

    return find


def _number(raw: str, announced: bool, regions: Sequence[str]) -> str | None:
    """Return the phone number that `raw` is, in E.164 form; None if it is none. `announced`: the words before it promise one."""
    known = digits(raw)
    singles = len(_SINGLE.findall(raw))
    if len(known) not in _LENGTHS or singles > 2 or (not announced and not _is_plausible(raw)):
        return None
    if raw.lstrip("(")[:1] == "+" or raw[:2] == "00":
        return _parsed("+" + known.removeprefix("00"), None, raw)
    found = (_parsed(raw, region, raw) for region in regions)
    return next((number for number in found if number is not None), None)


def _parsed(text: str, region: str | None, raw: str) -> str | None:
    try:
        number = parse(text, region)
    except NumberParseException:
        return None
    if region is None:
        return format_number(number, PhoneNumberFormat.E164) if is_possible_number(number) else None
    if not is_valid_number(number):
        return None
    grouped = any(match.raw_string == raw for match in PhoneNumberMatcher(raw, region, leniency=Leniency.STRICT_GROUPING))
    return format_number(number, PhoneNumberFormat.E164) if grouped else None


def _is_plausible(raw: str) -> bool:
    """Return whether digits that no word announces may be a phone number, and not a date, an amount or an id."""
    groups = re.findall(r"\d+", raw)
    if raw.lstrip("(")[:1] == "+" or raw[:2] == "00":
        return len(groups) > 1 or len(groups[0]) >= 10
    if len(groups) == 1 or "." in raw:
        return _MOBILE_KR.fullmatch(raw) is not None
    if len(groups) == 2 and raw[:1] not in "0(":
        return False  # a difference or a range
    return not _DATE.search(raw) and len(groups[0]) <= 5 and max(map(len, groups)) <= 8
