"""A database of the Prefect server with all tables.

Prefect applies its ninety migrations to an empty SQLite database, which costs ten seconds of CPU. A home folder of a test starts with a
copy of a database that was migrated once. The demo and the commands start from nothing, as a new user's do.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from ratchet.flows.config.home import Home

_MIGRATE = """
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""


def place(home: Home) -> None:
    """Put a migrated database into a home folder that has none."""
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.prefect.mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(_migrated(), home.prefect / "prefect.db")


def _migrated() -> Path:
    folder = Path(tempfile.gettempdir()) / f"ratchet-tests-prefect-{version('prefect')}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / "prefect.db"
    with (folder / "lock").open("w") as lock:  # the workers of a test run need it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            begun = folder / "begun.db"
            begun.unlink(missing_ok=True)
            settings = {"PREFECT_HOME": str(folder), "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{begun}"}
            subprocess.run([sys.executable, "-c", _MIGRATE], env={**os.environ, **settings}, check=True, timeout=300)
            begun.rename(made)
    return made
