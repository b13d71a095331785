"""What the flow of a cycle needs from the process that runs it: the installation, the loop files, and a way to be woken or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.contracts.errors import ConfigError
from ratchet.flows.composition.installation import Installation


@dataclass
class Host:
    """The process that runs cycle flows."""

    installation: Installation
    loops: Mapping[str, Path]
    """Line -> path of its loop file."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the process stops. A flow then leaves its run for the next process."""
    carried: dict[str, str] = field(default_factory=dict)
    """Stream of a cycle -> id of the flow run that carries it in this process."""
    _wakers: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = field(default_factory=dict)

    def loop_of(self, line: str) -> Path:
        """Return the path of a line's loop file. Raises ConfigError if this process does not serve the line."""
        if line not in self.loops:
            raise ConfigError(f"line {line!r} is not served here; served are: {', '.join(sorted(self.loops)) or 'none'}")
        return self.loops[line]

    async def wait(self, cycle: str, seconds: float) -> None:
        """Wait until the cycle is woken, or for `seconds`."""
        loop, event = self._wakers.setdefault(cycle, (asyncio.get_running_loop(), asyncio.Event()))
        if loop is not asyncio.get_running_loop():  # the loop of an earlier run of the flow has ended
            event = asyncio.Event()
            self._wakers[cycle] = (asyncio.get_running_loop(), event)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)
        event.clear()

    def forget(self, cycle: str) -> None:
        """Drop what belongs to a cycle whose run has left this process."""
        self.carried.pop(cycle, None)
        self._wakers.pop(cycle, None)

    def wake(self, cycle: str) -> None:
        """Let the flow of a cycle look at once. May be called from any thread."""
        if (waker := self._wakers.get(cycle)) is not None:
            loop, event = waker
            with contextlib.suppress(RuntimeError):  # the loop has closed, because the run has left
                loop.call_soon_threadsafe(event.set)


_host: Host | None = None


def set_host(host: Host | None) -> None:
    """Set the host of this process. `ratchet serve` does it before any flow runs."""
    global _host
    _host = host


def the_host() -> Host:
    """Return the host of this process. Raises ConfigError if it has none."""
    if _host is None:
        raise ConfigError("this process serves no line; the flow runs inside `ratchet serve LOOP.toml`")
    return _host
