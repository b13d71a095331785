"""Credentials of a line's receiver: named tokens with roles, in a document that contains only their SHA-256 digests.

A token has 256 random bits, so that its plain digest cannot be searched. The token itself is in a file of its own until the operator
has passed it on; the router reads its token from such a file.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime

from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.documents import Documents, FolderDocuments
from ratchet.runtime.secrets.files import create_secret, locked, replace_secret
from ratchet.runtime.secrets.keyring import add_key, drop_old_keys, ensure_keyring
from ratchet.runtime.secrets.span_signature import SPAN_KEYS
from ratchet.runtime.watched_file import WatchedFile

ROUTER = "router"
"""Name of the router's credential, which the service creates."""
TOKENS = "tokens"
"""Name of the folder with the token files, beside the credentials file."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")

log = logging.getLogger("ratchet.receiver")


class Token(Frozen):
    """One token of a credential. Several are valid together while a token is replaced."""

    sha256: Digest
    """Digest of the token's text."""
    created: AwareDatetime


class Credential(Frozen):
    """A named credential with its roles."""

    sender: Sender
    tokens: tuple[Token, ...]
    """The valid tokens, oldest first."""


class Credentials(Frozen):
    """All credentials of a line. A revoked credential is absent."""

    credentials: tuple[Credential, ...] = ()

    def named(self, name: str) -> Credential | None:
        """Return the credential with this name, or None."""
        return next((one for one in self.credentials if one.sender.name == name), None)

    def sender(self, token: str) -> Sender | None:
        """Return the sender to which the token belongs, or None. The time does not depend on the token."""
        given, found = _digest(token), None
        for one in self.credentials:
            for known in one.tokens:
                if hmac.compare_digest(known.sha256, given):
                    found = one.sender
        return found


def _digest(token: str) -> Digest:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class CredentialFile:
    """The credentials file as the receiver uses it. It is read again when it changes, so that no restart is necessary."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, Credentials)

    def sender(self, token: str) -> Sender | None:
        """Return the sender to which the token belongs, or None.

        Without the file, no token is valid. If it is damaged, the last valid content stays in force.
        """
        return (self._file.current() or Credentials()).sender(token)


class CredentialStore:
    """Changes the credentials of a line. Each change is one atomic write, so that a crash leaves either the old or the new state.

    Methods raise Retryable if a file or the database cannot be read or written.
    """

    def __init__(self, path: Path, now: Callable[[], datetime], documents: Documents | None = None) -> None:
        """`path` is the credentials file; the folder `tokens` beside it has the tokens. With `documents`, a document takes its place."""
        self.path = path
        self._now = now
        self._documents = documents or FolderDocuments(path.parent)

    def content(self) -> bytes | None:
        """Return the document with the credentials, which contains no token; None if there are none yet."""
        return self._documents.read(self.path.name)

    def read(self) -> Credentials:
        """Return all credentials. Raises ConfigError if the document is damaged."""
        return self._parsed(self.content())

    def _parsed(self, content: bytes | None) -> Credentials:
        try:
            return Credentials() if content is None else parse(Credentials, content)
        except ValueError as error:
            raise ConfigError(f"{self.path} is damaged; restore it from a backup, or delete it and issue all tokens again") from error

    def _change(self, changed: Callable[[Credentials], Credentials]) -> None:
        """Replace the credentials by `changed` of them, in one step for all processes."""

        def replaced(content: bytes | None) -> bytes | None:
            known = self._parsed(content)
            new = changed(known)
            return content if new == known else stamped(new)

        self._documents.change(self.path.name, replaced)

    def token_file(self, name: str) -> Path:
        """Return the file with the newest token of the credential `name`."""
        return self.path.with_name(TOKENS) / name

    def ensure_router(self) -> Path:
        """Create the router's credential and signing key unless they exist, and return the router's token file.

        A lost token file is replaced by one with a new token.
        """
        file = self.token_file(ROUTER)
        ensure_keyring(file.with_name(SPAN_KEYS), self._now())
        if file.exists() and self.content() is not None:
            return file
        with locked(file):
            # The token file comes first: a crash before the credentials are written leaves a token that the next call registers.
            create_secret(file, secrets.token_urlsafe(32).encode())
            self._change(lambda known: self._with_router(known, _text(file) or ""))
        return file

    def adopt_router(self, token: str, span_keys: bytes) -> None:
        """Use a token and keys for signatures that the operator keeps elsewhere, for example in a Secret. Earlier tokens stay valid.

        Nothing is written if they are in use already.
        """
        file = self.token_file(ROUTER)
        keys = file.with_name(SPAN_KEYS)
        if not keys.exists() or keys.read_bytes() != span_keys:
            replace_secret(keys, span_keys)
        if _text(file) == token and self.content() is not None:
            return
        with locked(file):
            # The credentials come first: the router must never have a token that is not valid yet.
            self._change(lambda known: self._with_router(known, token))
            replace_secret(file, token.encode())

    def _with_router(self, known: Credentials, token: str) -> Credentials:
        """Return the credentials with the router's, which has this token and its earlier ones."""
        router = known.named(ROUTER)
        tokens = router.tokens if router else ()
        if _digest(token) not in {one.sha256 for one in tokens}:
            tokens = (*tokens, Token(sha256=_digest(token), created=self._now()))
        return _with(known, Credential(sender=Sender(name=ROUTER, roles=(Role.ROUTER,)), tokens=tokens))

    def add(self, name: str, roles: Iterable[Role], trusted: bool = False) -> Path:
        """Create a credential and return the file with its token. Raises ConfigError for an invalid or known name, or the role `router`."""
        sender = Sender(name=name, roles=tuple(dict.fromkeys(roles)), trusted=trusted)
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not a name of a credential; use at most 40 lower-case letters, digits and hyphens")
        if Role.ROUTER in sender.roles:
            raise ConfigError("the service creates the credential of the role router itself; `ratchet token rotate` replaces its token")
        self.ensure_router()

        def added(known: Credentials) -> Credential:
            if known.named(name):
                raise ConfigError(f"there is already a credential {name!r}; choose another name, or rotate its token")
            return Credential(sender=sender, tokens=())

        with locked(self.token_file(name)):
            return self._issue(name, added)

    def rotate(self, name: str) -> Path:
        """Create a new token of a credential and return its file. The older tokens stay valid until they are revoked.

        The router also gets a new key for the signatures of its spans, and the older keys stay valid in the same way. Raises ConfigError if
        there is no such credential.
        """
        with locked(self.token_file(name)):
            file = self._issue(name, lambda known: self._found(known, name))
            if name == ROUTER:
                add_key(file.with_name(SPAN_KEYS), self._now())
            return file

    def revoke(self, name: str, old_only: bool = False) -> None:
        """Remove a credential, or only its tokens before the newest. Raises ConfigError if there is none, or for the whole router."""

        def without(known: Credentials) -> Credentials:
            found = self._found(known, name)
            if old_only:
                return _with(known, found.model_copy(update={"tokens": found.tokens[-1:]}))
            if name == ROUTER:
                raise ConfigError(
                    "the router needs its credential; replace its token with `ratchet token rotate`, then revoke the old ones"
                )
            return Credentials(credentials=tuple(one for one in known.credentials if one.sender.name != name))

        with locked(self.token_file(name)):
            self._change(without)
            if not old_only:
                self.token_file(name).unlink(missing_ok=True)
            elif name == ROUTER:
                drop_old_keys(self.token_file(name).with_name(SPAN_KEYS))

    def _found(self, known: Credentials, name: str) -> Credential:
        found = known.named(name)
        if found is None:
            names = ", ".join(one.sender.name for one in known.credentials) or "none"
            raise ConfigError(f"there is no credential {name!r}; known: {names}")
        return found

    def _issue(self, name: str, credential: Callable[[Credentials], Credential]) -> Path:
        """Add a new token to a credential and write its file.

        The credentials come first: the router, which reads its file at each request, never has a token that is not valid yet.
        """
        token, file = secrets.token_urlsafe(32), self.token_file(name)
        new = Token(sha256=_digest(token), created=self._now())

        def issued(known: Credentials) -> Credentials:
            found = credential(known)
            return _with(known, found.model_copy(update={"tokens": (*found.tokens, new)}))

        self._change(issued)
        replace_secret(file, token.encode())
        return file


def _with(known: Credentials, credential: Credential) -> Credentials:
    """Return the credentials with this one added, or in place of the one with its name."""
    others = tuple(one for one in known.credentials if one.sender.name != credential.sender.name)
    return Credentials(credentials=(*others, credential))


def merged(one: bytes, other: bytes, since: datetime) -> bytes:
    """Return the credentials of two documents that were equal at the time `since`, with the changes of both.

    A token that only one of them has is new if it was created later, and otherwise the other one has revoked it. If a document is damaged,
    the first one is returned.
    """
    try:
        first, second = parse(Credentials, one), parse(Credentials, other)
    except ValueError:
        return one
    found = []
    for name in dict.fromkeys(known.sender.name for known in (*first.credentials, *second.credentials)):
        both = [credential for document in (first, second) if (credential := document.named(name)) is not None]
        tokens = {token.sha256: token for credential in both for token in credential.tokens}
        shared = {key for key in tokens if len(both) == 2 and all(key in {token.sha256 for token in known.tokens} for known in both)}
        left = tuple(token for key, token in tokens.items() if key in shared or token.created > since)
        if left:
            found.append(Credential(sender=both[0].sender, tokens=tuple(sorted(left, key=lambda token: token.created))))
    new = Credentials(credentials=tuple(found))
    return one if new == first else stamped(new)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Retryable(f"cannot read {path}: {error.strerror}; fix its permissions, then try again") from error
