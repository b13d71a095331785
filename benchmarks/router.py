"""What the router costs beside the model server alone: CPU microseconds, added latency, and memory.

A stub model server answers at once from prepared bytes, so that the router is what takes time. A load generator of raw connections, in this
process, sends the requests. The router is the process of the product, with traces that it spools; no receiver takes them. Its CPU time is
read from the process, so other work on the machine changes it little.

- whole: answers of 400 characters, at `--concurrency` requests at a time
- streamed: answers of `--chunks` chunks, at so many at a time
- processes: whole answers through one router process and through two, the same requests in all. The load generator and the stub use a
  process of their own on the same machine, so the throughput in the figures depends on its cores; their CPU time is stated
- memory: resident memory of the router before and after `--streams` streams

`python benchmarks/router.py [--requests 4000] [--chunks 100] [--streams 10000] [--processes 2]`
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import psutil

from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.serving import Backend, Route
from ratchet.local.router import LocalRouter

HERE = Path(__file__).resolve().parent
_TEXT = "The quick brown fox jumps over the lazy dog. " * 9
_REQUEST = {"model": "m", "messages": [{"role": "user", "content": _TEXT}], "temperature": 0.7}


def whole_answer() -> bytes:
    """Return the HTTP response of a whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": _TEXT[:400]}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 90, "completion_tokens": 90, "total_tokens": 180}
    body = json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "inner", "choices": [choice], "usage": usage}
    )
    return f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


def streamed_answer(chunks: int) -> list[bytes]:
    """Return the pieces of the HTTP response of a streamed answer: the head, and one HTTP chunk per event."""

    def piece(data: str) -> bytes:
        content = f"data: {data}\n\n".encode()
        return f"{len(content):x}\r\n".encode() + content + b"\r\n"

    def event(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return piece(json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "inner", "choices": [choice]}))

    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    usage = {"prompt_tokens": 90, "completion_tokens": chunks, "total_tokens": 90 + chunks}
    end = piece(json.dumps({"id": "c", "model": "inner", "choices": [], "usage": usage}))
    return [head, *(event({"content": " word"}) for _ in range(chunks)), event({}, "stop") + end + piece("[DONE]") + b"0\r\n\r\n"]


class Stub:
    """A model server. It sends the pieces of a streamed answer one by one, each as a packet of its own."""

    def __init__(self, chunks: int) -> None:
        self._whole, self._pieces = whole_answer(), streamed_answer(chunks)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            while True:
                body = await read_request(reader)
                if b'"stream": true' not in body and b'"stream":true' not in body:
                    writer.write(self._whole)
                    continue
                for piece in self._pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read a request and return its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(length)


async def read_answer(reader: asyncio.StreamReader) -> int:
    """Read an answer to its end. Return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" in head:
        await reader.readuntil(b"\r\n0\r\n\r\n")
        return status
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return status


async def load(port: int, requests: int, concurrency: int, stream: bool) -> list[float]:
    """Send requests on `concurrency` connections. Return the seconds of each. Raises ClickException for an answer that is no success."""
    left, taken = [requests], list[float]()

    async def caller(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        while left[0] > 0:
            left[0] -= 1
            body = json.dumps({**_REQUEST, "stream": stream}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-session-id: s{number}-{left[0] % 7}\r\nx-user-id: u{number}\r\n"
            writer.write(f"{head}x-ratchet-consent: true\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            begun = time.perf_counter()
            if (status := await read_answer(reader)) != 200:
                raise click.ClickException(f"the answer has status {status}")
            taken.append(time.perf_counter() - begun)
        writer.close()

    await asyncio.gather(*(caller(number) for number in range(concurrency)))
    return taken


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return median and 99th percentile in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50_ms": round(statistics.median(seconds) * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)}


def cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process."""
    used = process.cpu_times()
    return float(used.user + used.system)


async def arm(process: psutil.Process, stub: int, router: int, requests: int, concurrency: int, stream: bool) -> dict[str, Any]:
    """Measure one kind of requests through the router and at the stub alone."""
    await load(router, requests // 10, concurrency, stream)  # imports, pools and caches
    begun = cpu(process)
    through = await load(router, requests, concurrency, stream)
    used = cpu(process) - begun
    alone = await load(stub, requests, concurrency, stream)
    one = await load(router, requests // 10, 1, stream), await load(stub, requests // 10, 1, stream)
    added = {name: round(spread(one[0])[name] - spread(one[1])[name], 2) for name in ("p50_ms", "p99_ms")}
    return {
        "cpu_us_per_request": round(used / requests * 1e6, 1),
        "busy": {"router": spread(through), "server alone": spread(alone)},
        "added_by_the_router_to_one_request_at_a_time": added,
    }


def started(folder: Path, stub: int) -> tuple[LocalRouter, int]:
    """Start a router process in front of the stub. Return it and its port."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text("secret", encoding="utf-8")
    router = LocalRouter(folder / "serving", folder / "receiver.json", folder / "token", per_caller=1024)
    backend = Backend(tag="v1", url=f"http://127.0.0.1:{stub}", model="v1", weight=100)
    router.set(Route(line="line", served_model="m", backends=(backend,), annotation=""))
    return router, int(router.url().rsplit(":", 1)[1])


async def several(folder: Path, stub: int, requests: int, concurrency: int, count: int) -> dict[str, Any]:
    """Measure `count` router processes that share the requests and the connections evenly."""
    routers = [started(folder / str(number), stub) for number in range(count)]
    try:
        processes = [psutil.Process(_pid(port)) for _, port in routers]
        for _, port in routers:
            await load(port, requests // 10, concurrency, False)
        here = psutil.Process()
        before, own, begun = [cpu(one) for one in processes], cpu(here), time.perf_counter()
        taken = await asyncio.gather(*(load(port, requests // count, concurrency // count, False) for _, port in routers))
        wall = time.perf_counter() - begun
        used, own = [cpu(one) - was for one, was in zip(processes, before, strict=True)], cpu(here) - own
        return {
            "cpu_us_per_request": round(sum(used) / requests * 1e6, 1),
            "requests_per_second": round(requests / wall),
            "router_cores": [round(one / wall, 2) for one in used],
            "generator_and_stub_cores": round(own / wall, 2),
            "busy": spread([one for each in taken for one in each]),
        }
    finally:
        for router, _ in routers:
            router.stop()


async def measured(folder: Path, requests: int, chunks: int, streams: int, concurrency: int, most: int) -> dict[str, Any]:
    """Start stub and router, and measure all sections."""
    stub = await asyncio.start_server(Stub(chunks).handle, "127.0.0.1", 0, limit=1 << 20)
    port = stub.sockets[0].getsockname()[1]
    router, there = started(folder / "one", port)
    try:
        process = psutil.Process(_pid(there))
        found = {"whole": await arm(process, port, there, requests, concurrency, False)}
        found["streamed"] = await arm(process, port, there, max(20, requests // 20), concurrency, True)
        per_chunk = (found["streamed"]["cpu_us_per_request"] - found["whole"]["cpu_us_per_request"]) / chunks
        found["streamed"] |= {"chunks": chunks, "cpu_us_per_chunk": round(per_chunk, 1)}
        if most > 1:
            found["processes"] = {
                str(count): await several(folder / f"of {count}", port, requests, concurrency, count) for count in range(1, most + 1)
            }
        if streams:
            found["memory"] = await memory(process, there, streams, concurrency)
        return found
    finally:
        router.stop()
        stub.close()


async def memory(process: psutil.Process, port: int, streams: int, concurrency: int) -> dict[str, Any]:
    """Return the resident memory after each tenth of the streams, in megabytes."""
    sizes = [process.memory_info().rss >> 20]
    for _ in range(10):
        await load(port, streams // 10, concurrency, True)
        sizes.append(process.memory_info().rss >> 20)
    return {"streams": streams, "rss_mb": sizes}


def _pid(port: int) -> int:
    """Return the process that listens on a port of loopback."""
    found = (one.pid for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr.port == port)
    return next(pid for pid in found if pid is not None)


def code() -> str:
    """Return the digest of the router and of the HTTP code that it uses."""
    root = HERE.parent
    files = [*(root / "router").rglob("*.py"), *(root / "runtime" / "serving").rglob("*.py"), *(root / "runtime").glob("http_*.py")]
    return digest([[path.relative_to(root).as_posix(), digest_file(path)] for path in sorted(files)])[:12]


@click.command()
@click.option("--requests", default=4_000)
@click.option("--chunks", default=100, help="Chunks of a streamed answer.")
@click.option("--streams", default=0, help="Streams of the section memory; 0: leave it out.")
@click.option("--concurrency", default=16)
@click.option("--processes", default=1, help="Most router processes of the section processes; 1: leave it out.")
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results" / "router.json")
@click.option("--arm", "name", default="now", help="Name under which the figures are kept beside others.")
def main(requests: int, chunks: int, streams: int, concurrency: int, processes: int, out: Path, name: str) -> None:
    """Measure, and write the figures into the result."""
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    about = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory(prefix="ratchet-router-") as folder:
        result[name] = about | asyncio.run(measured(Path(folder), requests, chunks, streams, concurrency, processes))
    click.echo(json.dumps(result[name], indent=2))
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
