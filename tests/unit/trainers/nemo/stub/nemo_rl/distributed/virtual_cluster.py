"""Stand-in for names of Python environments."""

from __future__ import annotations

import sys


class PY_EXECUTABLES:
    SYSTEM = sys.executable
