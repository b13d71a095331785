"""Tests of the route file as the router process reads it: a damaged file does not stop the traffic."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contracts.schema import SCHEMA_VERSION, stamped
from contracts.serving import Backend, Route
from local.proxy.route_file import RouteFile


def route(tag: str) -> Route:
    return Route(line="l", served_model="m", backends=(Backend(tag=tag, url="http://x", model=tag, weight=100),), annotation="a")


def put(path: Path, content: bytes) -> None:
    """Replace the file, as the service does, so that its inode changes."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    os.utime(partial, ns=(0, path.stat().st_mtime_ns + 1_000_000 if path.exists() else 1))
    partial.replace(path)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"line": "l"}', stamped(route("b")).replace(b":%d" % SCHEMA_VERSION, b":%d" % (SCHEMA_VERSION + 1))]
)
def test_last_valid_route_stays_in_force(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "route.json"
    routes = RouteFile(path)
    assert routes.current() is None
    put(path, damage)
    assert routes.current() is None
    put(path, stamped(route("a")))
    assert routes.current() == route("a")
    put(path, damage)
    assert routes.current() == route("a")
    path.unlink()
    assert routes.current() == route("a")
    put(path, stamped(route("b")))
    assert routes.current() == route("b")
