"""Tests of prompt identities and hash shares. Splits and routes depend on them, so their values must never change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.ids import hash_share, normalise, person_id, root_id, root_text, without_opening


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_normaliser_version_1_is_unchanged() -> None:
    assert normalise("  What\tIS\n ﬁve? ") == "what is five?"
    assert root_id(_user("Straße")) == root_id(_user("STRASSE"))


def test_hash_shares_are_unchanged() -> None:
    assert hash_share("holdout", "ratchet", "a" * 64) == pytest.approx(0.15333536548604015, rel=1e-12)
    assert hash_share("a", "b") != hash_share("ab")


@given(st.text(), st.lists(st.text(), max_size=3))
def test_all_turns_of_a_conversation_have_the_same_root(first: str, rest: list[str]) -> None:
    system = [{"role": "system", "content": "Be brief."}]
    later = [{"role": "assistant" if index % 2 == 0 else "user", "content": text} for index, text in enumerate(rest)]
    assert root_id(_user(first)) == root_id(system + _user(first) + later)


@pytest.mark.parametrize(
    "written", ["José", "Jose\u0301", " José", "José\u00a0", "\ufeffJosé", "José\u200b\n", "\u2060 José \u200e", "Jo\x00sé"]
)
def test_an_id_has_one_form_however_it_is_written(written: str) -> None:
    assert person_id(written) == "José"
    assert person_id(person_id(written)) == person_id(written)


def test_ids_of_different_people_stay_apart() -> None:
    different = ["ann", "Ann", "an n", "ann1", "安", "安娜", "x" * 256, "x" * 257, "x" * 258, "ﬁ", "fi"]
    assert len({person_id(one) for one in different}) == len(different)
    long = person_id("é" * 300)
    assert (len(long) < 100, person_id(long), person_id("e\u0301" * 300)) == (True, long, long)
    assert (person_id(" \ufeff"), person_id("")) == ("", "")


def _roles(*texts: str) -> list[dict[str, str]]:
    """Messages with the roles of their first letters: s, d, u or a."""
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return [{"role": roles[text[0].lower()], "content": text} for text in texts]


@pytest.mark.parametrize(
    ("texts", "skipped", "root", "left"),
    [
        (("s", "u1", "a1", "u2", "a2", "u3"), (), "u1", ("s", "u1", "a1", "u2", "a2", "u3")),
        (("s", "u1", "a1", "u2", "a2", "u3"), ("u1", "u2"), "u3", ("s", "u3")),
        (("s", "U1 more", "a1", "d", "u2", "a2", "u1"), ("u1",), "u2", ("s", "d", "u2", "a2", "u1")),
        (("s", "u1", "a1", "u2"), ("u2",), "u1", ("s", "u1", "a1", "u2")),
        (("s", "u1"), ("u1",), "u1", ("s", "u1")),
        (("u1", "a1", "u2"), ("u",), "u2", ("u2",)),
        (("a1", "u1"), ("x",), "u1", ("u1",)),
        (("s",), ("u",), "s", ("s",)),
        ((), ("u",), "", ()),
        (("s", "u", "a1", "u2"), ("u\n",), "u2", ("s", "u2")),
        (("U!! 👋", "a1", "u2"), ("u\n",), "u2", ("u2",)),
        (("u2", "a1", "u"), ("u\n",), "u2", ("u2", "a1", "u")),
        (("u, hello", "a1", "u2"), ("u\n",), "u, hello", ("u, hello", "a1", "u2")),
        (("s", "u"), ("u\n",), "u", ("s", "u")),
        (("u?", "a1", "u2"), ("u\n", "?"), "u2", ("u2",)),
        (("u (1", "a1", "u2"), ("u 1",), "u (1", ("u (1", "a1", "u2")),
    ],
)
def test_examples_before_the_question_are_skipped(
    texts: tuple[str, ...], skipped: tuple[str, ...], root: str, left: tuple[str, ...]
) -> None:
    assert root_text(_roles(*texts), skipped) == root
    assert [message["content"] for message in without_opening(_roles(*texts), skipped)] == list(left)


def test_punctuation_before_a_text_hides_no_beginning_of_it() -> None:
    messages = [{"role": "user", "content": "(card"}, {"role": "user", "content": "next"}]
    assert root_text(messages, ("card",)) == "(card"
    assert root_text(messages, ("card\n",)) == "next"
    assert root_text([{"role": "user", "content": "👋"}, {"role": "user", "content": "next"}], ("card\n",)) == "👋"
