"""Tests of operators' requests to a line: freeze, unfreeze, trigger and retry, also at the same time as another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.cycle import Append, Entry, Lease
from ratchet.contracts.errors import Rejected
from ratchet.contracts.evaluation import Comparison, EvalReport, Interval
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.ids import line_stream
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.ports.data import UNTRAINED
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import State
from ratchet.flows.config.load import parse_loop
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.choice.preview import preview
from ratchet.flows.engine.line import ask_cancel, freeze, open_cycle, open_if_due, retry_cycle, start_of, unfreeze
from tests.builders import make_plan
from tests.simulation.simulated_line import Scenario, SimulatedLine

LINE = line_stream("sim")


def simulated() -> SimulatedLine:
    return SimulatedLine(Scenario(seed=1, people="auto"))


def set_frozen(sim: SimulatedLine, wanted: bool, actor: str = "hana") -> bool:
    return (freeze if wanted else unfreeze)(sim.ledger, "sim", actor, "a reason", sim.clock.now())


def before_the_next_append(sim: SimulatedLine, act: object) -> None:
    """Let another process act between the next read of the ledger and the append that depends on it."""
    original = sim.ledger.append

    def append(appends: Sequence[Append], lease: Lease | None, at: object) -> list[Entry]:
        sim.ledger.append = original  # type: ignore[method-assign]
        act()  # type: ignore[operator]
        return original(appends, lease, at)  # type: ignore[arg-type]

    sim.ledger.append = append  # type: ignore[method-assign]


@given(st.lists(st.booleans(), max_size=8), st.lists(st.booleans(), max_size=3))
def test_only_a_change_of_the_state_is_recorded(requests: list[bool], rivals: list[bool]) -> None:
    """Each request may lose the race against another process that makes a request of its own."""
    sim = simulated()
    left = list(rivals)
    for wanted in requests:
        if left:
            before_the_next_append(sim, partial(set_frozen, sim, left.pop(), "rival"))
        set_frozen(sim, wanted)
        assert (sim.context.line_view().frozen is not None) == wanted
    kinds = [row.kind for row in sim.ledger.read(LINE) if row.kind in ("frozen", "unfrozen")]
    assert kinds == ["frozen" if index % 2 == 0 else "unfrozen" for index in range(len(kinds))]


def test_the_first_actor_and_reason_stay() -> None:
    sim = simulated()
    assert set_frozen(sim, True, "hana")
    assert not set_frozen(sim, True, "ben")
    frozen = sim.context.line_view().frozen
    assert frozen is not None
    assert (frozen.actor, frozen.reason, frozen.since) == ("hana", "a reason", sim.clock.now())


def test_an_unknown_line_cannot_be_frozen() -> None:
    sim = simulated()
    with pytest.raises(Rejected, match="there is no line 'smi'"):
        freeze(sim.ledger, "smi", "hana", "a reason", sim.clock.now())
    assert sim.ledger.streams("line/") == [LINE]


def test_no_cycle_opens_on_a_frozen_line_and_the_open_one_goes_on() -> None:
    sim = simulated()
    sim.context.datasets.traces = 5000
    first = open_cycle(sim.context, "a test")
    set_frozen(sim, True)
    sim.live()
    assert sim.context.cycle_view(first).state is State.PROMOTED
    for act in (lambda: open_cycle(sim.context, "a test"), lambda: retry_cycle(sim.context, 1, "hana")):
        with pytest.raises(Rejected, match="frozen by hana"):
            act()
    sim.clock.sleep(7200)
    sim.context.datasets.traces = 50_000
    assert open_if_due(sim.context, scheduled=True)[0] is None
    set_frozen(sim, False)
    assert open_if_due(sim.context, scheduled=False)[0] == "cycle/sim/0002"


def test_a_freeze_just_before_the_opening_of_a_cycle_prevents_it() -> None:
    sim = simulated()
    before_the_next_append(sim, lambda: set_frozen(sim, True))
    with pytest.raises(Rejected, match="at the same time"):
        open_cycle(sim.context, "a test")
    assert sim.context.line_view().open_cycle is None
    assert sim.ledger.streams("cycle/") == []


def test_retry_opens_a_cycle_without_new_traces_and_names_actor_and_cycle() -> None:
    sim = simulated()
    first = open_cycle(sim.context, "a test")
    with pytest.raises(Rejected, match="cycle/sim/0001 is still open"):
        retry_cycle(sim.context, 1, "hana")
    ask_cancel(sim.ledger, "sim", "hana", "", sim.clock.now())
    sim.live()
    assert sim.context.cycle_view(first).state is State.CANCELLED
    assert not open_if_due(sim.context, scheduled=True)[0]
    second = retry_cycle(replace(sim.context, file="sim.toml"), 1, "hana")
    opened = sim.context.cycle_view(second).opened
    assert (second, opened.reason, opened.actor, opened.file) == ("cycle/sim/0002", "retry of 1", "hana", "sim.toml")
    assert fold_line("sim", sim.ledger.read(LINE)).rows[-1].data["actor"] == "hana"
    with pytest.raises(Rejected, match="no cycle 7"):
        retry_cycle(sim.context, 7, "hana")


def version(tag: str) -> ModelVersion:
    return ModelVersion(line="l", number=1, tag=tag, model=fake_model(tag), cycle="cycle/l/0001")


def past(tag: str, state: State = State.HELD, gain: float = 0.02, champion: str = "v-champion") -> Any:
    overall = Comparison.model_construct(name="overall", difference=Interval.model_construct(estimate=gain))
    report = EvalReport.model_construct(comparisons=(overall,))
    return SimpleNamespace(state=state, baseline=version(champion), candidate=version(tag), report=report)


@pytest.mark.parametrize(
    ("start_from", "cycles", "expected"),
    [
        ("champion", [past("v-held")], "v-champion"),
        ("base", [past("v-held")], "v-base"),
        ("held", [], "v-champion"),
        ("held", [past("v-held")], "v-held"),
        ("held", [past("v-older"), past("v-newer")], "v-newer"),
        ("held", [past("v-older"), past("v-worse", gain=-0.01)], "v-older"),
        ("held", [past("v-older"), past("v-rejected", State.REJECTED)], "v-older"),
        ("held", [past("v-recalled")], "v-champion"),
        ("held", [past("v-of-another-champion", champion="v-former")], "v-champion"),
        ("held", [past("v-older"), past("v-promoted", State.PROMOTED, champion="v-former")], "v-champion"),
    ],
)
def test_start_of_a_training_follows_the_setting(start_from: str, cycles: list[Any], expected: str) -> None:
    views = {f"cycle/l/{number:04d}": view for number, view in enumerate(cycles, 1)}
    context: Any = SimpleNamespace(loop=SimpleNamespace(line=SimpleNamespace(start_from=start_from)), cycle_view=views.__getitem__)
    line: Any = SimpleNamespace(line="l", cycles=len(cycles), base=version("v-base"), recalled={"v-recalled": "erased"})
    assert start_of(context, line, version("v-champion")).tag == expected


SFT, DPO, GRPO = Method.SFT, Method.DPO, Method.GRPO


@pytest.mark.parametrize(
    ("sections", "trained", "expected"),
    [
        ({}, [SFT, SFT], "v-base"),
        ({}, [], "v-base"),
        ({"training": {"methods": ["dpo", "sft"]}}, [SFT], "v-base"),
        ({"training": {"methods": ["dpo", "grpo"]}}, [SFT], "v2"),
        ({"retention": {"traces": 90}}, [SFT], "v2"),
        ({"retention": {"feedback": 90}}, [SFT], "v2"),
        ({"line": {"start_from": "champion"}}, [SFT], "v2"),
        ({"retention": {"traces": 90}, "line": {"start_from": "base"}}, [SFT], "v-base"),
        ({}, [GRPO], "v2"),
        ({}, [DPO, SFT], "v2"),
        ({}, [None], "v2"),
    ],
    ids=str,
)
def test_a_training_starts_from_the_base_model_where_it_learns_all_again(
    sections: dict[str, Any], trained: list[Method | None], expected: str
) -> None:
    """`trained` are the methods that led to the champion; None: a model that was trained elsewhere."""
    line = {"name": "l", "served_model": "m", **sections.get("line", {})}
    text = {"sources": [{"name": "s", "kind": "receiver"}], "rewards": [{"name": "exact_match"}], **sections, "line": line}
    base = version("v-base").model_copy(update={"cycle": None})
    views, champion = dict[str, Any](), base
    for number, method in enumerate(trained, 1):
        plans = () if method is None else (make_plan(method, {}),)
        views[f"cycle/l/{number:04d}"] = SimpleNamespace(plans=plans, start=champion)
        own = {"cycle": f"cycle/l/{number:04d}", "plan": plans[0].id if plans else None, "tag": "v2" if number == len(trained) else "v1"}
        champion = version("v").model_copy(update=own)
    context: Any = SimpleNamespace(loop=parse_loop(text, "the test"), cycle_view=views.__getitem__)
    view: Any = SimpleNamespace(line="l", cycles=len(trained), base=base, recalled={})
    assert start_of(context, view, champion).tag == expected


@pytest.mark.parametrize("start_from", ["champion", "base"])
def test_a_probe_knows_what_the_champion_was_trained_on_and_asks_it_if_it_is_not_the_start_model(start_from: str) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    probed = sim.context.datasets.probed  # type: ignore[attr-defined]
    sim.live()
    assert probed == [UNTRAINED], "the adopted model was trained on none of the prompts"
    line = sim.context.line_view()
    assert line.champion is not None
    assert line.champion.cycle == "cycle/sim/0001", "the first cycle was promoted"
    own = sim.context.loop.line.model_copy(update={"start_from": start_from})
    object.__setattr__(sim.context, "loop", sim.context.loop.model_copy(update={"line": own}))
    plan = sim.context.cycle_view("cycle/sim/0001").plan
    assert plan is not None
    preview(sim.context, probe=True)
    second = retry_cycle(sim.context, 1, "hana")
    for _ in range(9):
        sim.clock.sleep(7)
        advance(second, sim.context)
    assert [(known.trained_on, known.client is not None) for known in probed[1:]] == [((plan.pairs,), start_from == "base")] * 2
