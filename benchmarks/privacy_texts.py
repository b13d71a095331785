"""A labelled set of texts with personal data and secrets, and of texts that look as if they had some, for `benchmarks/privacy.py`.

All values are made up. Numbers with a checksum get a valid one, so that a detector that verifies it must find them. The texts without
personal data have what often stands in requests to models: commands, logs, code, dates, amounts, hashes, version numbers and arithmetic.
"""

from __future__ import annotations

import base64
import hashlib
import random
import string
from collections.abc import Callable
from typing import NamedTuple

from stdnum import luhn

_HEX = "0123456789abcdef"


class Labelled(NamedTuple):
    """A text with its labels."""

    text: str
    labels: tuple[tuple[int, int, str], ...]
    """(start, end, kind) of each part that must be masked."""
    group: str
    """Kind of text: `plain`, `hard` (unusual forms), or `none` (nothing to mask)."""


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice(string.digits) for _ in range(count))


def _letters(rng: random.Random, count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(rng.choice(alphabet) for _ in range(count))


def _luhn(rng: random.Random, prefix: str, length: int) -> str:
    body = prefix + _digits(rng, length - len(prefix) - 1)
    return body + luhn.calc_check_digit(body)


def _card(rng: random.Random) -> str:
    prefix, length = rng.choice([("4", 16), ("52", 16), ("2221", 16), ("37", 15), ("6011", 16), ("35289", 16), ("36", 14)])
    number = _luhn(rng, prefix, length)
    separator = rng.choice(["", " ", "-"])
    if length == 15:
        return separator.join((number[:4], number[4:10], number[10:]))
    if length == 14:
        return number
    return separator.join(number[at : at + 4] for at in range(0, 16, 4))


def _iban(rng: random.Random) -> str:
    country, account = rng.choice(
        [
            ("DE", _digits(rng, 18)),
            ("NL", rng.choice(["ABNA", "INGB", "RABO"]) + _dutch(rng)),
            ("GB", rng.choice(["NWBK", "BARC"]) + _digits(rng, 14)),
            ("AT", _digits(rng, 16)),
            ("CH", _digits(rng, 17)),
            ("DK", _digits(rng, 14)),
        ]
    )
    number = account + country + "00"
    check = 98 - int("".join(str(int(sign, 36)) for sign in number)) % 97
    whole = f"{country}{check:02d}{account}"
    return whole if rng.random() < 0.4 else " ".join(whole[at : at + 4] for at in range(0, len(whole), 4))


def _dutch(rng: random.Random) -> str:
    while True:
        number = _digits(rng, 10)
        if sum((10 - at) * int(sign) for at, sign in enumerate(number)) % 11 == 0:
            return number


def _national(rng: random.Random) -> str:
    def ssn() -> str:
        return f"{rng.randint(1, 665):03d}-{rng.randint(1, 99):02d}-{rng.randint(1, 9999):04d}"

    def korean() -> str:
        return f"{rng.randint(50, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}-{rng.choice('12')}{_digits(rng, 6)}"

    def spanish() -> str:
        number = rng.randint(10_000_000, 99_999_999)
        return f"{number}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"

    def french() -> str:
        body = f"{rng.choice('12')}{rng.randint(0, 99):02d}{rng.randint(1, 12):02d}{rng.randint(1, 95):02d}{_digits(rng, 6)}"
        return f"{body}{97 - int(body) % 97:02d}"

    def british() -> str:
        return f"{rng.choice(['AB', 'CE', 'JK', 'PW', 'SR'])}{_digits(rng, 6)}{rng.choice('ABCD')}"

    def finnish() -> str:
        body = f"{rng.randint(1, 28):02d}{rng.randint(1, 12):02d}{rng.randint(30, 99):02d}"
        own = f"{rng.randint(2, 899):03d}"
        return f"{body}-{own}{'0123456789ABCDEFHJKLMNPRSTUVWXY'[int(body + own) % 31]}"

    return rng.choice([ssn, korean, spanish, french, british, finnish])()


def _phone(rng: random.Random) -> str:
    forms: list[Callable[[], str]] = [
        lambda: f"010-{rng.randint(2000, 9999)}-{_digits(rng, 4)}",
        lambda: f"010{rng.randint(2000, 9999)}{_digits(rng, 4)}",
        lambda: f"+82 10-{rng.randint(2000, 9999)}-{_digits(rng, 4)}",
        lambda: f"02-{rng.randint(300, 999)}-{_digits(rng, 4)}",
        lambda: f"+49 171 {_digits(rng, 7)}",
        lambda: f"0171 {_digits(rng, 7)}",
        lambda: f"030 {rng.randint(200000, 999999)}",
        lambda: f"+33 6 {rng.randint(10, 99)} {_digits(rng, 2)} {_digits(rng, 2)} {_digits(rng, 2)}",
        lambda: f"06 {rng.randint(10, 99)} {_digits(rng, 2)} {_digits(rng, 2)} {_digits(rng, 2)}",
        lambda: f"020 7946 0{_digits(rng, 3)}",
        lambda: f"+44 7400 {rng.randint(100000, 999999)}",
        lambda: f"(212) {rng.randint(200, 999)}-{_digits(rng, 4)}",
        lambda: f"650-{rng.randint(200, 999)}-{_digits(rng, 4)}",
        lambda: f"+1 415 {rng.randint(200, 999)} {_digits(rng, 4)}",
        lambda: f"+34 612 {_digits(rng, 3)} {_digits(rng, 3)}",
        lambda: f"+48 512 {_digits(rng, 3)} {_digits(rng, 3)}",
        lambda: f"+31 6 1{_digits(rng, 7)}",
        lambda: f"+39 345 {_digits(rng, 3)} {_digits(rng, 4)}",
    ]
    return rng.choice(forms)()


def _email(rng: random.Random) -> str:
    name = rng.choice(["anna.schmidt", "jmiller", "kim.minji", "o'brien", "first+tag", "müller", "x", "li_wei-2", "J.R.Tolkien"])
    domain = rng.choice(["example-mail.com", "uni-bonn.de", "naver.com", "mail.co.uk", "firma.io"])
    return f"{name}{rng.choice(['', str(rng.randint(1, 99))])}@{domain}"


def _ip(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return f"2a00:1450:4001:{rng.randint(4096, 65535):x}::{rng.randint(16, 65535):x}"
    return f"{rng.choice([8, 81, 93, 151, 185, 212])}.{rng.randint(1, 254)}.{rng.randint(0, 254)}.{rng.randint(1, 254)}"


def _secret(rng: random.Random) -> str:
    upper = string.ascii_uppercase + "234567"
    claims = base64.urlsafe_b64encode(b'{"sub":"' + _digits(rng, 10).encode() + b'"}').decode().rstrip("=")
    return rng.choice(
        [
            f"AKIA{_letters(rng, 16, upper)}",
            f"ghp_{_letters(rng, 36)}",
            f"github_pat_{_letters(rng, 22)}_{_letters(rng, 59)}",
            f"glpat-{_letters(rng, 20)}",
            f"xoxb-{_digits(rng, 12)}-{_digits(rng, 12)}-{_letters(rng, 24)}",
            f"AIza{_letters(rng, 35)}",
            f"sk-proj-{_letters(rng, 48)}",
            f"sk-ant-api03-{_letters(rng, 80)}",
            f"sk_live_{_letters(rng, 24)}",
            f"hf_{_letters(rng, 34)}",
            f"npm_{_letters(rng, 36)}",
            f"SG.{_letters(rng, 22)}.{_letters(rng, 43)}",
            f"dapi{_letters(rng, 32, _HEX)}",
            f"eyJhbGciOiJIUzI1NiJ9.{claims}.{_letters(rng, 43)}",
            f"{_digits(rng, 9)}:AA{_letters(rng, 33)}",
        ]
    )


_SENTENCES: dict[str, tuple[Callable[[random.Random], str], tuple[str, ...]]] = {
    "email": (
        _email,
        (
            "Please write to {} about the refund.",
            "from: {}\nsubject: hello",
            "Kontakt: {}.",
            "user={} role=admin",
            "<{}> asked again, {}",
            "메일은 {} 입니다",
        ),
    ),
    "phone": (
        _phone,
        (
            "Call me at {} tomorrow.",
            "Meine Nummer ist {}, bitte zurückrufen",
            "Tel: {}",
            "제 번호는 {} 입니다",
            "My number changed to {}.",
            "phone={}; ok",
            "Mon portable : {}",
        ),
    ),
    "card": (
        _card,
        ("I paid with {} yesterday.", "card number: {}, exp 04/29", "{} was declined", "Kreditkarte {} gesperrt", "카드번호 {} 확인"),
    ),
    "iban": (_iban, ("Please transfer it to {}.", "IBAN: {}", "Mein Konto {} ist belastet worden", "account {} is mine")),
    "national_id": (_national, ("My id is {}.", "SSN {} on file", "Identity number: {}", "주민등록번호 {} 입니다", "NINO or DNI: {}")),
    "secret": (
        _secret,
        (
            "Why does {} not work?",
            "export API_KEY={}",
            "Authorization: Bearer {}",
            'client = Client("{}")',
            "curl -H 'X-Api-Key: {}' https://api.example.com",
            "token: {}",
        ),
    ),
    "ip": (_ip, ("My server {} is down.", "Failed login from {} port 22", "ping {} times out", "src={} dst=10.0.0.4")),
}


def _hard(rng: random.Random) -> tuple[str, str, str]:
    """Return (text, part, kind) in forms that occur, but that are not the usual ones."""
    password = rng.choice(["Tr0ub4dor&3", "hunter2!Blue", "S3cr3t#2024", "p4ssW0rd!x", "Xk7#mPq9"])
    return rng.choice(
        [
            (f"password is {password}", password, "secret"),
            (f'"db_password": "{password}"', password, "secret"),
            (
                f"postgres://app:{password.replace('#', '').replace('&', '')}@db:5432/x",
                password.replace("#", "").replace("&", ""),
                "secret",
            ),
            (f"Mein Passwort: {password}", password, "secret"),
            *[
                (f"Reach me under {value} or so", value, "phone")
                for value in (f"0049 171 {_digits(rng, 7)}", f"+82.10.{rng.randint(2000, 9999)}.{_digits(rng, 4)}")
            ],
            *[
                (f'{{"phone": "{value}"}}', value, "phone")
                for value in (f"212555{rng.randint(1000, 9999)}", f"010{rng.randint(20000000, 99999999)}")
            ],
            *[
                (f"mail {value}", value, "email")
                for value in (f"anna.schmidt{rng.randint(1, 99)}(at)example-mail.com", f"JOHN.DOE{rng.randint(1, 99)}@MAIL.CO.UK")
            ],
            *[(f"card {value}", value, "card") for value in (_card(rng).replace(" ", "\u00a0"),)],
        ]
    )


_HARMLESS: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: (
        f"kubectl get pods -n team-{rng.randint(1, 99)} --field-selector=status.podIP=10.{rng.randint(0, 255)}.0.{rng.randint(1, 254)}"
    ),
    lambda rng: f"commit {_letters(rng, 40, _HEX)} on 2025-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d} 12:{rng.randint(10, 59)}:07",
    lambda rng: f"sha256:{hashlib.sha256(str(rng.random()).encode()).hexdigest()}",
    lambda rng: f"Order {_digits(rng, 10)} contains {rng.randint(2, 90)} items at ${rng.randint(1000, 9999)}.{rng.randint(10, 99)} each.",
    lambda rng: f"If x = {_digits(rng, 8)} and y = {_digits(rng, 7)}, then x + y = {_digits(rng, 8)}.",
    lambda rng: f"Update from 1.{rng.randint(0, 40)}.{rng.randint(0, 20)} to 2.{rng.randint(0, 9)}.{rng.randint(0, 9)}.{rng.randint(0, 9)}",
    lambda rng: f"ts={1_700_000_000 + rng.randint(0, 9_999_999)} level=info trace={_letters(rng, 32, _HEX)}",
    lambda rng: f"The ISBN is 978-3-{_digits(rng, 2)}-{_digits(rng, 6)}-{_digits(rng, 1)}.",
    lambda rng: f"[{rng.random():.6f}, {rng.random():.9f}, {rng.uniform(1e5, 1e7):.4f}]",
    lambda rng: (
        f"There are {rng.randint(1, 9)},{_digits(rng, 3)},{_digits(rng, 3)} people "
        f"and {rng.randint(1000, 2000)} - {rng.randint(10, 99)} - {rng.randint(10, 99)} houses."
    ),
    lambda rng: (
        f"uuid {_letters(rng, 8, _HEX)}-{_letters(rng, 4, _HEX)}-4{_letters(rng, 3, _HEX)}-a{_letters(rng, 3, _HEX)}-"
        f"{_letters(rng, 12, _HEX)}"
    ),
    lambda rng: f"127.0.0.1:{rng.randint(1024, 65535)} and 192.168.{rng.randint(0, 255)}.{rng.randint(1, 254)} are local; ::1 too",
    lambda rng: f"git remote add origin git@github:team{rng.randint(1, 99)}/repo.git; password=$PASSWORD token=<your-token>",
    lambda rng: f"@app.route decorates f{rng.randint(1, 9)}(x); see a@b or user@host for ssh",
    lambda rng: (
        f"Meeting {rng.randint(1, 28):02d}.{rng.randint(1, 12):02d}.2025 "
        f"{rng.randint(8, 18):02d}:30 - {rng.randint(8, 18):02d}:45, Raum {rng.randint(100, 999)}"
    ),
    lambda rng: (
        f"A train goes {rng.randint(100, 999)} km in {rng.randint(10, 99)} h; "
        f"{rng.randint(100, 999)} * {rng.randint(100, 999)} = {_digits(rng, 5)}"
    ),
    lambda rng: (
        f"Explain the token limit of {rng.choice(['4096', '8192', '128000'])} and the secret sauce of attention; "
        "password policies need 12 characters"
    ),
    lambda rng: f"data:image/png;base64,{base64.b64encode(rng.randbytes(90)).decode()}",
    lambda rng: f"ID {_digits(rng, 6)}-{_digits(rng, 3)} / batch {_digits(rng, 4)}-{_digits(rng, 4)} / row {_digits(rng, 9)}",
    lambda rng: f"lat 5{rng.randint(0, 9)}.{_digits(rng, 6)}, lon {rng.randint(1, 14)}.{_digits(rng, 6)}; range(0, {_digits(rng, 7)})",
)


def labelled(count: int, seed: int) -> list[Labelled]:
    """Return `count` texts: half with personal data of each kind in turn, an eighth in unusual forms, the rest without."""
    rng = random.Random(seed)
    kinds = sorted(_SENTENCES)
    found = []
    for number in range(count):
        if number % 8 < 4:
            kind = kinds[(number + number // 8) % len(kinds)]
            make, sentences = _SENTENCES[kind]
            found.append(_filled(rng.choice(sentences), lambda make=make: make(rng), kind))
        elif number % 8 == 4:
            text, part, kind = _hard(rng)
            at = text.index(part)
            found.append(Labelled(text, ((at, at + len(part), kind),), "hard"))
        else:
            found.append(Labelled(rng.choice(_HARMLESS)(rng), (), "none"))
    return found


def _filled(sentence: str, make: Callable[[], str], kind: str) -> Labelled:
    text, labels = "", []
    pieces = sentence.split("{}")
    for place, piece in enumerate(pieces):
        text += piece
        if place < len(pieces) - 1:
            value = make()
            labels.append((len(text), len(text) + len(value), kind))
            text += value
    return Labelled(text, tuple(labels), "plain")
