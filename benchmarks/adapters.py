"""Memory and seconds of the forms in which an adapter can be served, with the real vLLM on a CPU and with the embedded server.

Forms: the whole model with the adapter merged in, the adapter over its base in a server of its own, and the adapter loaded into the
running server of the base (`serving.adapters = "shared"`).

Memory is the proportional set size of the process tree. Each form starts beside the running server of the base, as a candidate does beside
the champion. The model has random weights, so answers are compared in time only.

`python -m benchmarks.adapters --vllm PYTHON_OF_VLLM [--hidden 384] [--layers 6] [--out benchmarks/results/adapters.json]`
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
import psutil

from ratchet.contracts.model import count_parameters, model_ref
from ratchet.contracts.serving import Endpoint, ModelVersion
from ratchet.local.server import EmbeddedServer, VllmServer
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job.checkpoints import publishable, publishable_adapter

RANK = 16
ANSWERS = 8
TOKENS = 32
WORDS = ("Is the red near the blue?", "no")
_PROGRAM = """#!/bin/sh
shift
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 VLLM_DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=WARNING OMP_NUM_THREADS=1
exec {python} -m vllm.entrypoints.openai.api_server --model "$@"
"""
_ARGUMENTS = ("--enforce-eager", "--dtype", "float32", "--max-num-seqs", "16")


def versions(folder: Path, artifacts: FolderArtifacts, hidden: int, layers: int) -> dict[str, ModelVersion]:
    """Write a model, a random adapter over it and both merged, and return the version of each form."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    pairs, corpus, base, raw = folder / "pairs.jsonl", folder / "corpus.txt", folder / "base", folder / "raw"
    pairs.write_text(json.dumps({"prompt": WORDS[0], "answer": WORDS[1]}) + "\n")
    corpus.write_text("\n".join(WORDS))
    sizes = ("--steps", "1", "--hidden", str(hidden), "--layers", str(layers))
    subprocess.run([sys.executable, "-m", "ratchet.trainers.job.tiny_model", str(pairs), str(corpus), str(base), *sizes], check=True)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    adapted = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False))
    adapted.save_pretrained(raw)
    files = artifacts.put_folder(base)
    adapter = publishable_adapter(raw, folder / "adapter", files)
    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="float32"), raw).merge_and_unload()
    merged.save_pretrained(folder / "weights")
    whole = publishable(base, folder / "weights", folder / "merged")
    refs = {
        "base": model_ref(base, files),
        "merged": model_ref(whole, artifacts.put_folder(whole)),
        "own server": model_ref(adapter, artifacts.put_folder(adapter), files),
    }
    return {
        name: ModelVersion(line="bench", number=number, tag=f"v-{number}", model=ref, cycle=None)
        for number, (name, ref) in enumerate(refs.items())
    }


def ask(endpoint: Endpoint) -> float:
    """Return the seconds per token of one answer of at most TOKENS tokens."""
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": WORDS[0]}], "temperature": 0, "max_tokens": TOKENS}
    begun = time.perf_counter()
    reply = httpx.post(f"{endpoint.url}/v1/chat/completions", json=body | {"ignore_eos": True}, timeout=300, trust_env=False)
    reply.raise_for_status()
    return (time.perf_counter() - begun) / reply.json()["usage"]["completion_tokens"]


def token_ms(endpoint: Endpoint) -> float:
    """Return the median milliseconds per token of ANSWERS answers, one after the other."""
    return round(1000 * statistics.median(ask(endpoint) for _ in range(ANSWERS)), 2)


def tree(folder: Path) -> list[psutil.Process]:
    """Return the process of a server, which its folder names, and its descendants."""
    root = psutil.Process(json.loads((folder / "ready.json").read_bytes())["pid"])
    return [root, *root.children(recursive=True)]


def memory_mb(processes: list[psutil.Process]) -> float:
    """Return the proportional set size of processes in MB."""
    return round(sum(one.memory_full_info().pss for one in processes) / 1e6, 0)


def forms(server: Any, servers: Path, made: dict[str, ModelVersion]) -> dict[str, Any]:
    """Measure the forms that Ratchet serves, each beside the server of the base."""
    found: dict[str, Any] = {}
    for name, version in made.items():
        begun = time.perf_counter()
        endpoint = server.ensure(version)
        ask(endpoint)
        seconds = time.perf_counter() - begun
        found[name] = {
            "first_answer_s": round(seconds, 1),
            "token_ms": token_ms(endpoint),
            "memory_mb": memory_mb(tree(servers / version.tag)),
        }
        click.echo(f"{type(server).__name__} {name}: {found[name]}", err=True)
        if name != "base":
            server.stop(version.tag)
    server.stop(made["base"].tag)
    return found


def shared(server: Any, servers: Path, base: ModelVersion, adapter: ModelVersion) -> dict[str, Any]:
    """Measure an adapter that is loaded into the running server of its base, while both answer, and unloaded again."""
    server.shared = True
    begun = time.perf_counter()
    endpoint = server.ensure(base)
    ask(endpoint)
    found = {"base_first_answer_s": round(time.perf_counter() - begun, 1), "base_token_ms_alone": token_ms(endpoint)}
    before = memory_mb(tree(servers / base.tag))
    begun = time.perf_counter()
    guest = server.ensure(adapter)
    ask(guest)
    found |= {"first_answer_s": round(time.perf_counter() - begun, 2), "token_ms": token_ms(guest), "base_token_ms": token_ms(endpoint)}
    after = memory_mb(tree(servers / base.tag))
    busy = threading.Event()
    caller = threading.Thread(target=lambda: [ask(guest) for _ in iter(busy.is_set, True)])
    caller.start()
    found["base_token_ms_while_adapter_answers"] = token_ms(endpoint)
    busy.set()
    caller.join()
    server.stop(adapter.tag)
    server.stop(base.tag)
    click.echo(f"{type(server).__name__} shared: {found}", err=True)
    return {**found, "base_memory_mb": before, "memory_mb": after, "more_memory_mb": round(after - before, 0)}


@click.command()
@click.option(
    "--vllm", type=click.Path(exists=True, path_type=Path), help="Python of an environment with vLLM. Without it, vLLM is left out."
)
@click.option("--hidden", default=384)
@click.option("--layers", default=6)
@click.option("--out", type=click.Path(path_type=Path))
def main(vllm: Path | None, hidden: int, layers: int, out: Path | None) -> None:
    """Measure all forms and print one JSON object."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        artifacts = FolderArtifacts(folder / "artifacts")
        made = versions(folder, artifacts, hidden, layers)
        own, embedded = folder / "embedded", EmbeddedServer(folder / "embedded", artifacts, "bench", threads=1)
        results: dict[str, Any] = {"embedded": forms(embedded, own / "servers", made)}
        results["embedded"]["shared"] = shared(embedded, own / "servers", made["base"], made["own server"])
        if vllm is not None:
            program = folder / "vllm"
            program.write_text(_PROGRAM.format(python=vllm))
            program.chmod(0o755)
            server = VllmServer(folder / "vllm-serving", artifacts, "bench", executable=str(program), arguments=list(_ARGUMENTS))
            results["vllm"] = forms(server, folder / "vllm-serving" / "servers", made)
            results["vllm"]["shared"] = shared(server, folder / "vllm-serving" / "servers", made["base"], made["own server"])
        told = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "code": code_digest()[:12],
            "cpus": os.cpu_count(),
            "parameters": count_parameters(folder / "base"),
            "rank": RANK,
            "model_bytes": sum(path.stat().st_size for path in (folder / "merged").rglob("*") if path.is_file()),
            "adapter_bytes": sum(path.stat().st_size for path in (folder / "adapter").rglob("*") if path.is_file()),
            "results": results,
        }
    text = json.dumps(told, indent=2)
    click.echo(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
