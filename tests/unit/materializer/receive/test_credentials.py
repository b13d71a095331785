"""Tests of the receiver's credentials: what is stored, what a change does, and what a crash or a damaged file leaves."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.contracts.data.senders import Role
from ratchet.contracts.errors import ConfigError
from ratchet.materializer.receive.credentials import ROUTER, CredentialFile, CredentialStore
from ratchet.runtime import documents
from ratchet.runtime.documents import LAYOUT, StoredDocuments
from ratchet.runtime.sql_store import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> CredentialStore:
    return CredentialStore(tmp_path / "credentials.json", lambda: datetime(2026, 11, 1, tzinfo=UTC))


def test_a_token_is_known_by_its_digest_only_and_its_files_are_readable_only_by_their_owner(store: CredentialStore) -> None:
    file = store.add("shop", [Role.TRACES, Role.FEEDBACK])
    token = file.read_text()
    assert len(token) >= 43  # 256 bits
    assert token not in store.path.read_text()
    assert {stat.S_IMODE(path.stat().st_mode) for path in (file, store.path, store.token_file(ROUTER))} == {0o600}
    sender = CredentialFile(store.path).sender(token)
    assert sender is not None
    assert (sender.label, sender.vouches) == ("traces+feedback/shop", False)


@pytest.mark.parametrize("token", ["", "x", "é\udc80", "\x00"])
def test_any_other_text_is_no_token(store: CredentialStore, token: str) -> None:
    store.add("shop", [Role.TRACES])
    assert CredentialFile(store.path).sender(token) is None


def test_the_router_is_created_once_and_a_lost_file_gets_a_new_token(store: CredentialStore) -> None:
    file = store.ensure_router()
    first = file.read_text()
    assert store.ensure_router().read_text() == first
    file.unlink()
    second = store.ensure_router().read_text()
    known = CredentialFile(store.path)
    assert first != second
    assert known.sender(first) == known.sender(second), "spans that wait for the receiver may still be sent with the old token"


def test_a_crash_between_the_two_files_of_the_router_repeats_nothing(store: CredentialStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_path: Path, _content: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(documents, "replace_secret", crash)
        with pytest.raises(KeyboardInterrupt):
            store.ensure_router()
    left = store.token_file(ROUTER).read_text()
    assert store.ensure_router().read_text() == left
    assert CredentialFile(store.path).sender(left) is not None


def test_a_damaged_file_leaves_the_last_content_in_force_and_a_missing_one_refuses_all(store: CredentialStore) -> None:
    token = store.add("shop", [Role.TRACES]).read_text()
    known = CredentialFile(store.path)
    assert known.sender(token)
    store.path.write_bytes(b"{")
    assert known.sender(token)
    assert CredentialFile(store.path).sender(token) is None
    with pytest.raises(ConfigError, match="damaged"):
        store.rotate("shop")
    store.path.unlink()
    assert known.sender(token) is None


@pytest.mark.parametrize(
    ("name", "roles", "message"),
    [
        ("Shop", [Role.TRACES], "not a name"),
        ("../x", [Role.TRACES], "not a name"),
        ("shop", [Role.ROUTER], "itself"),
        ("known", [Role.TRACES], "already"),
    ],
)
def test_invalid_credentials_are_refused(store: CredentialStore, name: str, roles: list[Role], message: str) -> None:
    store.add("known", [Role.REVIEW])
    with pytest.raises(ConfigError, match=message):
        store.add(name, roles)


def test_the_credential_of_the_router_is_rotated_and_not_removed(store: CredentialStore) -> None:
    old = store.ensure_router().read_text()
    new = store.rotate(ROUTER).read_text()
    known = CredentialFile(store.path)
    assert known.sender(old) == known.sender(new)
    with pytest.raises(ConfigError, match="rotate"):
        store.revoke(ROUTER)
    store.revoke(ROUTER, old_only=True)
    assert (known.sender(old), known.sender(new) is None) == (None, False)
    with pytest.raises(ConfigError, match="no credential 'nobody'"):
        store.revoke("nobody")


def test_two_pods_change_the_same_credentials_and_each_has_the_tokens_that_it_issued(tmp_path: Path) -> None:
    """The credentials are in a database that both share; the files with tokens are on the disk of a pod."""
    shared = StoredDocuments(SqliteStore(LAYOUT, tmp_path / "shared.db"), "receiver")
    one, two = (
        CredentialStore(tmp_path / pod / "credentials.json", lambda: datetime(2026, 11, 1, tzinfo=UTC), shared) for pod in ("one", "two")
    )
    for pod in (one, two):
        pod.adopt_router("token of the Secret", b"keys")
        pod.adopt_router("token of the Secret", b"keys")
    first, second = one.add("shop", [Role.TRACES]).read_text(), two.rotate("shop").read_text()
    assert not (tmp_path / "one" / "credentials.json").exists()
    assert one.read() == two.read()
    assert [one.read().sender(token) for token in (first, second)] == [two.read().named("shop").sender] * 2  # type: ignore[union-attr]
    assert len(one.read().named(ROUTER).tokens) == 1  # type: ignore[union-attr]
    one.revoke("shop", old_only=True)
    assert (two.read().sender(first), two.read().sender(second) is None) == (None, False)
    two.revoke("shop")
    assert one.content() == two.content()
    with pytest.raises(ConfigError, match="no credential 'shop'"):
        one.rotate("shop")
