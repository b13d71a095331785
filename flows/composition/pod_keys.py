"""The Secret with the keys of an installation in pods: made once, extended by a key for each rotation, never replaced."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.secrets.keyring import Key, Keyring
from ratchet.runtime.secrets.span_signature import SPAN_KEYS

SECRET = "ratchet-keys"
"""Name of the Secret, unless the values of the chart give another one."""
USER_KEYS = "user-keys.json"
"""Name of the file with the keys of pseudonyms."""
ANCHOR_KEY = "anchor.key"
"""Name of the file with the key that signs exports of the ledger's heads."""
ROUTER_TOKEN = "router"
"""Name of the file with the router's token, in the folder of a line."""


def entry(line: str, file: str) -> str:
    """Return the key of a line's file in the Secret, in which there are no folders."""
    return f"{line}.{file}"


def keys_secret(lines: Sequence[str], now: datetime, former: Mapping[str, Any] | None = None, rotate: bool = False) -> dict[str, Any]:
    """Return the manifest of the Secret for lines. `former` is the present one, whose keys all stay.

    Lines that `former` does not have get keys. With `rotate`, every file of keys gets a new one, and every line's router a new token.
    Raises ConfigError if `former` is damaged.
    """
    known = _content(former or {})
    data = dict(known)
    data[USER_KEYS] = _ring(known.get(USER_KEYS), now, rotate)
    data.setdefault(ANCHOR_KEY, _anchor_key())
    for line in lines:
        token, ring = entry(line, ROUTER_TOKEN), entry(line, SPAN_KEYS)
        if rotate or token not in data:
            data[token] = secrets.token_urlsafe(32).encode()
        data[ring] = _ring(known.get(ring), now, rotate)
    metadata = {"name": str((former or {}).get("metadata", {}).get("name") or SECRET)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in sorted(data.items())},
    }


def _content(secret: Mapping[str, Any]) -> dict[str, bytes]:
    try:
        return {str(name): base64.b64decode(text, validate=True) for name, text in (secret.get("data") or {}).items()}
    except (binascii.Error, ValueError, TypeError, AttributeError) as error:
        raise ConfigError("the file is not a Secret as `kubectl get secret NAME -o yaml` prints it") from error


def _ring(content: bytes | None, now: datetime, rotate: bool) -> bytes:
    if content is None:
        return stamped(Keyring(keys=(_key(1, now),)))
    try:
        known = parse(Keyring, content)
    except ValueError as error:
        raise ConfigError("a file of keys in the Secret is damaged; restore the Secret from a backup") from error
    return stamped(Keyring(keys=(*known.keys, _key(known.keys[-1].id + 1, now)))) if rotate else content


def _key(number: int, now: datetime) -> Key:
    return Key(id=number, secret=secrets.token_hex(32), created=now)


def _anchor_key() -> bytes:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
