"""Tests of the certificates of HTTP clients."""

from __future__ import annotations

import ssl

import pytest

from ratchet.runtime.certificates import certificates


@pytest.mark.parametrize("url", ["https://judge.example/v1", "HTTPS://judge.example/v1", "https:"])
def test_a_client_of_an_https_address_trusts_public_authorities(url: str) -> None:
    trusted = certificates(url)
    assert trusted.cert_store_stats()["x509_ca"] > 10
    assert trusted is certificates("https://elsewhere.example"), "they are loaded once"


def test_a_client_of_an_http_address_trusts_no_server_behind_tls() -> None:
    trusted = certificates("http://127.0.0.1:4200/api")
    assert (trusted.verify_mode, trusted.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert trusted.cert_store_stats()["x509_ca"] == 0
