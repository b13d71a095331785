"""Functions that the tests of the port `Compute` map. Workers import this module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import ConfigError


def square(number: int) -> int:
    return number * number


def slow_square(number: int) -> int:
    """Take longest for the first items, so that later ones are complete before."""
    time.sleep(max(0.0, 0.2 - number / 20))
    return number * number


def upper(data: bytes) -> bytes:
    return data.upper()


def refuse(number: int) -> int:
    if number == 3:
        raise ConfigError("this one is wrong")
    return number


def break_down(number: int) -> int:
    if number == 3:
        raise ValueError("a text of a user")
    return number


def die_once(content: tuple[str, int]) -> int:
    """Kill the own process at the first call for number 3."""
    folder, number = content
    mark = Path(folder) / str(number)
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def sleep_but_first(content: tuple[str, int]) -> Any:
    """Return at once for the number 0. Otherwise write the own process id into a folder, then sleep for a minute."""
    folder, number = content
    if number:
        (Path(folder) / str(os.getpid())).touch()
        time.sleep(60)
    return number
