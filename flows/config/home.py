"""The folder layout of an installation. All state is in one folder, RATCHET_HOME (default ./.ratchet)."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from ratchet.contracts.errors import ConfigError
from ratchet.flows.config import variables
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.lake.places.place import CATALOG, LakePlace
from ratchet.materializer.lake.places.rest import is_rest, rest_properties
from ratchet.runtime.secrets.files import create_secret
from ratchet.runtime.secrets.span_signature import SPAN_KEYS
from ratchet.runtime.sql_store import StoreDatabase

_WAREHOUSE = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*"


@dataclass(frozen=True)
class Home:
    """The folders and files of an installation. Methods with a `line` argument return paths of one model line."""

    root: Path

    @classmethod
    def from_environment(cls) -> Home:
        """Return the home folder named by RATCHET_HOME, by default ./.ratchet."""
        return cls(Path(os.environ.get(variables.HOME) or ".ratchet").absolute())

    @property
    def ledger_file(self) -> Path:
        """The ledger, a SQLite database, unless RATCHET_LEDGER_URL names another one."""
        return self.root / "ledger.db"

    @property
    def ledger_url(self) -> str:
        """URL of the ledger: RATCHET_LEDGER_URL, or that of the file in the home folder. A password in the URL is never logged."""
        return os.environ.get(variables.LEDGER_URL) or f"sqlite:///{self.ledger_file}"

    @property
    def has_ledger(self) -> bool:
        """Whether the ledger exists. One that is not a SQLite file counts as existing. Nothing is created."""
        file = self.ledger_url.removeprefix("sqlite:///")
        return file == self.ledger_url or Path(file).exists()

    def database(self, line: str = "") -> StoreDatabase | None:
        """Return the database of the line's stores: that of the ledger, if it is in Postgres. None: they are files here.

        Without a line, it is that of the stores of the installation.
        """
        return PostgresDatabase(self.ledger_url, line) if self.ledger_url.startswith("postgresql") else None

    @property
    def anchors(self) -> str:
        """Folder or `s3://` URL of the signed exports of the ledger's heads: RATCHET_ANCHORS, or a folder in the home folder."""
        given = os.environ.get(variables.ANCHORS)
        return given if given and given.startswith("s3://") else str(Path(given).absolute() if given else self.root / "anchors")

    @property
    def anchor_key(self) -> Path:
        """File with the key that signs these exports: RATCHET_ANCHOR_KEY, or a file in the home folder. Created at first use."""
        given = os.environ.get(variables.ANCHOR_KEY)
        return Path(given).absolute() if given else self.root / "anchor.key"

    @property
    def user_keys(self) -> Path:
        """File with the keys of the pseudonyms of users and sessions. Without it, a pseudonym cannot be assigned to a person again."""
        return self.root / "user-keys.json"

    @property
    def artifacts(self) -> Path:
        """Folder of the content-addressed artifact store."""
        return self.root / "artifacts"

    @property
    def mlflow_url(self) -> str:
        """URL of the model registry: MLFLOW_TRACKING_URI, or a SQLite file in the home folder."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow' / 'mlflow.db'}"

    @property
    def prefect(self) -> Path:
        """Folder of Prefect's state and processes."""
        return self.root / "prefect"

    @property
    def judgements(self) -> Path:
        """File with the records of judges: verdicts by content, tokens, people's grades and beliefs. It contains no text of a user.

        With a ledger in Postgres, they are in its database.
        """
        return self.root / "judgements.db"

    @property
    def erasures(self) -> Path:
        """Folder of the receipts of erasures, which name pseudonyms only.

        With a ledger in Postgres, they are in its database, and the folder has copies.
        """
        return self.root / "erasures"

    @property
    def scratch(self) -> Path:
        """Folder for temporary files. It may be deleted while no Ratchet process runs."""
        return self.root / "scratch"

    @property
    def reports(self) -> Path:
        """Folder of the rendered HTML reports."""
        return self.root / "reports"

    @property
    def logs(self) -> Path:
        """Folder reserved for log files."""
        return self.root / "logs"

    def lake(self, line: str) -> LakePlace:
        """Place of the line's Iceberg lake: its folder, or RATCHET_WAREHOUSE and RATCHET_CATALOG_URL with a folder for locks and caches.

        Raises ConfigError if only one of them is set, if one is invalid, or if the home folder already has a local lake of the line.
        """
        folder = self.root / "lines" / line / "lake"
        warehouse, catalog = os.environ.get(variables.WAREHOUSE) or "", os.environ.get(variables.CATALOG_URL) or ""
        if not warehouse and not catalog:
            return LakePlace(folder, database=self.database(line))
        if not warehouse or not catalog:
            given, missing = (variables.WAREHOUSE, variables.CATALOG_URL) if warehouse else (variables.CATALOG_URL, variables.WAREHOUSE)
            raise ConfigError(f"{given} is set, but {missing} is not; set both, or neither for a lake in {self.root}")
        if not re.fullmatch(_WAREHOUSE, warehouse):
            raise ConfigError(f"{variables.WAREHOUSE}={warehouse!r} is not a URL of the form s3://BUCKET/PREFIX; correct it")
        if not catalog.startswith(("postgresql://", "postgresql+", "https://", "http://")):
            raise ConfigError(
                f"{variables.CATALOG_URL} is neither the SQLAlchemy URL of a Postgres database nor the URL of a REST catalog; use "
                "postgresql+psycopg://USER@HOST/NAME, or https://CLIENT:SECRET@HOST/PATH?warehouse=NAME"
            )
        if is_rest(catalog):
            rest_properties(catalog)  # refuses options that it does not know
        if (folder / CATALOG).exists():
            raise ConfigError(
                f"{folder} has a local lake, whose records would not be read any more; unset {variables.WAREHOUSE} and "
                f"{variables.CATALOG_URL}, or begin with an empty {variables.HOME}"
            )
        return LakePlace(folder, line, catalog, warehouse, self.database(line))

    def spool(self, line: str) -> Path:
        """Folder where the receiver stores batches before ingest."""
        return self.root / "lines" / line / "spool"

    def source(self, line: str, name: str) -> Path:
        """Folder for the state of the line's source NAME, if the source keeps any."""
        return self.root / "lines" / line / "sources" / name

    @property
    def router_process(self) -> Path:
        """Folder of the router process: the settings of the lines that it serves, its replies, its log."""
        return self.root / "router"

    @property
    def receiver_process(self) -> Path:
        """Folder of the receiver process: the settings of the lines that it serves, its replies, its log."""
        return self.root / "receiver"

    def receiver(self, line: str) -> Path:
        """File in which the receiver announces the line's port."""
        return self.root / "receiver" / "answers" / f"{line}.json"

    def receiver_port(self, line: str) -> Path:
        """File with the line's port of the receiver, which stays the same after a restart."""
        return self.root / "lines" / line / "receiver-port"

    def erasing(self, line: str) -> Path:
        """File with the marks of an erasure in the line that is not complete: digests of texts. It is deleted at its end.

        With a ledger in Postgres, they are in its database.
        """
        return self.root / "lines" / line / "erasing.json"

    def collected(self, line: str) -> Path:
        """File with the time of the line's last garbage collection by the service.

        With a ledger in Postgres, it is in its database.
        """
        return self.root / "lines" / line / "collected.json"

    def jobs(self, line: str) -> Path:
        """Folder of the line's training jobs and their run folders.

        With a ledger in Postgres, the records of jobs on a cluster and of their costs are in its database.
        """
        return self.root / "lines" / line / "jobs"

    def serving(self, line: str) -> Path:
        """Folder with the records of the running model servers and of the router."""
        return self.root / "lines" / line / "serving"

    def credentials(self, line: str) -> Path:
        """File with the receiver's credentials: roles, and digests of the tokens. The folder `tokens` beside it has the tokens."""
        return self.root / "lines" / line / "credentials.json"

    def span_keys(self, line: str) -> Path:
        """File with the keys with which the router signs its spans, and ingest verifies them."""
        return self.root / "lines" / line / "tokens" / SPAN_KEYS

    def prefect_login(self) -> Path:
        """Return the file with the login of the installation's own Prefect server, in the form `ratchet:PASSWORD`.

        The file is created at first use and readable only by its owner. Raises Retryable if it cannot be written.
        """
        path = self.prefect / "login"
        create_secret(path, f"ratchet:{secrets.token_urlsafe(32)}".encode())
        return path
