"""Pseudonyms are 128 bits of an HMAC in base32."""

from __future__ import annotations

import base64
import hmac
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.ids import person_id
from ratchet.runtime.secrets.keyring import Key
from ratchet.runtime.secrets.pseudonyms import is_pseudonym, pseudonym

KEYS = [Key(id=number, secret=f"{number:02x}" * 32, created=datetime(2026, 1, 1, tzinfo=UTC)) for number in (1, 12)]


@given(st.sampled_from(KEYS), st.sampled_from(["u", "s"]), st.text())
def test_a_pseudonym_is_the_mac_of_the_standard_library_in_base32(key: Key, subject: str, text: str) -> None:
    plain = f"{subject}\x1f{person_id(text)}".encode("utf-8", "surrogatepass")
    mac = hmac.digest(bytes.fromhex(key.secret), plain, "sha256")[:16]
    found = pseudonym(subject, text, key)  # type: ignore[arg-type]
    assert found == f"{subject}{key.id}_{base64.b32encode(mac).decode().rstrip('=').lower()}"
    assert is_pseudonym(found)


def test_the_pseudonym_of_a_recorded_id_stays() -> None:
    assert pseudonym("u", "ada", KEYS[0]) == "u1_64k63yj5xtj2qodrrmncm3drzm"
