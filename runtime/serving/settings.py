"""The files through which a process that serves several lines is told what to serve, and by which it replies.

`lines/LINE.json` in the folder of the process has the settings of a line. `answers/LINE.json` is the reply: the pid of the process,
`settings`, which identifies the settings that it follows (see `stamp_of`), and `port`, or the `error` because of which the line is not
served.
"""

from __future__ import annotations

from ratchet.contracts.model import Frozen

LINES, ANSWERS = "lines", "answers"


class ServedLine(Frozen):
    """Settings of one line. Paths in subclasses are relative to the folder of the settings, so that a home folder can be copied."""

    port: int = 0
    """Port; 0 means the one that the line had before, or any free one."""
    host: str = "127.0.0.1"
    """Address on which the process listens. In a pod, it is that of all interfaces."""
