"""Finds national identity numbers, whose checksums are verified where they have one (python-stdnum)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module

from ratchet.materializer.privacy.finding import Finding, digits, words_before
from ratchet.materializer.privacy.search import Clue, Rule, keys, numbers

_FORMS: tuple[tuple[str, str, Clue], ...] = (
    (r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])", "us.ssn", numbers(9)),
    # Corsica has letters between the digits.
    (r"(?<!\w)[12] ?\d{2} ?\d{2} ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}(?!\w)", "fr.nir", numbers(6)),
    (r"(?<![\w-])\d{8}-?[A-HJ-NP-TV-Z](?![\w-])", "es.dni", numbers(8)),
    (r"(?<![\w-])[XYZ]-?\d{7}-?[A-HJ-NP-TV-Z](?![\w-])", "es.nie", numbers(7)),
    (r"(?i:(?<!\w)[A-Z]{6}\d{2}[A-EHLMPR-T]\d{2}[A-Z]\d{3}[A-Z](?!\w))", "it.codicefiscale", keys),
    (r"(?<![\w-])(?:19|20)?\d{6}[-+]\d{4}(?![\w-])", "se.personnummer", numbers(6, behind=7)),
    (r"(?<![\w-])\d{6}[-+A-FU-Y]\d{3}[0-9A-FHJ-NPR-Y](?![\w-])", "fi.hetu", numbers(6, behind=7)),
    (r"(?<![\w-])\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}(?![\w-])", "be.nn", numbers(11)),
    (r"(?<![\w.])756\.?\d{4}\.?\d{4}\.?\d{2}(?![\w.])", "ch.ssn", numbers(13)),
    (r"(?<![\w-])\d{3}\.\d{3}\.\d{3}-\d{2}(?![\w-])", "br.cpf", numbers(11)),
    (r"(?<![\w-])[1-9]\d{16}[\dX](?![\w-])", "cn.ric", numbers(17)),
    (r"(?<!\w)[A-Z]{4}\d{6}[HM][A-Z]{5}[0-9A-Z]\d(?!\w)", "mx.curp", keys),
)
"""(form, module of stdnum that verifies it, clue) of the numbers with an unmistakable form."""
_NINO = re.compile(r"(?<!\w)(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D](?!\w)", re.ASCII)
"""British National Insurance number, which has no checksum."""
_RRN = re.compile(r"(?<![\w-])(\d{2})(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(-?)[1-8]\d{6}(?![\w-])", re.ASCII)
"""Korean resident registration number: birth date, sex and century, and six digits, which have no checksum since October 2020."""
_RRN_WORDS = re.compile(r"주민|\brrn\b|resident")

_LABELS = (
    (r"\bssn\b|social security", ("us.ssn",)),
    (r"\bitin\b", ("us.itin",)),
    (r"\bsin\b|social insurance|assurance sociale", ("ca.sin",)),
    (r"\bcpf\b", ("br.cpf",)),
    (r"\brut\b|\brun\b", ("cl.rut",)),
    (r"a[a]?dha+r|आधार", ("in_.aadhaar",)),
    (r"マイナンバー|個人番号|my number", ("jp.in_",)),
    (r"kimlik|\btckn\b", ("tr.tckimlik",)),
    (r"tax file|\btfn\b", ("au.tfn",)),
    (r"personnummer|samordningsnummer|f[øo]dsels", ("se.personnummer", "no.fodselsnummer", "dk.cpr")),
    (r"\bcpr\b", ("dk.cpr",)),
    (r"\bbsn\b|burgerservice|sofi", ("nl.bsn",)),
    (r"pesel", ("pl.pesel",)),
    (r"rijksregister|registre national|nationalregister|num[ée]ro national", ("be.nn",)),
    (r"\bahv|\bavs\b", ("ch.ssn",)),
    (r"steuer|tax|idnr|identifikation", ("de.idnr",)),
    (r"sozialversicherung|\bsvnr\b", ("at.vnr",)),
    (r"\bnif\b|contribuinte", ("pt.nif",)),
    (r"\bpps", ("ie.pps",)),
    (r"rodn[ée] [čc]|\brč\b", ("cz.rc",)),
    (r"\bcnp\b", ("ro.cnp",)),
    (r"\boib\b", ("hr.oib",)),
    (r"\bamka\b|αμκα", ("gr.amka",)),
    (r"\begn\b|егн", ("bg.egn",)),
    (r"isikukood|asmens kod", ("ee.ik", "lt.asmens")),
    (r"em[šs]o\b", ("si.emso",)),
    (r"teudat|תעודת|ת\.ז", ("il.idnr",)),
    (r"south african id|\brsa id|\bsa id", ("za.idnr",)),
    (r"\bnhs\b", ("gb.nhs",)),
    (r"nric|mykad", ("my.nric",)),
)
"""(words, modules of stdnum that verify it) of the numbers that look like others. One of the words must stand before the number."""
_MODULES = tuple(modules for _, modules in _LABELS)
_LABEL = re.compile("|".join(f"({words})" for words, _ in _LABELS))
_LABELLED = re.compile(r"(?<![\w-])\d(?:[ .\-/]?\d){6,13}(?:-?[A-Z]{1,2})?(?![\w-])", re.ASCII)
_LEAST = 8
"""Least number of digits of a number behind a label, or of digits and letters."""


def _verify(module: str) -> Callable[[str], bool]:
    """Return the function that verifies a number of this kind. Modules of stdnum load their data at import."""
    found: Callable[[str], bool] = import_module(f"stdnum.{module}").is_valid
    return found


def _compact(raw: str) -> str:
    return re.sub(r"[^0-9A-Z]", "", raw.upper())


def _form(module: str) -> Callable[[re.Match[str]], Iterator[Finding]]:
    def check(match: re.Match[str]) -> Iterator[Finding]:
        if _verify(module)(match.group()):
            yield Finding(*match.span(), "national_id", _compact(match.group()))

    return check


def _labelled(match: re.Match[str]) -> Iterator[Finding]:
    """The words before a number say which checksum it must have. Further numbers may follow it behind a space."""
    modules = [one for label in _LABEL.finditer(words_before(match.string, match.start())) for one in _MODULES[(label.lastindex or 1) - 1]]
    found = match.group() if modules else ""
    while found:
        number = _compact(found)
        if len(number) >= _LEAST and any(_verify(module)(number) for module in modules):
            yield Finding(match.start(), match.start() + len(found), "national_id", number)
            break
        found = found[: max(found.rfind(" "), 0)]


def _nino(match: re.Match[str]) -> Iterator[Finding]:
    yield Finding(*match.span(), "national_id", match.group().replace(" ", ""))


def _rrn(match: re.Match[str]) -> Iterator[Finding]:
    if match[4] or _RRN_WORDS.search(words_before(match.string, match.start())) or _verify("kr.rrn")(match.group()):
        yield Finding(*match.span(), "national_id", digits(match.group()))


IDENTITIES = (
    *(Rule(re.compile(form, re.ASCII), _form(module), clue) for form, module, clue in _FORMS),
    Rule(_LABELLED, _labelled, numbers(7, behind=5)),
    Rule(_NINO, _nino, numbers(6)),
    Rule(_RRN, _rrn, numbers(13)),
)
"""The rules of national identity numbers."""
