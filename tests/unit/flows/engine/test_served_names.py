"""Tests of the model names of a line: a changed one, former ones that stay valid, and their end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratchet.contracts.cycle import Append
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ids import line_stream
from ratchet.contracts.rows import ServedAs, row_of
from ratchet.contracts.schema import parse, stamped
from ratchet.contracts.serving import Route
from ratchet.contracts.steps import State
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.line import end_name, note_name, open_cycle
from ratchet.flows.engine.reconcile import names_differ, reconcile
from ratchet.flows.engine.work import turn
from tests.simulation.simulated_line import Scenario, SimulatedLine


def named(context: LineContext, name: str) -> LineContext:
    """Return the context of the same line after an edit of its loop file."""
    loop = context.loop
    return replace(context, loop=loop.model_copy(update={"line": loop.line.model_copy(update={"served_model": name})}))


def served(sim: SimulatedLine) -> tuple[str, ...]:
    route = sim.router.read("sim")
    assert route is not None
    return route.names


def simulated() -> SimulatedLine:
    """Return a line whose model is served under the name `first`, which its ledger records."""
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.context = named(sim.context, "first")
    row = row_of("served_as", ServedAs(name="first"))
    sim.ledger.append([Append(stream=line_stream("sim"), after=1, rows=(row,))], None, sim.clock.now())
    reconcile(sim.context)
    return sim


def test_former_name_stays_valid_after_a_change_and_both_are_told() -> None:
    sim = simulated()
    edited = named(sim.context, "second")
    assert not names_differ(edited)
    (text,) = note_name(edited)
    assert "'second'" in text
    assert "'first'" in text
    assert "ratchet names sim --end" in text
    assert names_differ(edited)
    reconcile(edited)
    assert served(sim) == ("second", "first")
    assert note_name(edited) == []
    assert note_name(named(sim.context, "first"))
    reconcile(edited)
    assert served(sim) == ("first", "second"), "a name that comes back is the present one"


def test_names_do_not_alternate_between_a_stored_loop_file_and_its_present_content() -> None:
    sim = simulated()
    sim.context.datasets.traces = 2000
    open_cycle(sim.context, "a test")
    edited, seen = named(sim.context, "second"), []
    sim.router.watch = lambda route: seen.append(route.names)
    for _ in range(200):
        turn(sim.context, sim.view())  # with the stored content
        if sim.view().state is State.ROLLING:
            note_name(edited)
            reconcile(edited)
        sim.clock.sleep(60)
        if sim.ended():
            break
    assert sim.view().state is State.PROMOTED
    changed = seen.index(("second", "first"))
    assert set(seen[:changed]) <= {("first",)}
    assert set(seen[changed:]) == {("second", "first")}


def test_name_of_a_line_without_records_is_that_of_its_route() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    reconcile(named(sim.context, "old"))
    edited = named(sim.context, "new")
    assert note_name(edited)
    reconcile(edited)
    assert served(sim) == ("new", "old")


def test_only_a_person_ends_a_former_name_and_never_the_present_one() -> None:
    sim = simulated()
    edited = named(sim.context, "second")
    note_name(edited)
    reconcile(edited)
    now = sim.clock.now()
    for wrong, told in (("second", "present model name"), ("third", "its former names: 'first'")):
        with pytest.raises(Rejected, match=told):
            end_name(sim.ledger, "sim", wrong, "ada", "unused", now)
    end_name(sim.ledger, "sim", "first", "ada", "unused", now)
    assert names_differ(edited)
    reconcile(edited)
    assert served(sim) == ("second",)
    row = sim.ledger.read(line_stream("sim"))[-1]
    assert (row.kind, row.key, row.data) == ("name_ended", "first", {"actor": "ada", "reason": "unused"})


def test_route_without_former_names_is_written_as_before() -> None:
    route = Route(line="sim", served_model="m", backends=(), annotation="a")
    assert b"former_names" not in stamped(route)
    renamed = route.model_copy(update={"former_names": ("old",)})
    assert parse(Route, stamped(renamed)) == renamed
