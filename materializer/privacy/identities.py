"""Finds national identity numbers, whose checksums are verified where they have one (python-stdnum)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module

from ratchet.materializer.privacy.finding import Finding, digits, words_before
from ratchet.materializer.privacy.search import Clue, Part, Rule, Scan, numbers, places, shaped

_CORSICA = places("2a", "2b")


def _french(scan: Scan) -> Sequence[Part]:
    """Fifteen digits, of which one is a letter in Corsica."""
    return (_SIX if scan.numbers and _CORSICA(scan) else _FIFTEEN)(scan)


_SIX, _SEVEN, _FIFTEEN = numbers(6), numbers(7), numbers(15)
_FORMS: tuple[tuple[str, str, Clue], ...] = (
    (r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])", "us.ssn", shaped("000-00-0000")),
    (r"(?<![\w-])\d{8}-?[A-HJ-NP-TV-Z](?![\w-])", "es.dni", shaped("00000000a", "00000000-a")),
    (r"(?<![\w-])[XYZ]-?\d{7}-?[A-HJ-NP-TV-Z](?![\w-])", "es.nie", shaped("a0000000", "a-0000000")),
    (r"(?i:(?<!\w)[A-Z]{6}\d{2}[A-EHLMPR-T]\d{2}[A-Z]\d{3}[A-Z](?!\w))", "it.codicefiscale", shaped("aaaaaa00a00a000a")),
    (
        r"(?<![\w-])(?:19|20)?\d{6}[-+]\d{4}(?![\w-])",
        "se.personnummer",
        shaped("000000-0000", "000000+0000", "00000000-0000", "00000000+0000"),
    ),
    (r"(?<![\w-])\d{6}[-+A-FU-Y]\d{3}[0-9A-FHJ-NPR-Y](?![\w-])", "fi.hetu", shaped("000000-000", "000000+000", "000000a000")),
    (r"(?<![\w-])\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}(?![\w-])", "be.nn", shaped("00.00.00-000.00")),
    (r"(?<![\w.])756\.?\d{4}\.?\d{4}\.?\d{2}(?![\w.])", "ch.ssn", shaped("0000000", "000.0000")),
    (r"(?<![\w-])\d{3}\.\d{3}\.\d{3}-\d{2}(?![\w-])", "br.cpf", shaped("000.000.000-00")),
    (r"(?<![\w-])[1-9]\d{16}[\dX](?![\w-])", "cn.ric", shaped("0" * 17)),
    (r"(?<!\w)[A-Z]{4}\d{6}[HM][A-Z]{5}[0-9A-Z]\d(?!\w)", "mx.curp", shaped("aaaa000000aaaaaa")),
)
"""(form, module of stdnum that verifies it, clue) of the numbers with an unmistakable form."""
_NIR = re.compile(r"(?<!\w)[12] ?\d{2} ?\d{2} ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}(?!\w)", re.ASCII)
"""French social security number. Corsica has letters between the digits."""
_NINO = re.compile(r"(?<!\w)(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D](?!\w)", re.ASCII)
"""British National Insurance number, which has no checksum."""
_RRN = re.compile(r"(?<![\w-])(\d{2})(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(-?)[1-8]\d{6}(?![\w-])", re.ASCII)
"""Korean resident registration number: birth date, sex and century, and six digits, which have no checksum since October 2020."""
_RRN_WORDS = re.compile(r"주민|\brrn\b|resident")

_LABELS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("ssn", r"\bssn\b", ("us.ssn",)),
    ("social sec", "social security", ("us.ssn",)),
    ("itin", r"\bitin\b", ("us.itin",)),
    ("sin", r"\bsin\b", ("ca.sin",)),
    ("social ins", "social insurance", ("ca.sin",)),
    ("assurance soc", "assurance sociale", ("ca.sin",)),
    ("cpf", r"\bcpf\b", ("br.cpf",)),
    ("rut", r"\brut\b", ("cl.rut",)),
    ("adha", r"aa?dha+r", ("in_.aadhaar",)),
    ("आधार", "आधार", ("in_.aadhaar",)),
    ("マイナンバー", "マイナンバー", ("jp.in_",)),
    ("個人番号", "個人番号", ("jp.in_",)),
    ("kimlik", "kimlik", ("tr.tckimlik",)),
    ("tckn", r"\btckn\b", ("tr.tckimlik",)),
    ("tax file", "tax file", ("au.tfn",)),
    ("tfn", r"\btfn\b", ("au.tfn",)),
    ("personnummer", "personnummer", ("se.personnummer", "no.fodselsnummer", "dk.cpr")),
    ("dsels", "f[øo]dsels", ("no.fodselsnummer",)),
    ("cpr", r"\bcpr\b", ("dk.cpr",)),
    ("bsn", r"\bbsn\b", ("nl.bsn",)),
    ("burgerservice", "burgerservice", ("nl.bsn",)),
    ("sofi", "sofi", ("nl.bsn",)),
    ("pesel", "pesel", ("pl.pesel",)),
    ("rijksregister", "rijksregister", ("be.nn",)),
    ("registre nat", "registre national", ("be.nn",)),
    ("nationalregister", "nationalregister", ("be.nn",)),
    ("ahv", r"\bahv", ("ch.ssn",)),
    ("avs", r"\bavs\b", ("ch.ssn",)),
    ("steuer", "steuer", ("de.idnr",)),
    ("tax", "tax", ("de.idnr",)),
    ("idnr", "idnr", ("de.idnr",)),
    ("identifikation", "identifikation", ("de.idnr",)),
    ("sozialversicherung", "sozialversicherung", ("at.vnr",)),
    ("svnr", r"\bsvnr\b", ("at.vnr",)),
    ("nif", r"\bnif\b", ("pt.nif",)),
    ("contribuinte", "contribuinte", ("pt.nif",)),
    ("pps", r"\bpps", ("ie.pps",)),
    ("rodn", "rodn[ée] [čc]", ("cz.rc",)),
    ("cnp", r"\bcnp\b", ("ro.cnp",)),
    ("oib", r"\boib\b", ("hr.oib",)),
    ("amka", r"\bamka\b", ("gr.amka",)),
    ("egn", r"\begn\b", ("bg.egn",)),
    ("егн", "егн", ("bg.egn",)),
    ("isikukood", "isikukood", ("ee.ik",)),
    ("asmens kod", "asmens kod", ("lt.asmens",)),
    ("em", r"\bem[šs]o\b", ("si.emso",)),
    ("teudat", "teudat", ("il.idnr",)),
    ("תעודת", "תעודת", ("il.idnr",)),
    ("african id", "south african id", ("za.idnr",)),
    ("nhs", r"\bnhs\b", ("gb.nhs",)),
    ("mykad", "mykad", ("my.nric",)),
)
"""(part of a word, the word, modules of stdnum that verify it) of the numbers that look like others. The word must stand before them."""
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
    modules = _modules_for(words_before(match.string, match.start()))
    found = match.group() if modules else ""
    while found:
        number = _compact(found)
        if len(number) >= _LEAST and any(_verify(module)(number) for module in modules):
            yield Finding(match.start(), match.start() + len(found), "national_id", number)
            break
        found = found[: max(found.rfind(" "), 0)]


@lru_cache(maxsize=4096)
def _modules_for(before: str) -> tuple[str, ...]:
    # The search for a part of the word is many times faster than the search for the word.
    return tuple(one for part, word, modules in _LABELS if part in before and re.search(word, before) for one in modules)


def _nino(match: re.Match[str]) -> Iterator[Finding]:
    yield Finding(*match.span(), "national_id", match.group().replace(" ", ""))


def _rrn(match: re.Match[str]) -> Iterator[Finding]:
    if match[4] or _RRN_WORDS.search(words_before(match.string, match.start())) or _verify("kr.rrn")(match.group()):
        yield Finding(*match.span(), "national_id", digits(match.group()))


IDENTITIES = (
    *(Rule(re.compile(form, re.ASCII), _form(module), clue, anchored=True) for form, module, clue in _FORMS),
    Rule(_NIR, _form("fr.nir"), _french),
    Rule(_LABELLED, _labelled, _SEVEN),
    Rule(_NINO, _nino, _SIX),
    Rule(_RRN, _rrn, shaped("000000-0000000", "0" * 13), anchored=True),
)
"""The rules of national identity numbers."""
