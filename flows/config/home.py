"""Where an installation keeps its state: one folder, RATCHET_HOME (default ./.ratchet). Names its rooms, nothing else."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import Retryable


@dataclass(frozen=True)
class Home:
    """The folders of an installation; `for_line` ones are per model line."""

    root: Path

    @classmethod
    def from_environment(cls) -> Home:
        return cls(Path(os.environ.get("RATCHET_HOME", ".ratchet")).absolute())

    @property
    def ledger_url(self) -> str:
        """RATCHET_LEDGER_URL, or SQLite in the folder. A password in it is never logged."""
        return os.environ.get("RATCHET_LEDGER_URL") or f"sqlite:///{self.root / 'ledger.db'}"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def mlflow_url(self) -> str:
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow' / 'mlflow.db'}"

    @property
    def prefect(self) -> Path:
        return self.root / "prefect"

    @property
    def scratch(self) -> Path:
        """May be deleted while nothing runs."""
        return self.root / "scratch"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def lake(self, line: str) -> Path:
        return self.root / "lines" / line / "lake"

    def spool(self, line: str) -> Path:
        return self.root / "lines" / line / "spool"

    def receiver(self, line: str) -> Path:
        """Where the receiver says on which port it listens."""
        return self.root / "lines" / line / "receiver.json"

    def jobs(self, line: str) -> Path:
        return self.root / "lines" / line / "jobs"

    def serving(self, line: str) -> Path:
        """Records of running servers and of the router."""
        return self.root / "lines" / line / "serving"

    def token(self, line: str) -> Path:
        """The file with the receiver's bearer token, made at first use and readable by its owner only."""
        path = self.root / "lines" / line / "receiver.token"
        if not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(handle, "w") as file:
                    file.write(secrets.token_urlsafe(32))
            except FileExistsError:
                pass
            except OSError as error:
                raise Retryable(f"cannot write {path}: {error.strerror}; set RATCHET_HOME to a folder that is writable") from error
        return path
