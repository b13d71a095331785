"""Finds e-mail addresses, also those that people spell to avoid being found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ratchet.materializer.privacy.finding import Finding, words_before
from ratchet.materializer.privacy.search import Part, Rule, Scan, merged, places

_NAME, _DOMAIN = 64, 400
"""Longest name before the sign of an address, and longest domain behind it, in characters."""
_ADDRESS = re.compile(r"(?<![\w.+-])[\w][\w.+%'-]{0,63}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9_-])")
_REST = re.compile(r"[\w.-]*")
_PATH = re.compile(r":(?!//)[\w.~+-]*/[^\s]|:[\w.~+-]+\.git\b")
"""What follows the host of a remote: `git@host:team/repository`."""
_ACCOUNTS = re.compile(
    r"(?:git|hg|svn|root|admin|administrator|ubuntu|debian|centos|fedora|core|ec2-user|azureuser|opc|pi|vagrant|deploy|deployer|www-data|"
    r"nginx|apache|postgres|mysql|jenkins|runner|builder|ansible|backup|user|username|gitlab|gitea|gerrit|aur)@",
    re.IGNORECASE,
)
_REMOTE_WORDS = re.compile(r"(?:\b(?:ssh|scp|sftp|rsync|mosh|ssh-copy-id|sshfs|git|hg|autossh)\b[^|;&]*[\s=]|\b[a-z+]{2,12}://)$")
"""A command that logs in on another machine, or the scheme of a URL, right before an address."""

_BRACKETED_AT, _BRACKETED_DOT = r" ?[(\[{] ?at ?[)\]}] ?", r" ?[(\[{] ?dot ?[)\]}] ?"
_AT_WORDS = ("arroba", "arobase", "chiocciola", "małpa", "malpa", "klammeraffe")
_DOT = r" (?:dot|punkt|punto|point|ponto|kropka) "
_LOCAL = r"(?<![\w.+-])\w[\w.+%-]{0,63}"
_BRACKETED = re.compile(
    rf"{_LOCAL}{_BRACKETED_AT}[^\W_][\w-]{{0,61}}(?:(?: ?\. ?|{_BRACKETED_DOT}|{_DOT})[^\W_][\w-]{{1,61}}){{1,4}}", re.IGNORECASE
)
"""An address with `(at)`."""
_WORDED = re.compile(
    rf"{_LOCAL}(?: (at) | (?:{'|'.join(_AT_WORDS)}) )([^\W_][\w-]{{0,61}})(?:(?:{_DOT}|\.)[^\W_][\w-]{{1,23}}){{1,4}}(?!\w)", re.IGNORECASE
)
"""An address whose sign is a word. `at` has other meanings, too."""
_KOREAN = re.compile(
    rf"{_LOCAL} ?골뱅이 ?([a-z0-9][a-z0-9-]{{0,61}}(?: ?(?:\.|점|닷) ?[a-z0-9-]{{2,24}}){{1,4}})", re.IGNORECASE | re.ASCII
)
"""An address whose sign and dots are Korean words."""
_FROM_AT = re.compile(rf" at [\w-]{{1,62}}(?:\.[^\W_]|{_DOT})", re.IGNORECASE)
"""The part of such an address from the word `at` on."""
_PROVIDERS = frozenset(
    {
        *("gmail", "googlemail", "yahoo", "ymail", "outlook", "hotmail", "live", "msn", "icloud", "me", "mac", "aol"),
        *("proton", "protonmail", "gmx", "web", "freenet", "posteo", "mailbox", "tutanota", "zoho", "fastmail", "hey"),
        *("orange", "free", "laposte", "libero", "wp", "onet", "interia", "o2", "naver", "daum", "hanmail", "qq", "163"),
        *("126", "yandex", "mail"),
    }
)
_MAIL_WORDS = re.compile(r"\be-?mails?\b|\bmails?\b|\baddress\b|\badresse\b|\bwrite to\b|\bcontact\b")
_BRACKETS = places(*(f"{mark}{space}at" for mark in "([{" for space in ("", " ")))
_AT = places(" at ")
_DOTTED = re.compile(rb"\.[0-9A-Za-z?\x80-\xff]")
"""A dot that a letter or digit follows. `?` stands for the characters outside of Latin-1."""
_DOTS = places(" dot ", " punkt ", " punto ", " point ", " ponto ", " kropka ")
_WORDS = places(*(f" {word} " for word in (*_AT_WORDS, "ma?pa")))
_KOREAN_AT = places("골뱅이")
_SENTENCE = frozenset(
    {
        *("me", "us", "you", "him", "her", "it", "them", "this", "that", "these", "those", "is", "are", "was", "were"),
        *("be", "been", "look", "looks", "looked", "looking", "find", "found", "arrive", "arrived", "available", "back"),
        *("not", "here", "there", "also", "and", "or", "now", "only", "online", "up", "out", "just", "live", "buy", "sold"),
        *("shop", "visit", "see", "seen", "sign", "signup", "work", "works", "worked", "working", "email", "mail", "address"),
    }
)
"""Words before `at` that are no names."""


def _around_at(scan: Scan) -> Sequence[Part]:
    at, parts = scan.plain.find(b"@"), list[Part]()
    while at >= 0:
        rest = _REST.match(scan.text, at + 1)
        parts.append((at - _NAME, (rest.end() if rest else at) + 1))
        at = scan.plain.find(b"@", at + 1)
    return merged(parts, len(scan.text)) if parts else ()


def _bracketed(scan: Scan) -> Sequence[Part]:
    if not (b"(" in scan.plain or b"[" in scan.plain or b"{" in scan.plain):
        return ()
    found = _BRACKETS(scan)
    return _around(scan, found) if found else ()


def _worded(scan: Scan) -> Sequence[Part]:
    if not _DOTTED.search(scan.plain) and not _DOTS(scan):
        return ()  # no domain
    found = [at for at in _AT(scan) if _FROM_AT.match(scan.text, at)] + _WORDS(scan)
    return _around(scan, found) if found else ()


def _korean(scan: Scan) -> Sequence[Part]:
    found = _KOREAN_AT(scan)
    return _around(scan, found) if found else ()


def _around(scan: Scan, found: Iterable[int]) -> Sequence[Part]:
    return merged(((at - _NAME - 3, at + _DOMAIN) for at in found), len(scan.text))


def _address(match: re.Match[str]) -> Iterator[Finding]:
    text, end = match.string, match.end()
    remote = text[end : end + 1] == ":" and _PATH.match(text, end, end + 200)
    account = _ACCOUNTS.match(match.group()) and _REMOTE_WORDS.search(words_before(text, match.start()))
    if not remote and not account:
        yield Finding(*match.span(), "email", match.group().casefold())


def _plain(spelled: str, at: str) -> str:
    """Return the address that a text spells, where `at` matches its sign."""
    with_sign = re.sub(at, "@", spelled, count=1, flags=re.IGNORECASE)
    return re.sub(rf"{_BRACKETED_DOT}|{_DOT}| ?\. ?", ".", with_sign, flags=re.IGNORECASE).casefold()


def _with_brackets(match: re.Match[str]) -> Iterator[Finding]:
    yield Finding(*match.span(), "email", _plain(match.group(), _BRACKETED_AT))


def _with_words(match: re.Match[str]) -> Iterator[Finding]:
    local = match.group().split(" ", 1)[0].casefold()
    if match[1]:  # `at`, which needs a reason to be the sign of an address
        spelled = re.search(_DOT, match.group(), re.IGNORECASE) is not None
        named = match[2].casefold() in _PROVIDERS
        said = _MAIL_WORDS.search(words_before(match.string, match.start())) is not None
        structured = re.search(r"\w[._+\d-]+\w|\d$", local) is not None
        if local in _SENTENCE or not (named or (spelled and (said or structured))):
            return
    yield Finding(*match.span(), "email", _plain(match.group(), rf" (?:at|{'|'.join(_AT_WORDS)}) "))


def _in_korean(match: re.Match[str]) -> Iterator[Finding]:
    name, _, domain = match.group().partition("골뱅이")
    yield Finding(*match.span(), "email", f"{name.strip()}@{re.sub(' ?[점닷] ?', '.', domain.strip())}".casefold())


EMAILS = (
    Rule(_ADDRESS, _address, _around_at),
    Rule(_BRACKETED, _with_brackets, _bracketed),
    Rule(_WORDED, _with_words, _worded),
    Rule(_KOREAN, _in_korean, _korean),
)
"""The rules of e-mail addresses. Addresses with equal letters in another case are one address."""
