"""Finds phone numbers (libphonenumber)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from phonenumbers import (
    Leniency,
    NumberParseException,
    PhoneMetadata,
    PhoneNumberFormat,
    PhoneNumberMatcher,
    country_code_for_region,
    format_number,
    is_possible_number,
    is_valid_number,
    parse,
    region_codes_for_country_code,
)

from ratchet.materializer.privacy.finding import Finding, digits, words_before
from ratchet.materializer.privacy.search import Rule, numbers

_RUN = re.compile(r"(?<![\w.,$€£#-])\(?(?:\+|00)?\(?\d(?:[ \t\u00a0().\-\u2010-\u2015\u2212/·]{0,3}\d){6,18}(?![\w%])", re.ASCII)
"""A run of digits and separators that may contain a phone number."""
_LEAST = 7
_GROUPS = 7
"""Largest number of groups of digits of one phone number."""
_LENGTHS = range(_LEAST, 16)
_MOBILE_KR = re.compile(r"01[016789]\d{7,8}")
_SINGLES = 2
"""Largest number of groups with one digit."""
_GROUP = re.compile(r"\(?\+?\d+\)?")
_DATE = re.compile(
    r"(?:19|20)\d\d[-./ ](?:0?[1-9]|1[0-2])[-./ ](?:0?[1-9]|[12]\d|3[01])|"
    r"(?:0?[1-9]|[12]\d|3[01])[-./ ](?:0?[1-9]|1[0-2])[-./ ](?:19|20)\d\d"
)
_PHONE_WORDS = re.compile(
    r"phone|mobile|\bcell\b|\btel\b|\btel[.:/]|\bfax\b|\bcall\b|\bring\b|\btext\b|\bsms\b|whats ?app|contact|telefon|handy|mobil|rufnummer|"
    r"anruf|t[eé]l[eé]phone|portable|appel|m[oó]vil|llam|telefono|cellulare|chiam|telefoon|bel\b|kom[oó]rk|dzwo|전화|연락|휴대폰|핸드폰|번호로|"
    r"\bdial\b|\breach (?:me|us|him|her|them)\b"
)
_PHONE_PARTS = (
    *("phone", "mobil", "cell", "tel", "fax", "call", "ring", "text", "sms", "whats", "contact", "handy", "rufnummer", "anruf"),
    *(
        "portable",
        "appel",
        "móvil",
        "movil",
        "llam",
        "chiam",
        "bel",
        "kom",
        "dzwo",
        "dial",
        "reach",
        "전화",
        "연락",
        "휴대폰",
        "핸드폰",
        "번호로",
    ),
)
"""Parts of the words. The search for a part is many times faster than the search for the word."""
_OWN_NUMBER = re.compile(
    r"(?:\b(?:my|his|her|their|our|your|whose)|['’]s)(?: (?:new|old|own|other|private|personal|home|work|office|direct|current))* number\b|"
    r"(?:^|[\"'{(,;:.!?] ?)number\b|"
    r"\b(?:mein|dein|sein|ihr|unser)e? (?:neue |alte )?nummer\b|\b(?:mon|ton|son|notre|votre|leur) (?:nouveau )?num[eé]ro\b|"
    r"\b(?:mi|tu|su|mio|tuo|suo|meu|teu|seu) (?:nuevo |nuovo |novo )?n[uú]mero\b|\b(?:mijn|jouw|zijn|haar) nummer\b|"
    r"\bm[oó]j (?:nowy )?numer\b|(?:제|내|저희|새|바뀐) ?번호"
)
"""The number of a person. Orders, invoices and machines have numbers, too, which are named otherwise."""
_NUMBER_PARTS = ("num", "núm", "번호")
"""Parts of the words for a number."""
_DRAW = re.compile(r"lott|bingo|jackpot|\bdrawn?\b|tirage|sorteo|gezogen|estrazion|로또")
"""Words of games, whose numbers stand in a row."""
_PAIRS = re.compile(r"\d{1,2}(?:[ \t\u00a0./-]{1,3}\d{1,2}){5,}")
"""A row of six or more small numbers."""
_THOUSANDS = re.compile(r"(?:.*\D)?\d{1,3}(?:([ \u00a0.])\d{3})(?:\1\d{3})*")
"""A quantity whose digits are written in groups of three."""
_UNIT = re.compile(
    r"[ \u00a0]?(?:(?:[kcmµn]?m[²³23]?|[kmµ]?g|t|[mk]?l|[mµn]?s|[kMGT]?(?:Hz|W|Wh|J|Pa|i?B|bit)|°[CF]|K|EUR|USD|GBP|CHF|PLN|SEK|KRW|JPY|"
    r"[Ee]uros?|dollars?|zł|bytes?|tokens?|rows?|records?|people|users?|inhabitants|met(?:er|re)s?|miles|kilomet\w+|years?|[mb]illions?|"
    r"Einwohner\w*|Menschen|Personen|Jahre|Meter|Kilometer|habitant\w*|person[ne]\w*|personas|abitanti|inwoners|mieszkańców)(?!\w)|"
    r"[€£¥₩]|원|명|개|건|회|달러)"
)
_MONEY = re.compile(r"(?:[€$£¥₩]|\b(?:usd|eur|gbp|chf|krw|jpy)) ?$")


class _Phones:
    """The check of a run of digits, for numbers of the countries `regions` (ISO 3166)."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = regions
        self._found = lru_cache(maxsize=4096)(lambda raw, announced: tuple(self._numbers(raw, announced)))
        """The same digits return: in logs, signatures, addresses of a support."""

    def __call__(self, run: re.Match[str]) -> Iterator[Finding]:
        raw, before = run.group(), words_before(run.string, run.start())
        announced = _is_announced(before)
        found = self._found(raw, announced)
        if not found or _is_quantity(run, before) or (not announced and (_PAIRS.fullmatch(raw) or _DRAW.search(before))):
            return
        for start, end, number in found:
            yield Finding(run.start() + start, run.start() + end, "phone", number)

    def _numbers(self, raw: str, announced: bool) -> Iterator[tuple[int, int, str]]:
        """Yield the beginning, the end and the number of each phone number in a run of digits."""
        groups = [(group.start(), group.end()) for group in _GROUP.finditer(raw)]
        sizes = [len(raw[start:end].strip("(+)")) for start, end in groups]
        first = 0
        while first < len(groups):
            for last in range(min(len(groups), first + _GROUPS), first, -1):
                if sum(sizes[first:last]) not in _LENGTHS or sizes[first:last].count(1) > _SINGLES:
                    continue
                start, end = groups[first][0], groups[last - 1][1]
                number = self._number(raw[start:end], announced)
                if number is not None:
                    yield start, end, number
                    first = last
                    break
            else:
                first += 1

    def _number(self, raw: str, announced: bool) -> str | None:
        """Return the phone number that `raw` is, in E.164 form; None if it is none. `announced`: the words before it promise one."""
        if not announced and not _is_plausible(raw):
            return None
        if raw.lstrip("(")[:1] == "+" or raw[:2] == "00":
            return _parsed("+" + digits(raw).removeprefix("00"), None, raw)
        found = (_parsed(raw, region, raw) for region in self._regions)
        return next((number for number in found if number is not None), None)


def phones(regions: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules of phone numbers.

    Numbers with a country code are found in any form. National numbers are found if they are valid in one of the `regions` (ISO 3166)
    and written in a usual grouping. Digits without any separator also need a word before them that announces a phone number.
    """
    return (Rule(_RUN, _Phones(regions), numbers(_LEAST)),)


@lru_cache(maxsize=4096)
def _is_announced(before: str) -> bool:
    """Return whether the words before digits say that they are a phone number."""
    if any(part in before for part in _PHONE_PARTS) and _PHONE_WORDS.search(before):
        return True
    return any(part in before for part in _NUMBER_PARTS) and _OWN_NUMBER.search(before) is not None


def _is_quantity(run: re.Match[str], before: str) -> bool:
    """Return whether digits in groups of three have a unit or a currency."""
    if run.group()[:1] in "+(" or not _THOUSANDS.fullmatch(run.group()):
        return False
    return _UNIT.match(run.string, run.end()) is not None or _MONEY.search(before) is not None


@lru_cache(maxsize=64)
def _patterns(region: str) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of which every valid number of a country matches one, without its prefix. Empty: nothing is known.

    Countries with one country code share their numbers. In some countries, the prefix is replaced by other digits.
    """
    found, regions = list[re.Pattern[str]](), region_codes_for_country_code(country_code_for_region(region))
    for one in {region, *regions}:
        metadata = PhoneMetadata.metadata_for_region(one)
        general = metadata.general_desc if metadata is not None else None
        replaces = metadata is not None and metadata.national_prefix_transform_rule is not None and one in (region, *regions[:1])
        if replaces or general is None or general.national_number_pattern is None:
            return ()
        found.append(re.compile(general.national_number_pattern))
    return tuple(found)


@lru_cache(maxsize=64)
def _abroad(region: str) -> re.Pattern[str] | None:
    """Return the prefix of calls from a country to others."""
    metadata = PhoneMetadata.metadata_for_region(region)
    prefix = metadata.international_prefix if metadata is not None else None
    return re.compile(prefix) if prefix else None


def _may_be_valid(number: str, region: str) -> bool:
    """Return whether digits may be a valid number of a country, whatever its prefix. This costs far less than to parse them."""
    patterns, abroad = _patterns(region), _abroad(region)
    if not patterns or (abroad is not None and abroad.match(number)):
        return True
    return any(one.fullmatch(number, start) for one in patterns for start in range(len(number)))


@lru_cache(maxsize=4096)
def _parsed(text: str, region: str | None, raw: str) -> str | None:
    """Return a number in E.164 form; None if it is not valid, or is not written in a usual grouping."""
    if region is not None and not _may_be_valid(digits(text), region):
        return None
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
