"""API keys of other servers, by reference: an environment variable or a file, never a value in a loop file."""

from __future__ import annotations

import os
from pathlib import Path

from ratchet.contracts.errors import ConfigError


def api_key(whose: str, variable: str | None, file: str | None) -> str | None:
    """Return the key, read now; None if neither a variable nor a file is named.

    `whose` begins the message. Raises ConfigError if the variable is not set, or the file is not readable or empty.
    """
    if variable is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise ConfigError(f"{whose}: the environment variable {variable} with the API key is not set; set it")
        return _sendable(key, f"{whose}: the environment variable {variable}")
    if file is not None:
        try:
            key = Path(file).read_text().strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise ConfigError(f"{whose}: the key file {file} is not readable: {why}") from None
        if not key:
            raise ConfigError(f"{whose}: the key file {file} is empty")
        return _sendable(key, f"{whose}: the key file {file}")
    return None


def _sendable(key: str, where: str) -> str:
    """Return the key. Raises ConfigError if it cannot be sent in a header."""
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{where} holds characters that no API key has, such as typographic quotes or line breaks; correct it")
    return key
