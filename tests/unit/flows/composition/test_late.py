"""Tests of ports that are built at their first use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.flows.composition.late import made


def test_an_object_is_built_once_and_only_when_it_is_used() -> None:
    built: list[int] = []

    def build() -> dict[str, int]:
        built.append(1)
        return {"a": 1, "b": 2}

    stand_in = made(build, late=True)
    assert built == []
    assert (stand_in["a"], len(stand_in), list(stand_in), "b" in stand_in) == (1, 2, ["a", "b"], True)
    assert list(stand_in.items()) == [("a", 1), ("b", 2)]
    assert built == [1]
    assert made(build, late=False) == {"a": 1, "b": 2}


def test_known_methods_do_not_build_it() -> None:
    def build() -> str:
        raise ConfigError("no server 'x' is installed")

    stand_in = made(build, late=True, upper=lambda: "KNOWN")
    assert stand_in.upper() == "KNOWN"
    with pytest.raises(ConfigError, match="no server"):
        stand_in.lower()


def test_several_threads_build_it_once() -> None:
    built: list[int] = []
    stand_in = made(lambda: built.append(1) or {"a": 1}, late=True)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: stand_in["a"], range(64))) == [1] * 64
    assert built == [1]
