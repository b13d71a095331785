"""The section `compute` of a loop file."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ratchet.contracts.loop import ComputeSettings


@pytest.mark.parametrize("address", ["ray://head.ray.svc:10001", "10.0.0.1:6379", "ray://[::1]:10001", "a-b.example:1"])
def test_addresses_of_a_cluster(address: str) -> None:
    assert ComputeSettings(engine="ray", address=address).address == address


@pytest.mark.parametrize(
    "address", ["", "auto", "head", "head:0", "head:70000", "http://head:8265", "ray://head", "head:6379/x", "-a:1", "a b:1"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValidationError, match="is not of the form ray://HOST:PORT or HOST:PORT"):
        ComputeSettings(engine="ray", address=address)


def test_ray_needs_an_address_and_others_take_none() -> None:
    with pytest.raises(ValidationError, match=r'engine "ray" needs the address'):
        ComputeSettings(engine="ray")
    with pytest.raises(ValidationError, match=r'engine "processes" takes no address'):
        ComputeSettings(engine="processes", address="h:1")
    assert ComputeSettings().engine == "inline"
