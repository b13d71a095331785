"""Tests of a document that is read again when it changes: a damaged file leaves the last valid content in force."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratchet.contracts.schema import SCHEMA_VERSION, stamped
from ratchet.contracts.serving import Backend, Route
from ratchet.runtime.watched_file import WatchedFile, stamp_of


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
def test_the_last_valid_content_stays_in_force(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "route.json"
    routes = WatchedFile(path, Route, keep=True)
    assert routes.current() is None
    put(path, damage)
    assert routes.current() is None
    put(path, stamped(route("a")))
    assert routes.current() == route("a")
    put(path, damage)
    assert routes.current() == route("a")
    first = routes.in_force
    path.unlink()
    assert routes.current() == route("a")
    assert routes.in_force == first
    put(path, stamped(route("b")))
    assert routes.current() == route("b")
    assert routes.in_force == stamp_of(path) != first


def test_without_keep_a_missing_file_has_no_content(tmp_path: Path) -> None:
    path = tmp_path / "route.json"
    routes = WatchedFile(path, Route)
    put(path, stamped(route("a")))
    assert routes.current() == route("a")
    path.unlink()
    assert (routes.current(), routes.in_force) == (None, None)
