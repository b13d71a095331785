"""Finds API keys, tokens, passwords and private keys.

The forms of the tokens are those that their issuers document and common secret scanners look for. A value with a general form counts only
behind a name such as `password=`, and if it looks random.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ratchet.materializer.privacy.finding import Finding
from ratchet.materializer.privacy.search import Part, Rule, Scan, keys, merged, places, starting_with

_TOKENS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    + "|".join(
        (
            r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}",  # AWS access key id
            r"gh[pousr]_[A-Za-z0-9]{36,255}",  # GitHub
            r"github_pat_[A-Za-z0-9_]{22,255}",
            r"gl(?:pat|dt|rt|cbt|ptt|soat|agent)-[A-Za-z0-9_-]{20,64}",  # GitLab
            r"xox[abeoprs]-[A-Za-z0-9-]{10,250}",  # Slack
            r"xapp-\d-[A-Z0-9]+-\d+-[a-z0-9]{20,80}",
            r"AIza[A-Za-z0-9_-]{35}",  # Google
            r"ya29\.[A-Za-z0-9_-]{20,500}",
            r"GOCSPX-[A-Za-z0-9_-]{28}",
            r"sk-(?:proj-|svcacct-|admin-|ant-(?:api|admin)\d\d-|or-v1-)?[A-Za-z0-9_-]{20,200}",  # OpenAI, Anthropic, OpenRouter, LiteLLM
            r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,250}",  # Stripe
            r"whsec_[A-Za-z0-9+/=]{24,80}",
            r"hf_[A-Za-z0-9]{30,50}",  # Hugging Face
            r"npm_[A-Za-z0-9]{36}",
            r"pypi-AgE[A-Za-z0-9_-]{50,300}",
            r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}",  # SendGrid
            r"(?:SK|AC)[0-9a-f]{32}",  # Twilio
            r"key-[0-9a-f]{32}",  # Mailgun
            r"\d{8,10}:AA[A-Za-z0-9_-]{32,34}",  # Telegram
            r"dapi[0-9a-f]{32}(?:-\d)?",  # Databricks
            r"do[opr]_v1_[0-9a-f]{64}",  # DigitalOcean
            r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # Shopify
            r"hv[sb]\.[A-Za-z0-9_-]{20,300}",  # Vault
            r"(?:glsa|glc)_[A-Za-z0-9_+/=]{32,200}",  # Grafana
            r"lin_api_[A-Za-z0-9]{32,64}",
            r"(?:ntn|secret)_[A-Za-z0-9]{40,60}",  # Notion
            r"(?:gsk|r8|xai|pplx|tvly|pk-lf|sk-lf|lsv2_pt|lsv2_sk)[_-][A-Za-z0-9_-]{24,120}",  # model and tracing services
            r"dckr_pat_[A-Za-z0-9_-]{20,64}",
            r"(?:A3T[A-Z0-9]|ATATT3)[A-Za-z0-9_=-]{60,250}",  # Atlassian
            r"EAA[A-Za-z0-9]{80,250}",  # Facebook
            r"sq0(?:atp|csp)-[A-Za-z0-9_-]{22,60}",  # Square
            r"eyJ[A-Za-z0-9_-]{8,4000}\.eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{10,2000}",  # JSON web token
        )
    )
    + r")(?![A-Za-z0-9_])"
)
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-\0]|-(?!----END)){0,20000}"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
)
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^\s:/@]{0,64}:([^\s/@]{3,128})@", re.IGNORECASE)
"""A URL with a password."""
_SLACK = re.compile(r"hooks\.slack\.com/services/(T[A-Za-z0-9]+/B[A-Za-z0-9]+/[A-Za-z0-9]{16,})")
_BEARER = re.compile(r"\b(?:bearer|basic|token)\s+([A-Za-z0-9._~+/-]{20,2000}={0,2})(?![\w.])", re.IGNORECASE)
_AZURE = re.compile(r"AccountKey=([A-Za-z0-9+/]{86}==)")
_NAMES = ("pass", "pwd", "secret", "token", "credential", "비밀번호", "kennwort", "mot de passe", "contrase")
_NAME = r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credential|비밀번호|passwort|kennwort|mot de passe|contrase[nñ]a)"
_KEY_NAME = r"(?:api|access|client|auth|private)[ _-]?key"
_VALUE = (
    r"[\w-]{0,20}[\"']?(?:\s{0,3}(?::=|=>|[:=])\s{0,3}|\s{1,3}is:?\s{1,3})[\"'`]?"  # an assignment
    r"([^\s\"'`,;<>(){}\[\]]{6,256})"
)
_ASSIGNED = re.compile(_NAME + _VALUE, re.IGNORECASE)
_KEY_ASSIGNED = re.compile(_KEY_NAME + _VALUE, re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"[$%*]|^x+$|^\.+$|example|changeme|change_me|your[_-]|redacted|placeholder|^(?:null|none|true|false|string|required|undefined)$",
    re.IGNORECASE,
)
_WORD = r"(?:[a-z]{1,16}|[A-Z]{1,16}|(?:[A-Z]?[a-z]{2,16})(?:[A-Z][a-z]{2,16})*)"
_IDENTIFIER = re.compile(rf"{_WORD}(?:[._~+/-]+{_WORD})*")
"""A name that consists of words, such as names in programs have. Keys have digits, or letters in no order."""
_GENERAL = re.compile(r"(?:sk|gsk|r8|xai|pplx|tvly|glpat|hvs|hvb)[._-](.*)")
"""Forms of tokens that also names of programs can have: their part behind the prefix."""


def _whole(match: re.Match[str]) -> Iterator[Finding]:
    general = _GENERAL.fullmatch(match.group())
    if not general or not _IDENTIFIER.fullmatch(general[1]):
        yield Finding(*match.span(), "secret", match.group())


def _private_key(match: re.Match[str]) -> Iterator[Finding]:
    yield Finding(*match.span(), "secret", match.group().rstrip())


def _named(match: re.Match[str]) -> Iterator[Finding]:
    if not _PLACEHOLDER.search(match[1]):
        yield Finding(*match.span(1), "secret", match[1])


def _credentials(match: re.Match[str]) -> Iterator[Finding]:
    if not _IDENTIFIER.fullmatch(match[1]):
        yield from _named(match)


def _assigned(match: re.Match[str]) -> Iterator[Finding]:
    value = match[1].rstrip(".!?:")
    if _looks_random(value):
        yield Finding(match.start(1), match.start(1) + len(value), "secret", value)


def _looks_random(value: str) -> bool:
    """Return whether a value may be a password or a key: characters of several classes, many different ones, and no placeholder."""
    classes = sum(any(test(sign) for sign in value) for test in (str.islower, str.isupper, str.isdigit, _is_special))
    if _PLACEHOLDER.search(value) or classes < 2 or len(value) < 6:
        return False
    counts = Counter(value)
    entropy = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    return entropy >= 2.5 and (any(sign.isdigit() for sign in value) or classes >= 3)


def _is_special(sign: str) -> bool:
    return sign in "!@#^&*+=?|~"


_SCHEME_ENDS, _KEY_WORDS = places("://"), places("key")


def _urls(scan: Scan) -> Sequence[Part]:
    if b"@" not in scan.plain:
        return ()
    # Behind `://` stand at most 64 + 1 + 128 characters and the sign.
    return merged(((at - 22, at + 200) for at in _SCHEME_ENDS(scan) if b"@" in scan.plain[at : at + 200]), len(scan.text))


def _if_keys(clue: Callable[[Scan], Sequence[Part]]) -> Callable[[Scan], Sequence[Part]]:
    """Return the clue of a rule whose matches also contain a long run of the characters of keys."""
    return lambda scan: clue(scan) if scan.keys else ()


def _if_assigned(clue: Callable[[Scan], Sequence[Part]]) -> Callable[[Scan], Sequence[Part]]:
    """Return the clue of a rule whose matches also contain an assignment."""

    def found(scan: Scan) -> Sequence[Part]:
        return clue(scan) if b":" in scan.plain or b"=" in scan.plain or b"is" in scan.low else ()

    return found


def _key_names(scan: Scan) -> Sequence[Part]:
    """The names begin three to eight characters before the word `key`."""
    found = (at + back for at in _KEY_WORDS(scan) for back in range(-8, -2) if at + back >= 0)
    return [(at, at) for at in sorted({at for at in found if scan.low[at] in b"acp"})]


SECRETS = (
    Rule(_TOKENS, _whole, keys),
    Rule(_PEM, _private_key, starting_with("-----begin"), anchored=True),
    Rule(_URL, _named, _urls),
    Rule(_SLACK, _named, _if_keys(starting_with("hooks.slack.com/services/")), anchored=True),
    Rule(_BEARER, _credentials, _if_keys(starting_with("bearer", "basic", "token")), anchored=True),
    Rule(_AZURE, _named, _if_keys(starting_with("accountkey=")), anchored=True),
    Rule(_ASSIGNED, _assigned, _if_assigned(starting_with(*_NAMES)), anchored=True),
    Rule(_KEY_ASSIGNED, _assigned, _if_assigned(_key_names), anchored=True),
)
"""The rules of API keys, tokens, passwords and private keys."""
