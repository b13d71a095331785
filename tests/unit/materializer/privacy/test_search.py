"""Tests of the search by clues: it finds what the rules find in the whole text, in time that grows with the length of the text."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.privacy_lines import HELD, TUNED, marked
from benchmarks.privacy_texts import labelled
from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.privacy import search
from ratchet.materializer.privacy.masking import Masker, rules
from ratchet.materializer.privacy.search import Scan, Search, merged, search_plainly

# Written in two parts, so that no file of the repository looks as if it held a key.
PEM = "-----BEGIN " + "PRIVATE KEY-----"
RULES = rules(PrivacySettings(patterns={"customer": r"K-\d{5}|^x"}))
SEARCH = Search(RULES)

LINES = [marked(line)[0] for lines in (TUNED, HELD) for line in (*lines.masked, *lines.left)]
FORMS = [
    *(
        f"{name}{mark}pW7#kQ2z"
        for name in (
            *(
                "password",
                "passwd",
                "passphrase",
                "pwd",
                "secret",
                "token",
                "credential",
                "비밀번호",
                "Kennwort",
                "mot de passe",
                "contraseña",
            ),
            *("api key", "access-key", "client_key", "authkey", "PRIVATE_KEY", "client_secret", "Contrasena"),
        )
        for mark in ("=", " is ", '": "')
    ),
    *(
        "54362315-K",
        "X-1234567-L",
        "X1234567L",
        "811218-9876",
        "19811218+9876",
        "131052-308T",
        "131052A308T",
        "85.07.30-033.28",
        "756.9217.0769.85",
    ),
    *(
        "7569217076985",
        "900101-1234567",
        "9001011234567",
        "AB123456C",
        "AB 12 34 56 C",
        "BOXW310820HNERXN09",
        "RSSMRA85T10A562S",
        "1 85 05 2A 123 456 78",
    ),
    *(
        "2a00:1450:4001:80e::200e",
        "2001:4860:4860:0:0:0:0:8888",
        "2600::",
        "212.47.32.209",
        "AccountKey=" + "a" * 86 + "==",
        "x-y://u:p4ss@h",
    ),
    *(
        "hooks.slack.com/services/T0A/B0B/" + "x1" * 9,
        "xoxb-" + "a1" * 5,
        "SG." + "a1" * 8 + "." + "b2" * 8,
        "Bearer " + "a1" * 10,
        f"{PEM}\nMII\n",
    ),
]
"""A text for each form that a clue looks for."""
TEXTS = LINES + FORMS + [one.text for one in labelled(400, seed=3)]
PIECES = [
    *(
        "0",
        "7",
        "12",
        "2A",
        "2B",
        "756.",
        "1990",
        "010",
        "+",
        "00",
        "(",
        ")",
        "-",
        ".",
        ":",
        "::",
        "/",
        "@",
        "'",
        '"',
        "=",
        " is ",
        "\t",
        "\n",
    ),
    *(
        " ",
        "  ",
        "    ",
        "\u00a0",
        "\u2010",
        "\u2212",
        "·",
        "?",
        "é",
        "ñ",
        "Ñ",
        "ſ",
        "\u212a",
        "İ",
        "ı",
        "전화",
        "비밀번호",
        "골뱅이",
        "점",
        "𝟙",
        "٣",
    ),
    *(
        "a",
        "AB",
        "DE89",
        "X",
        "K",
        "sk-",
        "hf_",
        "eyJ",
        ".eyJ",
        "SG.",
        "xoxb-",
        "AKIA",
        "-----BEGIN ",
        "PRIVATE KEY-----",
        "https://",
        "a:b@",
    ),
    *(
        "password",
        "PaſSwORD",
        "to\u212aen",
        "api_\u212aey",
        "private key",
        "client_secret",
        "Basic ",
        "bearer ",
        "AccountKey=",
        "hooks.slack.com/",
    ),
    *(
        " at ",
        " AT ",
        "(at)",
        "[ at ]",
        " (dot) ",
        " dot ",
        " punkt ",
        "gmail",
        "com",
        "anna",
        "ssn ",
        "bsn",
        "number ",
        "my number",
        "call ",
    ),
    *(" m", " km", "git@", "ssh ", ":org/repo", "lotto ", "a1" * 8, "W" * 15, "0123456789abcdef", "8.8.4.4", "fe80", "2001:db8", "_" * 20),
]
"""Parts of texts that the rules and their clues look for."""


def mixed(rng: random.Random) -> str:
    """Return a mixture of texts, parts of texts, single characters and what the clues look for."""
    parts = []
    for _ in range(rng.randint(1, 12)):
        text = rng.choice(TEXTS)
        cut = rng.randint(0, len(text))
        parts.append(rng.choice([text, text[cut:], text[:cut], rng.choice(PIECES), rng.choice(PIECES), rng.choice(PIECES)]))
    return rng.choice(["", " ", "\n", "-"]).join(parts)


def same(text: str) -> None:
    assert SEARCH(text) == search_plainly(RULES, text), text


@pytest.mark.slow
def test_the_clues_lead_to_what_the_rules_find_in_whole_texts() -> None:
    for text in TEXTS:
        same(text)
    rng = random.Random(1)
    for _ in range(150):
        same(mixed(rng))


@pytest.mark.slow
def test_the_clues_lead_to_what_the_rules_find_in_many_mixtures() -> None:
    rng = random.Random(2)
    for _ in range(8000):
        same(mixed(rng))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40).map("".join))
@example("1 85 05 2A 123 456 78")
@example("li.wei at 163.com")
@example("x" * 15 + "@a.de")
@example("a" * 70 + "@b.de")
def test_the_clues_lead_to_what_the_rules_find(text: str) -> None:
    same(text)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="0123456789 .:-/()+abAK@", max_size=80))
def test_the_clues_lead_to_what_the_rules_find_in_numbers(text: str) -> None:
    same(text)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_texts_that_are_searched_as_one_have_the_findings_of_each(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60 if seed == 1 else 1500):
        texts = list(dict.fromkeys(rng.choice([mixed(rng), rng.choice(TEXTS), rng.choice(PIECES)]) for _ in range(rng.randint(1, 8))))
        assert SEARCH.each(texts) == {text: found for text in texts if (found := SEARCH(text))}, texts


@given(st.text(max_size=50))
def test_all_forms_of_a_text_have_its_length(text: str) -> None:
    scan = Scan(text)
    assert len(scan.plain) == len(scan.low) == len(text)


def test_parts_that_overlap_or_touch_are_one() -> None:
    assert merged([(8, 12), (-3, 2), (2, 4), (5, 6)], 10) == [(0, 4), (5, 6), (8, 10)]


GROWTH = 9
"""How many times as long a text of four times the length may take: between 4 (linear) and 16 (quadratic)."""

HOSTILE: dict[str, Callable[[int], str]] = {
    **{
        repr(unit): lambda size, unit=unit: unit * (size // len(unit))  # type: ignore[misc]
        for unit in (
            *(
                "1",
                "1 ",
                "1.",
                "1-",
                "+1",
                "(1",
                "12:",
                "0:",
                ":",
                "::",
                "@",
                "a@",
                "@a",
                "a@a.",
                "a.",
                "sk-",
                "sk-a",
                "hf_",
                "A1",
                "DE12 ",
            ),
            *(
                "eyJa.",
                "eyJa.eyJ",
                "a (at) ",
                " at a dot b",
                "(at",
                "password=",
                "key",
                "token ",
                "is ",
                "a://",
                "://@",
                "://a:b",
                "//:@",
                "a_",
            ),
            *(
                PEM,
                "가",
                "ſ",
                "?",
                "0 m ",
                "123456789 ",
                "ssn 1",
                "my number 1",
                "AB1",
                "W" * 40,
                "call 415-555 ",
            ),
        )
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_the_time_of_a_hostile_text_grows_with_its_length(kind: str) -> None:
    assert _ratio(lambda size: partial(SEARCH, HOSTILE[kind](size))) < GROWTH


def _deep(depth: int, inner: str) -> str:
    return '{"a":[' * depth + json.dumps(inner) + "]}" * depth


NESTED: dict[str, Callable[[int], str]] = {
    "open brackets": lambda size: "[" * size,
    "open objects": lambda size: '{"1234567":' * (size // 11),
    "deep lists": lambda size: "[" + ",".join([_deep(50, "x@y.de")] * (size // 450)) + "]",
    "JSON in JSON": lambda size: json.dumps([_deep(3, _deep(3, _deep(3, "x@y.de")))] * (size // 150)),
    "deeper than what is parsed": lambda size: _deep(size // 8, "x@y.de"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NESTED)
def test_the_time_of_nested_json_grows_with_its_length(kind: str) -> None:
    masker = Masker(PrivacySettings())

    def work(size: int) -> Callable[[], object]:
        row = {"text": NESTED[kind](size)}
        return lambda: masker.mask(dict(row))

    assert _ratio(work) < GROWTH


def _ratio(work: Callable[[int], Callable[[], object]]) -> float:
    """Return how many times as long four times the length takes: about 4, and 16 where time grows with the square.

    It is the least of up to five measurements: a busy machine makes some of them too large, but not all. The garbage collector is off,
    because the time of a collection grows with all the objects of the process.
    """

    def seconds(done: Callable[[], object]) -> float:
        begun = time.process_time()
        done()
        return time.process_time() - begun

    small, large = work(1 << 15), work(1 << 17)
    least = float("inf")
    gc.disable()
    try:
        for _ in range(5):
            least = min(least, seconds(large) / max(seconds(small), 0.0005))
            if least < GROWTH:
                break
    finally:
        gc.enable()
    return least


def test_a_text_that_stands_twice_among_the_texts_has_its_findings_once() -> None:
    text = "write to ada@example.org"
    assert SEARCH.each([text, "nothing", text, "안녕 ada@example.org"])[text] == SEARCH(text)


@given(st.text(alphabet="01a .-/\u00e9\u4e00\x00b", max_size=60))
def test_numbers_and_shapes_are_where_a_plain_search_finds_them(text: str) -> None:
    scan = Scan(text)
    spread = scan.plain.translate(search._SPREAD)
    assert scan.numbers == [(*one.span(), spread.count(b"0", *one.span())) for one in search._NUMBER.finditer(spread)]
    form = scan.plain.translate(search._SHAPE)
    for shape in (b"aa00", b"a0a", b"aa0-0"):
        assert scan.shaped(shape) == [at for at in range(len(form)) if form.startswith(shape, at)]
    assert scan.has_between_digits(b".") == (b"0.0" in form)
