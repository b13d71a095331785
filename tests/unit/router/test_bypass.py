"""Tests of the configurations of proxies that bypass the router."""

from __future__ import annotations

import pytest

from ratchet.local.router import RouterOptions
from ratchet.router.bypass import ANSWER_SECONDS, Proxy, proxy_config


@pytest.mark.parametrize("proxy", list(Proxy))
def test_a_configuration_names_the_line_the_version_and_the_addresses(proxy: Proxy) -> None:
    text = proxy_config(proxy, "support", "v-1", "127.0.0.1:8000", "http://127.0.0.1:4001", "http://127.0.0.1:5001/")
    assert text.startswith("# Written by `ratchet proxy`. The champion of line support is v-1.\n")
    for part in ("ratchet-support", "127.0.0.1:8000", " 127.0.0.1:4001 ", " 127.0.0.1:5001 "):
        assert part in text
    assert "{" not in text.replace("{\n", ""), "a field was not filled"


def test_the_proxy_waits_longer_than_the_router() -> None:
    deadline = RouterOptions.model_fields["deadline"]
    most = next(bound.le for bound in deadline.metadata if hasattr(bound, "le"))
    assert most < ANSWER_SECONDS
