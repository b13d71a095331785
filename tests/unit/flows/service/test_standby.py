"""Tests of a pod of the service that waits to take the place of the one that leads."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.fakes import MemoryLedger
from ratchet.contracts.ids import line_stream
from ratchet.flows.cli.main import cli
from ratchet.flows.composition import credentials
from ratchet.flows.composition.credentials import mirror_credentials, open_credentials
from ratchet.flows.composition.identity import installation_id
from ratchet.flows.composition.stores import copy_files
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.service.leadership import Leadership
from ratchet.flows.service.process import only_one, read_sign
from ratchet.flows.service.standby import Cache, has_several_pods, open_leadership, refuse_if_waiting, wait_to_lead
from ratchet.flows.service.vitals import problems, take
from ratchet.materializer.receive.credentials import Role
from ratchet.runtime import leading
from ratchet.runtime.serving.exchange import EXCHANGE
from tests.postgres import postgres_server
from tests.s3 import S3, served_by_default

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has never led."""
    monkeypatch.setattr(leading, "_until", None)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv(variables.HOME, str(tmp_path / "home"))
    monkeypatch.setenv(variables.STANDBY, "true")
    return Home.from_environment()


def test_a_pod_waits_with_signs_of_life_and_leads_when_the_other_one_is_gone(home: Home) -> None:
    ledger, said, signs = MemoryLedger(), list[str](), list[str | None]()
    one, two = (Leadership(ledger, "shop", pod, lambda: NOON) for pod in ("service-a/1", "service-b/2"))
    one.take()

    def sleep(_: float) -> None:
        signs.append(read_sign(home)[0].waits_for)  # type: ignore[union-attr]
        if len(signs) == 3:
            one.release()

    with only_one(home, waits=True) as beat:
        assert read_sign(home)[0].waits_for == "", "it is not known yet"  # type: ignore[union-attr]
        cache = Cache(home, lambda: ledger, ["shop"])
        cache.begin()
        (home.root / "reports").mkdir()  # of a command in the pod that waits
        assert wait_to_lead(lambda: two, cache, beat, said.append, sleep) is two
        assert not (home.root / "reports").exists()
        beat("")
        assert read_sign(home)[0].waits_for is None  # type: ignore[union-attr]
    assert signs == ["service-a"] * 3
    assert said == ["service-a leads; this pod waits to take its place"]
    assert two.leader() == "service-b/2"


def test_a_pod_that_cannot_reach_the_database_says_so_and_goes_on_waiting(home: Home) -> None:
    ledger, said, away = MemoryLedger(), list[str](), [True, True, False]

    def opened() -> Leadership:
        if away.pop(0):
            raise Retryable("the database is away")
        return Leadership(ledger, "shop", "service-a/1", lambda: NOON)

    with only_one(home, waits=True) as beat:
        leadership = wait_to_lead(opened, Cache(home, lambda: ledger, []), beat, said.append, lambda _: None)
    assert said == ["the database is away"]
    assert leadership.leader() == "service-a/1"


def test_the_sign_of_a_waiting_pod_is_a_note_and_commands_that_write_are_refused_there(home: Home) -> None:
    with pytest.raises(ConfigError, match="serves nothing"):
        refuse_if_waiting(home)
    with only_one(home, waits=True) as beat:
        beat("", waits_for="service-a")
        [problem] = problems(take(home, [], datetime.now(UTC), lambda _: False))
        assert (problem.level, problem.about) == ("note", "service")
        assert "waits to take the place of service-a" in problem.text
        for command in (["gc"], ["erase", "--user", "u1"], ["adopt", "loop.toml", "model"], ["ingest", "loop.toml"]):
            result = CliRunner().invoke(cli, command)
            assert isinstance(result.exception, ConfigError), result.output
            assert "kubectl exec service-a" in str(result.exception)
        assert CliRunner().invoke(cli, ["gc", "--help"]).exit_code == 0
        beat("")
        refuse_if_waiting(home)


def test_the_home_of_a_pod_is_emptied_but_for_the_files_of_the_running_process(home: Home) -> None:
    cache = Cache(home, MemoryLedger, ["shop"])
    with only_one(home):
        cache.begin()
        for name in ("artifacts/sha256/ab/x", "lines/shop/lake/seen.sqlite", "prefect/events.json", "prefect/flows/a", "user-keys.json"):
            (home.root / name).parent.mkdir(parents=True, exist_ok=True)
            (home.root / name).write_text("old")
        (home.root / "link").symlink_to(home.root / "artifacts")
        Cache(home, MemoryLedger, ["shop"]).begin()
        assert sorted(path.relative_to(home.root).as_posix() for path in home.root.rglob("*")) == [
            "cache-of-a-pod", "prefect", "prefect/serve.json", "prefect/serve.lock",
        ]  # fmt: skip


def test_a_folder_with_the_state_of_a_single_pod_is_never_emptied(home: Home) -> None:
    with only_one(home):
        (home.root / "artifacts").mkdir()
        with pytest.raises(ConfigError, match=r"it has artifacts of a service with one pod"):
            Cache(home, MemoryLedger, ["shop"]).begin()
        assert (home.root / "artifacts").exists()


def test_another_value_of_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.STANDBY, "1")
    with pytest.raises(ConfigError, match="set it to true"):
        has_several_pods()
    monkeypatch.setenv(variables.STANDBY, "")
    assert not has_several_pods()


def test_without_the_identity_of_the_pod_nothing_leads(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variables.POD, raising=False)
    with pytest.raises(ConfigError, match="RATCHET_POD"):
        open_leadership(home)


@pytest.fixture
def pods(home: Home, monkeypatch: pytest.MonkeyPatch, s3: S3):
    """An installation in pods with a database."""
    monkeypatch.setenv(EXCHANGE, s3.settings.url)
    with postgres_server() as server:
        monkeypatch.setenv(variables.LEDGER_URL, server.url())
        yield home


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch):
    with served_by_default(monkeypatch) as server:
        yield server


@pytest.mark.slow
def test_a_pod_leads_only_when_the_state_of_an_earlier_release_is_shared(pods: Home, tmp_path: Path) -> None:
    ledger, volume = MemoryLedger(), Home(tmp_path / "volume")
    Cache(pods, lambda: ledger, ["shop"]).check_shared()  # nothing was served yet
    ledger.lengths = lambda streams: {line_stream("shop"): 3}  # type: ignore[method-assign,assignment]
    cache = Cache(pods, lambda: ledger, ["shop"])
    with pytest.raises(Retryable, match="with one replica and that volume"):
        cache.check_shared()
    copy_files(volume, "shop")
    cache.check_shared()


@pytest.mark.slow
def test_credentials_and_the_id_of_the_installation_outlive_a_volume(pods: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:  # an earlier release, whose state is on the volume
        before.delenv(EXCHANGE)
        token = open_credentials(pods, "shop").add("app", [Role.TRACES]).read_text()
        known = installation_id(pods)
    content = pods.credentials("shop").read_bytes()
    copy_files(pods, "shop")
    assert installation_id(pods) == known
    other = Home(tmp_path / "other")
    assert installation_id(other) == known
    store = open_credentials(other, "shop")
    assert store.read().sender(token) is not None
    store.revoke("app")
    assert open_credentials(pods, "shop").read().sender(token) is None, "the file of the earlier release says nothing any more"
    assert pods.credentials("shop").read_bytes() == content


@pytest.mark.slow
def test_what_an_earlier_release_changed_counts_after_a_second_upgrade(pods: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_credentials(pods, "shop")
    tokens = {name: store.add(name, [Role.TRACES]).read_text() for name in ("partner", "kept", "later")}
    mirror_credentials(pods, "shop", store.content() or b"", datetime.now(UTC))
    store.revoke("later")  # not mirrored any more before the operator goes back
    with monkeypatch.context() as before:
        before.delenv(EXCHANGE)
        earlier = open_credentials(pods, "shop")
        earlier.revoke("partner")
        tokens["new"] = earlier.add("new", [Role.TRACES]).read_text()
    credentials._take_over.cache_clear()
    found = open_credentials(pods, "shop").read()
    assert {name: found.sender(token) is not None for name, token in tokens.items()} == {
        "partner": False, "kept": True, "later": False, "new": True,
    }  # fmt: skip
    credentials._take_over.cache_clear()
    assert open_credentials(pods, "shop").read() == found


@pytest.mark.slow
def test_an_exchange_belongs_to_one_installation(pods: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.prefect.mkdir(parents=True)
    (other.prefect / "installation").write_text("0123456789ab")
    mine = installation_id(pods)
    with pytest.raises(ConfigError, match=rf"belongs to the installation {mine}"):
        installation_id(other)
