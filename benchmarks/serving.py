"""Requests per second of the embedded model server, compared with `transformers serve`, plain and with continuous batching.

One tiny model, greedy answers, concurrency 32, all measured in one run. The script also tests whether a server applies the temperature of
each request after greedy requests came first.

`python benchmarks/serving.py [--requests 400]`
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import httpx

from ratchet.flows.demo.world import base_ready, build_world, start_base
from ratchet.runtime.threads import threads_of
from ratchet.trainers.code_digest import code_digest


def free_port() -> int:
    """Return a free TCP port of the loopback interface."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def server(command: list[str], url: str, model: str):
    """Run a server process and yield the seconds from its start to its first answer. Exits if it does not answer within 180 seconds."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **threads_of(2)}
    started = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while ask(url, model, "restart cart in dev", 0.0) is None:
            if process.poll() is not None or time.monotonic() - started > 180:
                raise SystemExit(f"{' '.join(command)} did not start; run the command by hand to see its output")
            time.sleep(0.2)
        yield time.monotonic() - started
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, model: str, prompt: str, temperature: float) -> str | None:
    """Return the server's answer to one chat request, or None if the request fails."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": temperature, "max_tokens": 32}
    try:
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
        return reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else None
    except (httpx.HTTPError, ValueError, LookupError):
        return None


def measure(url: str, model: str, prompts: list[str]) -> dict[str, float]:
    """Measure one server: the request rate, the failed requests, and the distinct answers of 12 requests at temperature 3."""
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda p: ask(url, model, p, 0.0), prompts[:64]))  # warm-up
        started = time.perf_counter()
        answers = list(pool.map(lambda p: ask(url, model, p, 0.0), prompts))
        rate = len(prompts) / (time.perf_counter() - started)
        hot = list(pool.map(lambda _: ask(url, model, prompts[0], 3.0), range(12)))
    return {"requests_per_s": round(rate, 1), "failed": answers.count(None), "distinct_of_12_at_temperature_3": len(set(hot))}


@click.command()
@click.option("--requests", default=400)
def main(requests: int) -> None:
    """Measure all servers and print one JSON object."""
    world = build_world()
    prompts = [r.prompt for r in world.asked][:requests]
    with tempfile.TemporaryDirectory() as folder:
        base = str(base_ready(start_base(world, Path(folder)), Path(folder)))
        cases = {
            "ratchet": ([sys.executable, "-m", "ratchet.local.serve", base, "--name", "m", "--threads", "2"], "m"),
            "transformers serve": ([str(Path(sys.executable).parent / "transformers"), "serve", base, "--device", "cpu"], base),
        }
        cases["transformers serve --continuous-batching"] = ([*cases["transformers serve"][0], "--continuous-batching"], base)
        results = {}
        for name, (command, model) in cases.items():
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            with server([*command, "--port", str(port)], url, model) as start_s:
                results[name] = {"start_s": round(start_s, 1), **measure(url, model, prompts)}
    ours = results["ratchet"]["requests_per_s"]
    ratios = {name: round(ours / r["requests_per_s"], 2) for name, r in results.items() if name != "ratchet"}
    click.echo(
        json.dumps(
            {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code_digest()[:12], "results": results, "ratchet_over": ratios}, indent=2
        )
    )


if __name__ == "__main__":
    main()
