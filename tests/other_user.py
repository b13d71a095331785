"""Runs a function as another Unix user, for tests of what such a user can do on the same machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

NOBODY = 65534
"""The user and group `nobody` of every Linux distribution."""


def as_other_user(function: Callable[[], Any]) -> Any:
    """Run the function in a child process as `nobody` and return its result, which must be JSON.

    The child is forked, because `nobody` may not be able to start the tests' interpreter from a private folder. If the tests do not run
    as root, the function runs as the same user. An exception of the function is returned as the text of its type.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            try:
                result = function()
            except Exception as error:
                result = type(error).__name__
            os.write(write, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return json.loads(content)
