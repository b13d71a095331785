"""A private Postgres server, which a test can kill and start again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.needs import Need, lacks
from tests.waiting import until


class PostgresServer:
    """A server on a Unix socket in its own folder. It keeps its data over a kill."""

    def __init__(self, binaries: Path, folder: Path, account: dict[str, Any]) -> None:
        self._binaries = binaries
        self.folder = folder
        self._run: dict[str, Any] = {**account, "cwd": "/", "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(folder)}}
        self._process: subprocess.Popen[bytes] | None = None
        made = [binaries / "initdb", "-D", folder / "data", "-U", "ratchet", "-A", "trust", "-E", "UTF8"]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, **self._run)

    def url(self, database: str = "postgres", driver: str = "psycopg") -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+{driver}://ratchet@/{database}?host={self.folder}"

    def create(self, database: str) -> None:
        """Create a database."""
        engine = sa.create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {database}")
        engine.dispose()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = ["-k", str(self.folder), "-c", "listen_addresses=", "-c", "max_connections=100"]
        with (self.folder / "log").open("ab") as log:
            command = [self._binaries / "postgres", "-D", self.folder / "data", *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **self._run)
        until(self._answers, 60, pause=0.1)

    def stop(self) -> None:
        """Stop the server, which cuts off its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server and its processes, as a crash does. It recovers at its next start."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def _answers(self) -> bool:
        engine = sa.create_engine(self.url())
        try:
            with engine.connect():
                return True
        except sa.exc.OperationalError:
            return False
        finally:
            engine.dispose()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server. Skips the test if Postgres is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    if not found and not on_path:
        lacks(Need.POSTGRES, "the tests on Postgres run with SQLite only")
    binaries = found[-1].parent if found else Path(str(on_path)).resolve().parent
    folder = Path(subprocess.run(["mktemp", "-d", "/tmp/rt-pg-XXXXXX"], capture_output=True, text=True, check=True).stdout.strip())
    account = _unprivileged()
    if account:
        os.chown(folder, account["user"], account["group"])
    server = PostgresServer(binaries, folder, account)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> dict[str, Any]:
    """Return the account options for Postgres, which does not run as root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    account = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
