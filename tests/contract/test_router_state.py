"""The rules of a router's state, applied to the folder and to its fake."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import pytest

from ratchet.contracts.schema import stamped
from ratchet.contracts.serving import Backend, Route
from ratchet.router.counts.report import Report, in_flight
from ratchet.router.memory_state import MemoryState
from ratchet.router.state import ROUTE, Document, FolderState, RouterState
from ratchet.runtime.artifacts import write_atomic


class Writable(RouterState, Protocol):
    def set(self, route: Route) -> None: ...


class Folder(FolderState):
    """A folder with a method that writes the route file, as the service does."""

    def set(self, route: Route) -> None:
        write_atomic(self.folder / ROUTE, stamped(route))


@pytest.fixture(params=["folder", "memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Writable:
    return Folder(tmp_path) if request.param == "folder" else MemoryState()


def route(tag: str) -> Route:
    backend = Backend(tag=tag, url="http://127.0.0.1:1", model=tag, weight=100)
    return Route(line="line", served_model="m", backends=(backend,), annotation=tag)


def test_no_route_is_in_force_before_the_first(state: Writable) -> None:
    assert (state.route(), state.followed()) == (None, None)


def test_the_newest_route_is_in_force_and_each_has_an_identity_of_its_own(state: Writable) -> None:
    seen = []
    for tag in ("v-1", "v-2"):
        state.set(route(tag))
        assert state.route() == route(tag)
        seen.append(state.followed())
        assert state.followed() == seen[-1]
    assert seen[0] != seen[1]


def test_a_document_is_replaced_as_a_whole(state: Writable) -> None:
    assert state.read(Document.FORWARDED) is None
    state.write(Document.FORWARDED, b"long content")
    state.write(Document.FORWARDED, b"short")
    assert (state.read(Document.FORWARDED), state.read(Document.REPORT)) == (b"short", None)


def test_spans_are_read_in_order_until_they_are_removed(state: Writable) -> None:
    for span in (b"one", b"two"):
        state.spans.append(span)
    for sync in state.spans.syncs():
        sync()
    assert state.spans.size > 0
    found: list[bytes] = []
    while (segment := state.spans.oldest()) is not None:
        assert state.spans.read(segment) == state.spans.read(segment)
        found += state.spans.read(segment)
        state.spans.remove(segment)
    assert found == [b"one", b"two"]
    assert (state.spans.size, state.spans.syncs()) == (0, ())


def test_lost_spans_are_counted_by_reason(state: Writable) -> None:
    state.spans.drop("rejected")
    assert state.spans.dropped == {"rejected": 1}


def test_the_report_names_the_route_that_the_router_follows(state: Writable) -> None:
    report = Report(state, lambda: {"in_flight": {"v-1": 2}})
    state.set(route("v-1"))
    for write in report.take():
        write()
    assert report.take() == ()
    followed = state.followed()
    assert followed is not None
    assert in_flight(state.read(Document.REPORT), os.getpid(), followed) == {"v-1": 2}
    state.set(route("v-2"))
    assert len(report.take()) == 1
