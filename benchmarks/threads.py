"""What waiting threads cost on a busy machine: the embedded server's generation with OpenMP's threads spinning, as is its default, and
asleep (contracts/threads.py). Each is a process of its own that computes with two threads beside a busy loop per core.

`python benchmarks/threads.py [--rows 16] [--tokens 40]`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime

import click

from contracts.threads import threads_of
from trainers.code import code_digest

_THREADS = 2
_BUSY = "while True: pass"
_ARM = """
import sys, time
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
rows, tokens, threads = map(int, sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(threads)
size = dict(hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4, vocab_size=4096)
model = LlamaForCausalLM(LlamaConfig(**size, pad_token_id=0)).eval()
prompts = torch.randint(2, 4096, (rows, 80))
config = GenerationConfig(do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0)
with torch.inference_mode():
    for _ in range(2):  # the first one warms up
        wall, used = time.perf_counter(), time.process_time()
        model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
        wall, used = time.perf_counter() - wall, time.process_time() - used
print(wall, used)
"""


def arm(environment: dict[str, str], rows: int, tokens: int) -> dict[str, float]:
    """Seconds on the clock and of the processor for `rows` answers of `tokens` tokens."""
    command = [sys.executable, "-c", _ARM, str(rows), str(tokens), str(_THREADS)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=600)
    wall, used = map(float, done.stdout.split()[-2:])
    return {"wall_s": round(wall, 2), "cpu_s": round(used, 2)}


@click.command()
@click.option("--rows", default=16)
@click.option("--tokens", default=40)
def main(rows: int, tokens: int) -> None:
    """Prints one JSON object."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for machine, loops in (("idle", 0), ("busy", os.cpu_count() or 1)):
        with ExitStack() as beside:
            for _ in range(loops):
                process = beside.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
                beside.callback(process.kill)
            asleep = threads_of(_THREADS)
            results[machine] = {
                "spinning": arm({**asleep, "OMP_WAIT_POLICY": "ACTIVE"}, rows, tokens),
                "default": arm({**asleep, "OMP_WAIT_POLICY": ""}, rows, tokens),
                "asleep": arm(asleep, rows, tokens),
            }
    ratios = {
        machine: {name: round(arms["default"][name] / arms["asleep"][name], 1) for name in ("wall_s", "cpu_s")}
        for machine, arms in results.items()
    }
    said = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code_digest()[:12], "cores": os.cpu_count()}
    click.echo(json.dumps({**said, "results": results, "default_over_asleep": ratios}, indent=2))


if __name__ == "__main__":
    main()
