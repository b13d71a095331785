"""Tests of what `ratchet check` says about a rollout's decisions: it counts people, and names what can be decided."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.data.records import PROMPTS
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.fakes import FakeSharingServer
from ratchet.contracts.jobs.training import JobSpec
from ratchet.contracts.loop import SafetySettings, TrainingSettings
from ratchet.contracts.schema import stamped
from ratchet.contracts.serving import Arm, Evidence
from ratchet.flows.cli.setup.check import _adapters, _jobs, _machine, _safety, _serving
from ratchet.flows.cli.setup.evidence_check import _unmeasured, bound_split, decidable, golden, newest_freeze
from ratchet.flows.composition.extensions import open_trainers
from ratchet.materializer.lake.schemas import parquet
from ratchet.materializer.training_sets.holdout import read_golden
from tests.simulation.simulated_line import Scenario, SimulatedLine


class Ratings:
    """Metrics that know the ratings of the champion."""

    def __init__(self, rated: tuple[tuple[int, float], ...], users: int | None = None, requests: int | None = None) -> None:
        self.rated, self.users, self.requests = rated, users, requests

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        n = sum(count for count, _ in self.rated) if self.requests is None else self.requests
        figures: dict[str, Any] = {"errors": 0, "refused": 0, "latency_p50_ms": None, "latency_p95_ms": None}
        old = Arm(tag=champion, requests=n, sessions=n, users=self.users, rated=self.rated, **figures)
        return Evidence(since=since, until=until, champion=old, candidate=Arm(tag=candidate, requests=0, sessions=0, rated=(), **figures))


def findings(rated: tuple[tuple[int, float], ...], **changes: Any) -> list[tuple[str, str, str]]:
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    settings = context.loop.rollout.model_copy(update={"margin": 0.05, "max_seconds": 7 * 86_400.0, "steps": (5.0, 50.0, 100.0), **changes})
    context = replace(context, loop=context.loop.model_copy(update={"rollout": settings}), metrics=Ratings(rated))
    return list(decidable(context))


def test_a_line_with_many_raters_decides_its_margin() -> None:
    [(level, about, text)] = findings(((20, 14.0),) * 1000)
    assert (level, about) == ("ok", "rollout")
    assert "1,000 users gave 20,000 ratings in the last 7 d" in text


def test_a_small_line_is_told_what_it_can_decide() -> None:
    [(level, _, text)] = findings(((10, 7.0),) * 60)
    assert level == "warning"
    assert "not rollout.margin = 0.05; set rollout.margin to 0.1" in text
    assert "or rollout.max_seconds to " in text
    [(_, _, smaller)] = findings(((3, 2.0),) * 30)
    assert "max_seconds to" not in smaller, "thirty people never decide this margin, because at most 40 ratings of each count"


def test_too_few_people_decide_nothing_and_cannot_be_the_unit() -> None:
    for unit, level in (("session", "warning"), ("user", "error")):
        [(found, _, text)] = findings(((5000, 4000.0), *((1, 1.0),) * 15), unit=unit)
        assert (found, "no rollout can be decided" in text) == (level, True)
    assert 'set rollout.unit = "session"' in text


def test_assignment_by_user_is_refused_where_no_length_of_time_decides_the_margin() -> None:
    """With assignment by session, both versions serve the same people. By user, their differences remain, however much each rates."""
    draw = random.Random(1)
    rated = tuple((40, round(40 * min(1.0, max(0.0, draw.gauss(0.7, 0.15))))) for _ in range(240))
    [(level, _, text)] = findings(rated, unit="user")
    assert level == "error"
    assert "not rollout.margin = 0.05" in text
    assert 'or rollout.unit to "session"' in text
    assert "max_seconds to" not in text
    assert findings(rated, unit="session")[0][0] != "error"
    few = ((2, 2.0),) * 150 + ((2, 1.0),) * 150
    assert findings(few, unit="user")[0][0] == "warning", "after two ratings each, it is not known how much people differ"


def test_without_ratings_the_needed_number_is_told() -> None:
    [(level, _, text)] = findings(())
    assert level == "note"
    assert "fewer than two users have rated" in text
    assert "a margin of 0.05 needs about 3," in text


def mirror_findings(
    users: int | None,
    requests: int,
    rated: tuple[tuple[int, float], ...] = (),
    unseen: bool = True,
    attributed: bool = True,
    **changes: Any,
) -> list[tuple[str, str, str]]:
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    settings = context.loop.rollout.model_copy(update={"margin": 0.1, "max_seconds": 7 * 86_400.0, "steps": (5.0, 50.0, 100.0), **changes})
    context = replace(context, loop=context.loop.model_copy(update={"rollout": settings}), metrics=Ratings(rated, users, requests))
    context.rewards.unseen = lambda: unseen  # type: ignore[method-assign]
    context.router.attribution = attributed
    return list(decidable(context))


@pytest.mark.parametrize("rated", [(), ((5, 3.0),) * 12])
def test_a_line_with_few_raters_is_offered_mirrored_prompts(rated: tuple[tuple[int, float], ...]) -> None:
    [(_, _, text)] = mirror_findings(12, 3000, rated)
    assert "or set rollout.mirror to 302 or more" in text
    assert "a standard deviation of 0.55, assumed" in text


def test_mirrored_prompts_are_not_offered_where_they_cannot_decide() -> None:
    for users, unseen in ((9, True), (12, False)):
        [(_, _, text)] = mirror_findings(users, 3000, ((5, 3.0),) * 7, unseen)
        assert "rollout.mirror" not in text


@pytest.mark.parametrize(
    ("mirror", "users", "requests", "unseen", "level", "part"),
    [
        (
            310,
            12,
            3000,
            True,
            "ok",
            "3,000 requests in the last 7 d; about 302 mirrored prompts decide rollout.margin = 0.1",
        ),
        (100, 12, 3000, True, "warning", "rollout.mirror = 100 is too few"),
        (400, 7, 3000, True, "warning", "fewer than 10 people decide nothing"),
        (310, 12, 100, True, "warning", "set rollout.max_seconds to 1,826,496 or more"),
        (310, 12, 3000, False, "error", "needs a scorer for unseen answers"),
    ],
)
def test_a_line_with_mirrored_prompts_is_told_what_they_decide(
    mirror: int, users: int, requests: int, unseen: bool, level: str, part: str
) -> None:
    [(found, about, text)] = mirror_findings(users, requests, unseen=unseen, mirror=mirror)
    assert (found, about) == (level, "rollout")
    assert part in text


@pytest.mark.parametrize(
    ("training", "gpus", "level"),
    [
        ({"gpus": 0, "search": {"budget": 600}}, 1, None),
        ({"gpus": 1, "search": {"budget": 600}}, 2, None),
        ({"gpus": 1}, 1, "note"),
        ({"gpus": 1, "search": {"budget": 600}}, 1, "error"),
        ({"gpus": 1, "search": {"budget": 600}, "window": "22:00-06:00"}, 1, "ok"),
        ({"gpus": 2, "search": {"budget": 600}}, 2, "error"),
    ],
)
def test_a_search_on_the_gpus_that_serve_needs_a_window(
    monkeypatch: pytest.MonkeyPatch, training: dict[str, Any], gpus: int, level: str | None
) -> None:
    monkeypatch.setattr("ratchet.flows.cli.setup.check.visible_gpus", lambda: gpus)
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    settings = TrainingSettings.model_validate(training)
    found = _machine(replace(context, loop=context.loop.model_copy(update={"training": settings, "cluster": None})))
    assert [one[0] for one in found] == ([level] if level else [])
    assert level != "error" or 'training.window = "22:00-06:00"' in found[0][2]


def test_it_says_whether_the_gate_asks_harmful_prompts(tmp_path: Path) -> None:
    context = SimulatedLine(Scenario(seed=1, people="auto")).context

    def found(settings: SafetySettings | None) -> tuple[str, str, str]:
        gate = context.loop.gate.model_copy(update={"safety": settings})
        [finding] = _safety(replace(context, loop=context.loop.model_copy(update={"gate": gate}), folder=tmp_path))
        return finding

    assert found(None)[0] == "note"
    assert found(SafetySettings()) == ("ok", "gate", "safety: 60 harmful and 60 harmless prompts")
    assert found(SafetySettings(prompts="own.jsonl"))[0] == "error"


@pytest.mark.parametrize(
    ("training", "levels", "part"),
    [
        ({"gpus": 1}, [], ""),
        ({"gpus": 3, "sft": {"batch": 32}}, ["warning", "warning"], "batch 32 is not a multiple of the 3 GPUs of the run; set batch to 33"),
        ({"gpus": 3, "methods": ["sft"], "sft": {"batch": 32}}, ["error"], "or change training.gpus and training.nodes"),
        ({"gpus": 8, "methods": ["grpo"]}, ["error"], "grpo on TRL uses at most one GPU; set training.nodes to 1"),
        ({"methods": ["dpo"], "dpo": {"losses": {"robust": 1}, "weigh_pairs": False}}, [], ""),
        (
            {"gpus": 8, "methods": ["grpo"], "grpo_on": "nemo-rl", "grpo": {"prompts_per_step": 9, "nemo": {"train_batch": 60}}},
            ["error"],
            "prompts_per_step * generations = 72 is not a multiple of nemo.train_batch 60",
        ),
        (
            {"gpus": 3, "methods": ["grpo"], "grpo_on": "nemo-rl", "grpo": {"prompts_per_step": 8}},
            ["error"],
            "a batch of 64 answers cannot be divided into 3 equal data-parallel shares; set prompts_per_step = 9",
        ),
        ({"gpus": 8, "methods": ["sft"], "sft_on": "nemo-rl"}, ["error"], "set training.sft.steps to a number"),
        ({"gpus": 8, "methods": ["sft"], "sft_on": "nemo-rl", "sft": {"steps": 90}}, [], ""),
        ({"gpus": 8, "methods": ["dpo"], "dpo_on": "nemo-rl", "dpo": {"steps": 90, "rehearsal": 1.0}}, ["error"], "set rehearsal = 0"),
    ],
)
def test_a_method_whose_batch_the_machines_cannot_divide_is_said(training: dict[str, Any], levels: list[str], part: str) -> None:
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    loop = context.loop.model_copy(update={"training": TrainingSettings.model_validate(training)})
    found = _jobs(replace(context, loop=loop, trainers=open_trainers(loop)))
    assert [one[0] for one in found] == levels
    assert part in " ".join(one[2] for one in found)


def test_a_method_for_which_the_cluster_has_no_room_is_said() -> None:
    def fits(spec: JobSpec) -> None:
        raise ConfigError(f"a gang of {spec.nodes} nodes is more than cluster.pool.max_nodes = 1; raise it")

    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    loop = context.loop.model_copy(update={"training": TrainingSettings(nodes=2, gpus=1, methods=("sft",))})
    found = _jobs(replace(context, loop=loop, trainers=open_trainers(loop), fits=fits))
    assert found == [("error", "training.sft", "no job can run: a gang of 2 nodes is more than cluster.pool.max_nodes = 1; raise it")]


def test_scorers_without_an_effect_are_said_while_the_loop_file_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    context = replace(context, rewards=SimpleNamespace(versions=(SimpleNamespace(name="user_feedback"),)))
    edition = context.datasets.edition(1)
    made = context.datasets.freeze("s", context.clock.now(), edition)
    silent = {"user_feedback": "it reads ratings", "gone": "it is removed"}
    snapshot = made.model_copy(update={"silent_scorers": silent, "doubtful_scorers": {"user_feedback": "it gave 0", "gone": "it gave 0"}})
    cycle = SimpleNamespace(get=lambda _: SimpleNamespace(snapshot=snapshot, edition=edition))
    monkeypatch.setattr("ratchet.flows.cli.setup.evidence_check._cycles", lambda _: [cycle])
    assert newest_freeze(context) == [
        ("warning", "reward", "The scorer user_feedback has no effect: it reads ratings"),
        ("warning", "reward", "The scorer user_feedback may find right answers wrong: it gave 0"),
    ]


def test_a_holdout_that_adds_little_to_the_golden_set_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimulatedLine(Scenario(seed=1)).context
    edition = context.datasets.edition(1).model_copy(update={"size": 13, "golden_size": 400})
    snapshot = context.datasets.freeze("s", context.clock.now(), edition).model_copy(update={"counts": {"considered": 500, "holdout": 90}})
    cycle = SimpleNamespace(get=lambda _: SimpleNamespace(snapshot=snapshot, edition=edition))
    monkeypatch.setattr("ratchet.flows.cli.setup.evidence_check._cycles", lambda _: [cycle])
    [(level, area, text)] = newest_freeze(context)
    assert (level, area) == ("warning", "prompts")
    assert "90 of 500 traces (18%) are held out" in text


def test_an_edited_golden_set_is_said_to_count_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimulatedLine(Scenario(seed=1)).context
    holdout = context.loop.holdout.model_copy(update={"golden": "golden.jsonl", "rotate_after": 8})
    context = replace(context, folder=tmp_path, loop=context.loop.model_copy(update={"holdout": holdout}))
    rows = [{"prompt": f"What is {n} + {n}?", "reference": str(2 * n)} for n in range(9)]
    file = tmp_path / "golden.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert not [text for _, _, text in golden(context) if "differ" in text], "a line without an edition"
    stored = context.artifacts.put(parquet(read_golden(file), PROMPTS, ["prompt_id"]))
    edition = context.datasets.edition(1).model_copy(update={"golden": stored, "golden_size": 9})
    cycle = SimpleNamespace(get=lambda _: SimpleNamespace(edition=edition))
    monkeypatch.setattr("ratchet.flows.cli.setup.evidence_check._cycles", lambda _: [cycle])
    assert not [text for _, _, text in golden(context) if "differ" in text]
    rows[0]["reference"] = "corrected"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:8], {"prompt": "new", "reference": "x"}]))
    [text] = [text for level, _, text in golden(context) if level == "warning"]
    assert text.startswith("3 prompts of the golden set differ from edition 1"), "one corrected, one removed, one added"
    assert "counts from the next edition on, after 8 more evaluations" in text


def test_settings_that_the_next_cycle_would_refuse_are_errors() -> None:
    context = SimulatedLine(Scenario(seed=1)).context
    assert bound_split(context) == []
    for name, value in (("split", {"salt": "ratchet", "fraction": 0.25, "normaliser": 1}), ("development", {"fraction": 0.0})):
        context.artifacts.bind(f"{name}/{context.line}", context.artifacts.put(stamped(value)))
    development, split = bound_split(context)
    assert development[:2] == split[:2] == ("error", "holdout")
    assert "holdout.development = 0, and its models were trained on the other prompts" in development[2]
    assert "was split with holdout.fraction = 0.25" in split[2]
    assert "line.salt" not in split[2], "only what differs"


def adapters(serving: dict[str, Any], **training: Any) -> list[tuple[str, str]]:
    """Return level and text of the findings on adapters."""
    loop = SimulatedLine(Scenario(seed=1)).context.loop
    changed = type(loop).model_validate(loop.model_dump() | {"serving": serving, "training": {"methods": ["dpo", "sft"], **training}})
    context = replace(SimulatedLine(Scenario(seed=1)).context, loop=changed)
    return [(level, text) for level, _, text in _adapters(context)]


def test_check_says_which_methods_serve_an_adapter() -> None:
    assert adapters({}, dpo={"lora": {"rank": 2}}) == []
    told = adapters({"adapters": "own server"}, dpo={"lora": {"rank": 2}})
    assert told == [
        ("ok", "dpo: the server of a candidate loads the adapter over its base model"),
        ("note", "sft: served as a whole model, because training.sft has no lora"),
    ]
    assert ("note", "sft: served as a whole model, because the trainer other publishes no adapter") in adapters(
        {"adapters": "own server"}, sft_on="other", sft={"lora": {"rank": 2}}
    )


def test_a_form_that_is_not_offered_is_refused() -> None:
    with pytest.raises(ValueError, match="'merged', 'own server' or 'shared'"):
        adapters({"adapters": "two"})


def test_check_says_whether_the_process_of_the_champion_can_load_adapters() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sharing = FakeSharingServer(sim.world)
    loop = type(sim.context.loop).model_validate(
        sim.context.loop.model_dump()
        | {"serving": {"adapters": "shared"}, "training": {"methods": ["dpo", "sft"], "dpo": {"lora": {"rank": 2}}}}
    )
    context = replace(sim.context, loop=loop, server=sharing)
    assert _adapters(context) == [
        ("ok", "adapters", "dpo: the process of the champion loads the adapter of a candidate"),
        ("note", "adapters", "sft: served as a whole model in a process of its own, because training.sft has no lora"),
    ]
    sharing.refusal = "its rank is too high; lower it"
    assert ("error", "adapters", 'dpo: serving.adapters = "shared": its rank is too high; lower it') in _adapters(context)


def test_without_attribution_it_says_how_many_mirrored_prompts_decide() -> None:
    def found(mirror: int, unseen: bool = True) -> tuple[str, str, str]:
        [one] = mirror_findings(None, 0, unseen=unseen, attributed=False, mirror=mirror)
        return one

    level, about, text = found(310)
    assert (level, about) == ("note", "rollout")
    assert "about 307 mirrored prompts decide rollout.margin = 0.1" in text
    assert "of at least 10 people, whose applications send their traces" in text
    level, _, text = found(100)
    assert (level, "rollout.mirror = 100 is too few" in text) == ("warning", True)
    level, _, text = found(310, unseen=False)
    assert (level, text.endswith("add one to [[rewards]]")) == ("error", True), "0 is no remedy, because it is refused"


def unattributed(**changes: Any) -> list[tuple[str, str, str]]:
    """Return what is found about the router of a line with these settings of the rollout, which attributes nothing."""
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    settings = type(context.loop.rollout)(**changes)
    context.router.attribution = False
    found = _serving(replace(context, loop=context.loop.model_copy(update={"rollout": settings})))
    return [one for one in found if one[1] == "router"]


def test_without_attribution_the_decisions_of_a_rollout_are_named() -> None:
    [(level, _, text)] = unattributed(mirror=200, holdback=0)
    assert level == "warning"
    assert "up to 200 mirrored prompts" in text
    assert "ratings, errors and latency of users decide nothing" in text


def test_without_attribution_settings_without_an_effect_are_refused() -> None:
    [(level, _, text)] = unattributed()
    assert (level, "rollout.mirror is 0; set it" in text) == ("error", True)
    found = unattributed(mirror=200, unit="user", min_requests=7)
    assert [text.partition(" ")[0] for level, _, text in found if level == "error"] == ["rollout.unit", "rollout.min_requests"]
    assert 'use serving.router = "kubernetes" or "local"' in found[-1][2]


@pytest.mark.parametrize(
    ("training", "development", "expected"),
    [
        ({"methods": ["sft", "dpo"]}, 0, []),
        ({"methods": ["sft", "grpo"]}, 0, ["GRPO"]),
        ({"methods": ["sft"], "gpus": 2}, 0, ["SFT"]),
        ({"methods": ["dpo"], "nodes": 2, "gpus": 1}, 0, ["DPO"]),
        ({"methods": ["sft", "dpo"], "dpo_on": "nemo-rl"}, 0, ["DPO"]),
        ({"methods": ["sft", "grpo"]}, 0.15, []),
        ({"methods": ["sft", "grpo"], "sft": {"folds": 0}, "grpo": {"steps": 60}}, 0, ["SFT"]),
    ],
)
def test_check_warns_of_methods_whose_length_nothing_measures(training: dict[str, Any], development: float, expected: list[str]) -> None:
    loop: Any = SimpleNamespace(training=TrainingSettings(**training), holdout=SimpleNamespace(development=development))
    found = _unmeasured(loop)
    assert [(level, text.split()[0]) for level, _, text in found] == [("warning", name) for name in expected]
