"""Tests of an installation in pods: the Secret with its keys, and the settings that it refuses."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.pod_keys import ANCHOR_KEY, USER_KEYS, keys_secret
from ratchet.flows.composition.pods import adopt_keys, refuse_local_parts
from ratchet.flows.composition.services import address_in_cluster
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
from ratchet.runtime.secrets.keyring import ensure_keyring, read_keyring
from ratchet.runtime.serving.exchange import EXCHANGE
from tests.toy_line import write_loop

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def mounted(secret: dict[str, Any], folder: Path) -> Path:
    """Write the files of a Secret as the chart mounts them, and return the folder."""
    for name, text in secret["data"].items():
        line, _, file = name.partition(".")
        place = folder / line / file if file in ("router", "span-keys.json") else folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(base64.b64decode(text))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = mounted(keys_secret(["shop"], NOW), tmp_path / "keys")
    monkeypatch.setenv(variables.KEYS, str(folder))
    return folder


def test_the_service_uses_the_keys_of_the_secret(home: Home, keys: Path) -> None:
    adopt_keys(home, "shop")
    adopt_keys(home, "shop")
    assert home.user_keys.read_bytes() == (keys / USER_KEYS).read_bytes()
    assert home.anchor_key.read_bytes() == (keys / ANCHOR_KEY).read_bytes()
    assert home.span_keys("shop").read_bytes() == (keys / "shop" / "span-keys.json").read_bytes()
    store = open_credentials(home, "shop")
    sender = store.read().sender((keys / "shop" / "router").read_text())
    assert sender is not None
    assert sender.name == "router"
    assert store.ensure_router().read_text() == (keys / "shop" / "router").read_text()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (home.user_keys, home.anchor_key, home.span_keys("shop")))


def test_a_rotation_keeps_every_former_key_and_token(home: Home, keys: Path, tmp_path: Path) -> None:
    adopt_keys(home, "shop")
    token, first = (keys / "shop" / "router").read_text(), read_keyring(home.span_keys("shop"))
    present = {"metadata": {"name": "ours"}, "data": {**secret_of(keys)}}
    rotated = keys_secret(["shop"], NOW + timedelta(days=1), present, rotate=True)
    assert rotated["metadata"]["name"] == "ours"
    mounted(rotated, keys)
    adopt_keys(home, "shop")
    ring = read_keyring(home.span_keys("shop"))
    assert ring.keys[0] == first.keys[0]
    assert [key.id for key in ring.keys] == [1, 2]
    assert ring.to_sign(NOW + timedelta(days=1, minutes=9)) == ring.keys[0], "other pods may not have read the new key yet"
    assert ring.to_sign(NOW + timedelta(days=1, minutes=11)) == ring.keys[1]
    assert [key.id for key in read_keyring(home.user_keys).keys] == [1, 2]
    known = open_credentials(home, "shop").read()
    assert known.sender(token) == known.sender((keys / "shop" / "router").read_text()) is not None


def secret_of(folder: Path) -> dict[str, str]:
    files = {path.relative_to(folder).as_posix().replace("/", "."): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def test_a_new_line_gets_keys_and_the_others_keep_theirs(keys: Path) -> None:
    before = secret_of(keys)
    extended = keys_secret(["shop", "help"], NOW, {"data": before})["data"]
    assert {name: extended[name] for name in before} == before
    assert {name for name in extended if name.startswith("help.")} == {"help.router", "help.span-keys.json"}


def test_a_secret_without_a_key_in_use_is_refused(home: Home, keys: Path) -> None:
    ensure_keyring(home.user_keys, NOW)
    with pytest.raises(ConfigError, match="lacks the keys 1"):
        adopt_keys(home, "shop")


def test_another_anchor_key_is_refused(home: Home, keys: Path) -> None:
    home.root.mkdir()
    home.anchor_key.write_bytes(b"another")
    with pytest.raises(ConfigError, match="put its content into the Secret"):
        adopt_keys(home, "shop")


@pytest.mark.parametrize("lost", ["user-keys.json", "shop/router", "shop/span-keys.json", "anchor.key"])
def test_a_missing_file_is_named_with_the_remedy(home: Home, keys: Path, lost: str) -> None:
    (keys / lost).unlink()
    with pytest.raises(ConfigError, match=f"{lost}.*ratchet k8s keys"):
        adopt_keys(home, "shop")


def test_without_the_folder_nothing_is_adopted(home: Home) -> None:
    adopt_keys(home, "shop")
    assert not home.root.exists()


@pytest.mark.parametrize("damaged", [{"data": {"user-keys.json": "%%"}}, {"data": {"user-keys.json": base64.b64encode(b"{").decode()}}])
def test_a_damaged_secret_is_not_rotated(damaged: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        keys_secret(["shop"], NOW, damaged, rotate=True)


def in_pods(loop: Loop, **serving: Any) -> Loop:
    return loop.model_copy(update={"serving": loop.serving.model_copy(update=serving)})


def test_an_installation_in_pods_refuses_parts_of_one_pod(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = load_loop(write_loop(tmp_path))
    refuse_local_parts(loop, home)
    monkeypatch.setenv(EXCHANGE, "s3://bucket/exchange")
    with pytest.raises(ConfigError, match="SQLite"):
        refuse_local_parts(loop, home)
    monkeypatch.setenv(variables.LEDGER_URL, "postgresql+psycopg://somewhere/ratchet")
    with pytest.raises(ConfigError, match="the lake is on the disk of one pod; set RATCHET_WAREHOUSE"):
        refuse_local_parts(loop, home)
    monkeypatch.setenv(variables.WAREHOUSE, "s3://bucket/lakes")
    monkeypatch.setenv(variables.CATALOG_URL, "postgresql+psycopg://somewhere/catalog")
    with pytest.raises(ConfigError, match=r"serving\.router"):
        refuse_local_parts(loop, home)
    loop = in_pods(loop, router="kubernetes")
    with pytest.raises(ConfigError, match=r"serving\.kind"):
        refuse_local_parts(loop, home)
    loop = in_pods(loop, kind="kubernetes")
    with pytest.raises(ConfigError, match="RATCHET_KEYS"):
        refuse_local_parts(loop, home)
    monkeypatch.setenv(variables.KEYS, "/keys")
    refuse_local_parts(loop, home)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", "the receivers of the cluster"),
        ("http://otlp.example:4318", "http://otlp.example:4318"),
        ("other=http://r:4319 shop=http://r:4318", "http://r:4318"),
        ("other=http://r:4319", "the receivers of the cluster"),
    ],
)
def test_senders_are_told_the_address_of_their_line(given: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_RECEIVER_URL", given)
    assert address_in_cluster("shop") == found
