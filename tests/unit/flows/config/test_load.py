"""Tests the error messages for an invalid loop file: the file, the key, and the nearest valid key. Also tests Home."""

from __future__ import annotations

import copy
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop, parse_loop

GOOD: dict[str, Any] = {
    "line": {"name": "a-line", "served_model": "helper"},
    "sources": [{"name": "in", "kind": "receiver"}],
    "rewards": [{"name": "exact_match"}],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return a copy of GOOD with one key changed. Numbers in `path` are list indexes."""
    data = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    at: Any = data
    for part in way:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    at[last] = value
    return data


def complaint(data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_loop(data, "my.toml")
    assert all(line.startswith("my.toml: ") for line in str(caught.value).splitlines())
    return str(caught.value)


def test_a_setting_that_a_fitted_batch_breaks_is_named_when_the_file_is_read() -> None:
    training = {"grpo_on": "nemo-rl", "gpus": 3, "grpo": {"generation_batch": 64}}
    with pytest.raises(ConfigError, match=r"^my.toml: training.grpo: .*one of 8, 24, 72; .*\(a batch that is not set is fitted"):
        parse_loop({**GOOD, "training": training}, "my.toml")
    assert parse_loop({**GOOD, "training": training | {"gpus": 2}}, "my.toml").training.grpo == {"generation_batch": 64}


def test_minimal_loop_file_is_valid() -> None:
    assert parse_loop(GOOD, "my.toml").line.name == "a-line"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("trainig", {}, ["'trainig'", "'training'"]),
        ("training.min_pair", 5, ["'training.min_pair'", "'min_pairs'"]),
        ("sources.0.pth", "x", ["'sources[1].pth'", "'path'"]),
        ("rewards.0.wieght", 1, ["'rewards[1].wieght'", "'weight'"]),
        ("approvals.training.modes", "auto", ["'approvals.training.modes'", "'mode'"]),
        ("approvals.training.mode", "nobody", ["approvals.training.mode", "'person'", "'auto'", "'nobody'"]),
        ("rollout.steps", [5, 1, 100], ["rollout", "increase and end at 100"]),
        ("rollout.steps", [5, 25], ["increase and end at 100"]),
        ("rollout.steps", [], ["increase and end at 100"]),
        ("rollout.alpha", 0.7, ["rollout.alpha", "0.7"]),
        ("gate.level", 1, ["gate.level"]),
        ("gate.min_prompts", "many", ["gate.min_prompts", "'many'"]),
        ("line.name", "My Line", ["line.name", "'My Line'", "lower-case letters, digits and hyphens, at most 40"]),
        ("sources.0.path", "x", ["takes no path"]),
        ("sources.0.kind", "otlp", ["needs a path"]),
        ("sources", [{"name": "s", "kind": "jsonl", "path": "x", "mapping": {"timestamp": "=yesterday"}}], ["=yesterday", "=2026-01-31"]),
        ("sources.0.mapping", {"id": "#"}, ["mapping.id = '#'", "kind jsonl or parquet"]),
        ("sources", [{"name": "s", "kind": "jsonl", "path": "x", "mapping": {"user_id": "#"}}], ["only mapping.id"]),
        (
            "sources",
            [{"name": "s", "kind": "jsonl", "path": "x", "mapping": {"consent": "=true"}}],
            ["mapping.consent", "timestamp, model"],
        ),
        ("sources", [{"name": "s", "kind": "jsonl", "path": "x", "mapping": {"model": "="}}], ["mapping.model"]),
        ("trigger.cron", "every day", ["trigger.cron", "5"]),
        ("trigger.cron", "0 30 * * *", ["trigger.cron", "hour '30'", "30 is not within 0 to 23", "'0 30 * * *'"]),
        ("trigger.cron", "0 0 * 13 *", ["trigger.cron", "month '13'", "1 to 12"]),
        ("trigger.cron", "*/0 * * * *", ["trigger.cron", "minute '*/0'", "step"]),
        ("trigger.cron", "0 0 * * funday", ["trigger.cron", "weekday 'funday'", "sun, mon"]),
        ("trigger.cron", "0 0 1,32 * *", ["trigger.cron", "day '1,32'", "1 to 31"]),
        ("trigger.timezone", "Berlin", ["trigger.timezone", "'Berlin'", "did you mean 'Europe/Berlin'?"]),
        ("trigger.timezone", "Nowhere", ["trigger.timezone", "'Nowhere'", "such as Europe/Berlin"]),
        ("training.gpus", True, ["training.gpus", "a number is required", "true"]),
        ("gate.level", True, ["gate.level", "a number is required"]),
        ("probe.prompts", False, ["probe.prompts", "a number is required", "false"]),
        ("rollout.steps", [True, 100], ["rollout.steps[1]", "a number is required"]),
        ("rewards.0.weight", True, ["rewards[1].weight", "a number is required"]),
        ("sources", [{"name": "a", "kind": "receiver"}, {"name": "b", "kind": "receiver"}], ["sources[2]", "one receiver", "sources[1]"]),
        ("holdout.fraction", 0, ["holdout.fraction"]),
        ("training.methods", ["ppo"], ["training.methods", "'ppo'"]),
        ("probe.samples", 1, ["probe.samples"]),
        ("serving.router_port", 70_000, ["serving.router_port"]),
        ("training.grpo.prompts_per_step", "many", ["training.grpo", "prompts_per_step", "a whole number is required"]),
        ("training.grpo.learnign_rate", 1, ["training.grpo", "'learnign_rate'", "'learning_rate'"]),
        ("training.sft.steps", 0, ["training.sft", "steps: it must be more than 0, or it must be 'auto'"]),
        ("training.dpo.batch", -3, ["training.dpo", "batch: it must be more than 0"]),
        ("training.dpo.lora.rnak", 8, ["training.dpo", "'rnak'", "'rank'"]),
        ("training.dpo.lora.targets", "", ["training.dpo", "lora.targets"]),
        ("training.dpo.lora.targets", [], ["training.dpo", "lora.targets"]),
        ("training.dpo.lora.targets", ["q_proj", " "], ["training.dpo", "lora.targets"]),
        ("training.dpo.save_every", True, ["training.dpo", "save_every", "true"]),
        ("training.sft.health.grad_norm.patience", True, ["training.sft", "health.grad_norm.patience", "true"]),
        ("training.sft.gradient_checkpointing", "perhaps", ["training.sft", "gradient_checkpointing"]),
    ],
)
def test_error_names_key_and_value(path: str, value: Any, said: list[str]) -> None:
    text = complaint(changed(path, value))
    assert all(word in text for word in said), text


SCHEDULES = (
    "0 3 * * *",
    "*/15 0-6,18-23 1-31/2 jan-MAR mon-fri",
    "0 0 L * *",
    "0 0 * * 5#2",
    "0 0 * * 7",
    "59 23 31 12 sun",
    "0 0 ? * *",
)


@pytest.mark.parametrize("cron", SCHEDULES)
def test_possible_schedules_are_accepted(cron: str) -> None:
    assert parse_loop(changed("trigger.cron", cron), "my.toml").trigger.cron == cron


@pytest.mark.slow
def test_the_scheduler_accepts_these_schedules() -> None:
    from prefect.client.schemas.schedules import CronSchedule

    assert [CronSchedule(cron=cron).cron for cron in SCHEDULES] == list(SCHEDULES)


def test_no_message_contains_a_pattern() -> None:
    cluster = {"bucket": {"url": "s3://X", "endpoint": "ftp://x"}, "pool": {"disk": "1"}}
    text = complaint({**changed("line.name", "My Line"), "sources": [{"name": "A", "kind": "receiver"}], "cluster": cluster})
    assert not any(sign in text for sign in ("^[", "$'", "(?", "should match")), text


def test_settings_of_a_cycle_that_an_earlier_release_opened_stay_readable() -> None:
    """The ledger contains settings that a loop file may not contain any more."""
    stored = Loop.model_validate(changed("trigger.cron", "0 30 * * *")).model_dump(mode="json")
    assert Loop.model_validate(stored).trigger.cron == "0 30 * * *"


def test_all_errors_are_reported_together() -> None:
    data = changed("gate.levle", 0.9) | {"rewards": []}
    del data["line"]["served_model"]
    text = complaint({**data, "trainer": {}})
    assert "gate.levle" in text
    assert "line.served_model" in text
    assert "trainer" in text


def test_recipes_of_all_methods_are_checked() -> None:
    training = {"methods": ["sft"], "grpo": {"stesp": 1}, "dpo": {"beta": -1}}
    text = complaint({**GOOD, "training": training})
    assert "training.grpo: GRPO recipe: unknown key 'stesp'; did you mean 'steps'?" in text
    assert "training.dpo: DPO recipe: beta" in text


def test_duplicate_names_are_rejected() -> None:
    assert "in is listed twice" in complaint({**GOOD, "sources": GOOD["sources"] * 2})
    assert "exact_match is listed twice" in complaint({**GOOD, "rewards": GOOD["rewards"] * 2})


@pytest.mark.parametrize("missing", ["line", "sources", "rewards"])
def test_error_names_a_missing_key(missing: str) -> None:
    assert f"'{missing}' is missing" in complaint({key: value for key, value in GOOD.items() if key != missing})


def test_error_for_a_missing_key_suggests_a_misspelt_key() -> None:
    data = copy.deepcopy(GOOD)
    data["line"]["serve_model"] = data["line"].pop("served_model")
    assert "unknown key 'line.serve_model'; did you mean 'served_model'? It is required" in complaint(data)
    assert complaint(data).count("serve") == 2, "one problem is said once"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no loop file"), (b"[line\n", "not TOML"), (b"\xff\xfe", "not UTF-8"), (b"", "missing"), (b"line = 3", "line")],
)
def test_invalid_or_missing_loop_file_is_an_error(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "my.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        load_loop(path)
    assert "my.toml" in str(caught.value)
    with pytest.raises(ConfigError, match="folder"):
        load_loop(tmp_path)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*Loop.model_fields, "name", "kind", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])  # a slow machine does not make the input invalid
@given(st.dictionaries(st.sampled_from([*Loop.model_fields, "x"]), junk, max_size=6))
def test_any_invalid_data_is_a_config_error(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_loop({**data, "line": data.get("line", 0)}, "my.toml")


def test_login_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    path = Home(tmp_path / "a").prefect_login()
    first = path.read_text()
    assert len(first) >= 32
    assert Home(tmp_path / "a").prefect_login().read_text() == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Home(tmp_path / "b").prefect_login().read_text() != first


def test_home_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "x"))
    monkeypatch.delenv("RATCHET_LEDGER_URL", raising=False)
    assert Home.from_environment().ledger_url == f"sqlite:///{tmp_path / 'x' / 'ledger.db'}"
    monkeypatch.setenv("RATCHET_LEDGER_URL", "postgresql+psycopg://x@y/z")
    assert Home.from_environment().ledger_url == "postgresql+psycopg://x@y/z"
