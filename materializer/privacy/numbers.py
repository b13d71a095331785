"""Finds payment cards, bank accounts and national identity numbers, whose checksums are verified (python-stdnum)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

from stdnum import iban, luhn

from ratchet.materializer.privacy.finding import Finding, digits, words_before

_CARD = re.compile(r"(?<![\w.-])\d(?:[ \u00a0-]?\d){12,18}(?![\w-]|\.\d)", re.ASCII)
_ISSUERS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|"
    r"6(?:011|4[4-9]\d|5\d\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{8,15}"
)
"""Numbers of Visa, Mastercard, American Express, Diners Club, Discover, JCB, UnionPay and Maestro: first digits and length."""
_GROUPINGS = re.compile(r"\d{4}([ -])\d{4}\1\d{4}\1\d{1,4}(?:\1\d{1,3})?|\d{4}([ -])\d{6}\2\d{4,5}|\d{13,19}")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]{4}){2,7}(?:[ -]?[A-Za-z0-9]{1,3})?(?![A-Za-z0-9])")


class _Identity(NamedTuple):
    """A kind of national identity number."""

    pattern: re.Pattern[str]
    is_valid: str
    """Module of stdnum that verifies it."""
    words: re.Pattern[str] | None = None
    """Words of which one must stand before the number, because other numbers look like it. None: the form is unmistakable."""


_IDENTITIES = (
    _Identity(re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])", re.ASCII), "us.ssn"),
    _Identity(
        re.compile(r"(?<![\w-])\d{2} ?\d{3} ?\d{3} ?\d{3}(?![\w-])", re.ASCII), "de.idnr", re.compile(r"steuer|tax|idnr|identifikation")
    ),
    _Identity(re.compile(r"(?<!\w)[12] ?\d{2} ?\d{2} ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}(?!\w)", re.ASCII), "fr.nir"),
    _Identity(re.compile(r"(?<![\w-])\d{8}-?[A-HJ-NP-TV-Z](?![\w-])", re.ASCII), "es.dni"),
    _Identity(re.compile(r"(?<![\w-])[XYZ]-?\d{7}-?[A-HJ-NP-TV-Z](?![\w-])", re.ASCII), "es.nie"),
    _Identity(re.compile(r"(?<!\w)[A-Z]{6}\d{2}[A-EHLMPR-T]\d{2}[A-Z]\d{3}[A-Z](?!\w)", re.IGNORECASE | re.ASCII), "it.codicefiscale"),
    _Identity(re.compile(r"(?<![\w-])\d{11}(?![\w-])", re.ASCII), "pl.pesel", re.compile(r"pesel")),
    _Identity(re.compile(r"(?<![\w-])\d{9}(?![\w-])", re.ASCII), "nl.bsn", re.compile(r"\bbsn\b|burgerservice|sofi")),
    _Identity(re.compile(r"(?<![\w-])(?:19|20)?\d{6}[-+]\d{4}(?![\w-])", re.ASCII), "se.personnummer"),
    _Identity(re.compile(r"(?<![\w-])\d{6}[-+A-FU-Y]\d{3}[0-9A-FHJ-NPR-Y](?![\w-])", re.ASCII), "fi.hetu"),
    _Identity(re.compile(r"(?<![\w-])\d{6}-\d{4}(?![\w-])", re.ASCII), "dk.cpr", re.compile(r"\bcpr\b|personnummer")),
    _Identity(re.compile(r"(?<![\w-])\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}(?![\w-])", re.ASCII), "be.nn"),
    _Identity(re.compile(r"(?<![\w.])756\.?\d{4}\.?\d{4}\.?\d{2}(?![\w.])", re.ASCII), "ch.ssn"),
    _Identity(re.compile(r"(?<![\w-])\d{6} ?\d{5}(?![\w-])", re.ASCII), "no.fodselsnummer", re.compile(r"f[øo]dsels|personnummer")),
)
_NINO = re.compile(r"(?<!\w)(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D](?!\w)", re.ASCII)
"""British National Insurance number, which has no checksum."""
_RRN = re.compile(r"(?<![\w-])(\d{2})(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(-?)[1-8]\d{6}(?![\w-])", re.ASCII)
"""Korean resident registration number: birth date, sex and century, and six digits, which have no checksum since October 2020."""
_RRN_WORDS = re.compile(r"주민|\brrn\b|resident")


def find_cards(text: str) -> Iterator[Finding]:
    """Yield the numbers of payment cards: first digits, length, grouping and the Luhn checksum must fit."""
    for match in _CARD.finditer(text):
        number = digits(match.group())
        if _ISSUERS.fullmatch(number) and _GROUPINGS.fullmatch(match.group().replace("\u00a0", " ")) and luhn.is_valid(number):
            yield Finding(*match.span(), "card", number)


def find_ibans(text: str) -> Iterator[Finding]:
    """Yield the international bank account numbers, verified by country and checksum (ISO 13616)."""
    for match in _IBAN.finditer(text):
        found = match.group()
        # A word may follow the number, which the pattern takes for its last group.
        while found:
            if iban.is_valid(found):
                yield Finding(match.start(), match.start() + len(found), "iban", iban.compact(found))
                break
            found = found[: max(found.rfind(" "), found.rfind("-"), 0)]


def find_identities(text: str) -> Iterator[Finding]:
    """Yield national identity numbers of the United States, Korea and European countries."""
    for kind in _IDENTITIES:
        for match in kind.pattern.finditer(text):
            if (kind.words is None or kind.words.search(words_before(text, match.start()))) and _verify(kind.is_valid)(match.group()):
                yield Finding(*match.span(), "national_id", re.sub(r"[^0-9A-Z]", "", match.group().upper()))
    for match in _NINO.finditer(text):
        yield Finding(*match.span(), "national_id", match.group().replace(" ", ""))
    for match in _RRN.finditer(text):
        if match[4] or _RRN_WORDS.search(words_before(text, match.start())) or _verify("kr.rrn")(match.group()):
            yield Finding(*match.span(), "national_id", digits(match.group()))


def _verify(module: str) -> Callable[[str], bool]:
    """Return the function that verifies a number of this kind. Modules of stdnum load their data at import."""
    found: Callable[[str], bool] = import_module(f"stdnum.{module}").is_valid
    return found
