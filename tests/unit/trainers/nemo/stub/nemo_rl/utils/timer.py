"""Stand-in for the deadline."""

from __future__ import annotations

import time


class TimeoutChecker:
    def __init__(self, timeout: str | None = None, fit_last_save_time: bool = False) -> None:
        parts = [int(part) for part in (timeout or "99:00:00:00").split(":")]
        self.limit = ((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3]
        self.start_time = time.time()
        self.last_saved = False

    def check_save(self) -> bool:
        if self.last_saved or time.time() - self.start_time < self.limit:
            return False
        self.last_saved = True
        return True
