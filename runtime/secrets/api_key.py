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
        key = os.environ.get(variable)
        if not key:
            raise ConfigError(f"{whose}: the environment variable {variable} with the API key is not set; set it")
        return key
    if file is not None:
        try:
            key = Path(file).read_text().strip()
        except OSError as error:
            raise ConfigError(f"{whose}: the key file {file} is not readable: {error.strerror}") from error
        if not key:
            raise ConfigError(f"{whose}: the key file {file} is empty")
        return key
    return None
