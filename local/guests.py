"""Adapters of several versions in the process of their base model: loaded, read back, and unloaded through its HTTP API.

The endpoints are those of vLLM: `/v1/load_lora_adapter`, `/v1/unload_lora_adapter` and `/v1/models`. The list of the process is the truth
about the loaded adapters. A record per adapter says where it belongs and when its process has died since it was loaded.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import Digest, canonical
from ratchet.contracts.serving import Outage
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.certificates import certificates
from ratchet.runtime.json_files import read_json
from ratchet.runtime.serving.announcement import ALIVE

HOST = "host.json"
"""In the folder of a process that can hold adapters: its base model, and the highest rank that it loads."""
GUEST = "guest.json"
"""In the folder of a version whose adapter is loaded into another process: the process, and its deaths since then."""
RETIRED = "retired"
"""In the folder of a process whose own version is not wanted any more. It ends when its last adapter is unloaded."""
LIST_SECONDS = 5.0
"""Timeout of a request for the adapters that a process has loaded."""
LOAD_SECONDS = 300.0
"""Timeout of loading an adapter. The process may be busy with answers."""


class Loaded(NamedTuple):
    """An adapter that a process lists."""

    root: Path
    """Folder from which it was loaded."""
    parent: str
    """Model name of the base model in the same process."""


class Guests:
    """The adapters that are loaded into processes of other versions, below a folder with one folder per version."""

    def __init__(self, servers: Path) -> None:
        self._servers = servers

    def note_host(self, tag: str, record: dict[str, Any] | None) -> None:
        """Record that the process of a version, which is about to start, can hold adapters. None: it cannot.

        `record` has the digest of its base model (`base`) and the highest rank that it loads (`rank`, None: any).
        """
        if record is None:
            (self._servers / tag / HOST).unlink(missing_ok=True)
        else:
            write_atomic(self._servers / tag / HOST, canonical(record))

    def hosts(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each version whose process can hold adapters, with its record."""
        for path in sorted(self._servers.glob(f"*/{HOST}")):
            record = read_json(path)
            if record is not None:
                yield path.parent.name, record

    def host_over(self, base: Digest) -> str | None:
        """Return the version whose process has loaded `base` and can hold adapters, or None."""
        return next((tag for tag, record in self.hosts() if record["base"] == base), None)

    def host_of(self, tag: str) -> str | None:
        """Return the version into whose process the adapter `tag` belongs, or None."""
        record = read_json(self._servers / tag / GUEST)
        return str(record["host"]) if record else None

    def of(self, host: str) -> list[str]:
        """Return the tags of the adapters that belong into the process of a version."""
        return sorted(path.parent.name for path in self._servers.glob(f"*/{GUEST}") if self.host_of(path.parent.name) == host)

    def listed(self, url: str) -> dict[str, Loaded]:
        """Return the adapters that a process lists, by name. Raises Retryable if it does not answer."""
        try:
            reply = httpx.get(f"{url}/v1/models", timeout=LIST_SECONDS, trust_env=False, verify=certificates(url))
            reply.raise_for_status()
            rows = reply.json()["data"]
            return {str(row["id"]): Loaded(Path(row["root"]), str(row["parent"])) for row in rows if row.get("parent")}
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise Retryable(f"the model server at {url} does not list its models ({type(error).__name__})") from None

    def load(self, tag: str, adapter: Path, host: str, ready: dict[str, Any], name: str) -> None:
        """Load an adapter into the process of `host` under the name `tag`, and read it back.

        `ready` is the content of the process's ready file, and `name` the model name of its base model. A new process of the host means
        that the former one has died, which is recorded. Raises Permanent if the process refuses the adapter, and Retryable if it does not
        answer or does not list the adapter afterwards.
        """
        url, before = f"http://127.0.0.1:{ready['port']}", self._record(tag)
        if not before:
            before = {"host": host, "pid": ready["pid"], "outages": [], "loaded": _now()}
            self._write(tag, before)  # before the adapter is loaded, so that a crash in between leaves nothing that nobody knows
        wanted = Loaded(adapter, name)
        try:
            found = self._loaded(tag, wanted, url)
        except Permanent:
            self.forget(tag)
            raise
        if found != wanted:
            raise Retryable(f"the model server of {host} has loaded {tag} and lists {found} instead of {wanted}")
        if before["pid"] != ready["pid"]:
            outage = {"since": self._last_alive(host, before), "until": _now()}
            self._write(tag, {**before, "pid": ready["pid"], "outages": [*before["outages"], outage], "loaded": _now()})

    def _loaded(self, tag: str, wanted: Loaded, url: str) -> Loaded | None:
        """Load an adapter unless the process lists it as wanted, and return how the process lists it then."""
        found = self.listed(url)
        if tag in found and found[tag] != wanted:
            self._post(url, "unload_lora_adapter", {"lora_name": tag})
            del found[tag]
        if tag not in found:
            self._post(url, "load_lora_adapter", {"lora_name": tag, "lora_path": str(wanted.root)})
            found = self.listed(url)
        return found.get(tag)

    def unload(self, tag: str, url: str) -> None:
        """Unload an adapter from a process, if it lists it, and read that back. Raises Retryable if it is listed still."""
        if tag not in self.listed(url):
            return
        self._post(url, "unload_lora_adapter", {"lora_name": tag})
        if tag in self.listed(url):
            raise Retryable(f"the model server at {url} still lists {tag} after it was unloaded")

    def forget(self, tag: str) -> None:
        """Delete the record of an adapter that was unloaded."""
        shutil.rmtree(self._servers / tag, ignore_errors=True)

    def outages(self, tag: str, pid: int | None) -> tuple[Outage, ...]:
        """Return the times in which the process of an adapter did not run since it was loaded. `pid` is that of its live process."""
        record = self._record(tag)
        if not record:
            return ()
        found = [Outage.model_validate(one) for one in record["outages"]]
        if record["pid"] != pid:
            found.append(Outage(since=datetime.fromisoformat(self._last_alive(record["host"], record))))
        return tuple(found)

    def retire(self, tag: str, retired: bool) -> None:
        """Record whether the own version of a process is not wanted any more."""
        mark = self._servers / tag / RETIRED
        if retired:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def is_retired(self, tag: str) -> bool:
        """Return whether the own version of a process is not wanted any more."""
        return (self._servers / tag / RETIRED).exists()

    def _record(self, tag: str) -> dict[str, Any]:
        return read_json(self._servers / tag / GUEST) or {}

    def _write(self, tag: str, record: dict[str, Any]) -> None:
        (self._servers / tag).mkdir(parents=True, exist_ok=True)
        write_atomic(self._servers / tag / GUEST, canonical(record))

    def _last_alive(self, host: str, record: dict[str, Any]) -> str:
        """Return the last moment at which the recorded process is known to have run, as ISO text."""
        with contextlib.suppress(OSError):
            seconds = (self._servers / host / f"{ALIVE}.{record['pid']}").stat().st_mtime
            return datetime.fromtimestamp(seconds, UTC).isoformat()
        return str(record["loaded"])

    @staticmethod
    def _post(url: str, path: str, body: dict[str, str]) -> None:
        """Call an endpoint. Raises Permanent if the process refuses, and Retryable if it does not answer or has too much to do."""
        try:
            reply = httpx.post(f"{url}/v1/{path}", json=body, timeout=LOAD_SECONDS, trust_env=False, verify=certificates(url))
        except httpx.HTTPError as error:
            raise Retryable(f"the model server at {url} does not answer /v1/{path} ({type(error).__name__})") from None
        if reply.is_success:
            return
        told = f"the model server at {url} answers /v1/{path} of {body['lora_name']} with status {reply.status_code}: {reply.text[:300]}"
        raise Retryable(told) if reply.status_code in (429, 503) else Permanent(told)  # vLLM answers 500 to files that it cannot read


def _now() -> str:
    return datetime.now(UTC).isoformat()
