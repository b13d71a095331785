"""A private REST catalog: the server that Apache Iceberg publishes for tests of clients, which a test can kill and start again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.command import ROOT
from tests.needs import Need, lacks
from tests.s3 import KEYS, S3
from tests.waiting import until


class RestCatalogServer:
    """A server on loopback, with its tables in an SQLite file, and files of tables in a bucket. It keeps its data over a kill."""

    def __init__(self, jars: Path, folder: Path, s3: S3) -> None:
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._jars = jars
        self._log = folder / "rest.log"
        self._environment = {
            "PATH": os.environ["PATH"],
            "AWS_REGION": "us-east-1",
            **KEYS,
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_URI": f"jdbc:sqlite:{folder / 'catalog.sqlite'}",
            "CATALOG_WAREHOUSE": f"s3://{s3.bucket}/of-the-server",
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": s3.settings.endpoint or "",
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The value of RATCHET_CATALOG_URL for this server."""
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        command = ["java", "-cp", f"{self._jars}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment, start_new_session=True)
        until(self._answers, 60, pause=0.1, why=lambda: self._log.read_text()[-2000:])

    def kill(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.url}v1/config", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


@contextmanager
def rest_catalog_server(folder: Path, s3: S3) -> Iterator[RestCatalogServer]:
    """Yield a running server whose files are in `folder` and in the bucket of `s3`. Skips the test without `make rest-catalog`."""
    jars = ROOT / ".rest-catalog"
    if not jars.is_dir() or shutil.which("java") is None:
        lacks(Need.REST_CATALOG)
    server = RestCatalogServer(jars, folder, s3)
    server.start()
    try:
        yield server
    finally:
        server.kill()
