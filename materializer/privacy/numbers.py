"""Finds payment cards and bank accounts, whose checksums are verified (python-stdnum)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stdnum import iban, luhn

from ratchet.materializer.privacy.finding import Finding, digits
from ratchet.materializer.privacy.search import Part, Rule, Scan, numbers

_CARD = re.compile(r"(?<![\w.-])\d(?:[ \u00a0-]?\d){12,18}(?![\w-]|\.\d)", re.ASCII)
_ISSUERS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|"
    r"6(?:011|4[4-9]\d|5\d\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{8,15}"
)
"""Numbers of Visa, Mastercard, American Express, Diners Club, Discover, JCB, UnionPay and Maestro: first digits and length."""
_GROUPINGS = re.compile(r"\d{4}([ -])\d{4}\1\d{4}\1\d{1,4}(?:\1\d{1,3})?|\d{4}([ -])\d{6}\2\d{4,5}|\d{13,19}")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]{4}){2,7}(?:[ -]?[A-Za-z0-9]{1,3})?(?![A-Za-z0-9])", re.ASCII)


def _card(match: re.Match[str]) -> Iterator[Finding]:
    """First digits, length, grouping and the Luhn checksum must fit."""
    number = digits(match.group())
    if _ISSUERS.fullmatch(number) and _GROUPINGS.fullmatch(match.group().replace("\u00a0", " ")) and luhn.is_valid(number):
        yield Finding(*match.span(), "card", number)


def _account(match: re.Match[str]) -> Iterator[Finding]:
    """Country and checksum must fit (ISO 13616)."""
    found = match.group()
    # A word may follow the number, which the pattern takes for its last group.
    while found:
        if iban.is_valid(found):
            yield Finding(match.start(), match.start() + len(found), "iban", iban.compact(found))
            break
        found = found[: max(found.rfind(" "), found.rfind("-"), 0)]


def _countries(scan: Scan) -> list[Part]:
    return [(at, at) for at in scan.shaped(b"aa00")]


CARDS = (Rule(_CARD, _card, numbers(11)),)
"""The rule of payment cards."""
IBANS = (Rule(_IBAN, _account, _countries, anchored=True),)
"""The rule of international bank account numbers."""
