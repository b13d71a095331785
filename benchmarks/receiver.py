"""How many spans a second the receiver takes. A request is on the disk (file and folder with fsync) before it is answered with 200.

The receiver is the process of an installation, on loopback. The clients are one process with a thread and a connection each. Requests are
protobuf, with spans of 1 KB of text. The spool is emptied between the measurements, and what lies in it is counted: every acknowledged
request must be there.

`python benchmarks/receiver.py [--seconds 5]`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import click
import psutil
from ingest_corpus import Corpus, protobuf

from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.schema import stamped
from ratchet.materializer.receive.credentials import CredentialStore
from ratchet.materializer.receive.settings import ReceiverLine
from ratchet.materializer.receive.spool import spooled
from ratchet.runtime.json_files import read_json
from ratchet.runtime.serving.settings import ANSWERS, LINES

HERE = Path(__file__).resolve().parent
_LINE = "bench"


class Receiver:
    """A receiver process with one line."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        store = CredentialStore(folder / "credentials" / "credentials.json", lambda: datetime.now(UTC))
        self.token = store.add("sender", (Role.TRACES,)).read_text(encoding="utf-8").strip()
        settings = folder / "process"
        (settings / LINES).mkdir(parents=True)
        line = ReceiverLine(spool=os.path.relpath(self.spool, settings / LINES), credentials=os.path.relpath(store.path, settings / LINES))
        (settings / LINES / f"{_LINE}.json").write_bytes(stamped(line))
        command = [sys.executable, "-m", "ratchet.materializer.receive.receiver", "--folder", str(settings)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        answer, until = settings / ANSWERS / f"{_LINE}.json", time.monotonic() + 60
        while (found := read_json(answer)) is None or "port" not in found:
            if time.monotonic() > until or self.process.poll() is not None:
                raise click.ClickException("the receiver does not start")
            time.sleep(0.05)
        self.port = int(found["port"])

    def cpu(self) -> float:
        """Return the CPU seconds of the process."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(20)


def send(receiver: Receiver, body: bytes, until: float, answered: list[float]) -> None:
    """Send a request again and again over one connection, and note the seconds of each answer."""
    connection = HTTPConnection("127.0.0.1", receiver.port, timeout=30)
    headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {receiver.token}"}
    while time.monotonic() < until:
        begun = time.perf_counter()
        connection.request("POST", "/v1/traces", body, headers)
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise click.ClickException(f"the receiver answered {response.status}")
        answered.append(time.perf_counter() - begun)
    connection.close()


def measured(receiver: Receiver, spans: int, clients: int, seconds: float) -> dict[str, Any]:
    """Measure one size of requests with a number of clients."""
    for file in spooled(receiver.spool):
        file.unlink()
    body = protobuf(next(Corpus(spans).requests(spans)))
    answered, cpu, begun = list[float](), receiver.cpu(), time.monotonic()
    threads = [threading.Thread(target=send, args=(receiver, body, begun + seconds, answered)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken, files = time.monotonic() - begun, len(spooled(receiver.spool))
    if files != len(answered):
        raise click.ClickException(f"{len(answered)} requests were acknowledged, and {files} are in the spool")
    ordered = sorted(answered)
    return {
        "spans_a_request": spans,
        "clients": clients,
        "bytes_a_request": len(body),
        "requests": len(answered),
        "spans_per_second": round(len(answered) * spans / taken),
        "median_ms": round(ordered[len(ordered) // 2] * 1000, 1),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 1),
        "cpu_us_per_span": round((receiver.cpu() - cpu) / (len(answered) * spans) * 1e6, 1),
    }


def fsync_ms(folder: Path) -> float:
    """Return the median milliseconds of a write of 4 KB with fsync in a folder."""
    taken = []
    for number in range(50):
        begun = time.perf_counter()
        with (folder / f"probe{number}").open("wb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        taken.append(time.perf_counter() - begun)
    return round(sorted(taken)[25] * 1000, 2)


@click.command()
@click.option("--seconds", default=5.0, help="Seconds of each measurement.")
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results" / "receiver.json")
def main(seconds: float, out: Path) -> None:
    """Measure the receiver, and write the result."""
    room = HERE.parent / "materializer" / "receive"
    code = digest([[path.relative_to(room).as_posix(), digest_file(path)] for path in sorted(room.rglob("*.py"))])[:12]
    result: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        result |= {"load_before": round(os.getloadavg()[0], 1), "fsync_ms": fsync_ms(Path(folder))}
        receiver = Receiver(Path(folder))
        try:
            result["measured"] = [measured(receiver, spans, clients, seconds) for spans in (1, 512) for clients in (1, 8)]
        finally:
            receiver.close()
    click.echo(json.dumps(result, indent=2))
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
