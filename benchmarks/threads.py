"""The cost of OpenMP's waiting threads on a busy machine.

Measures the embedded server's generation with spinning threads (OpenMP's default) and with sleeping threads (runtime/threads.py). Each
measurement is a separate process that computes with two threads, first alone and then beside one, two and four busy loops.

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

from ratchet.runtime.threads import threads_of
from ratchet.trainers.code_digest import code_digest

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
    taken = []
    for _ in range(6):
        wall, used = time.perf_counter(), time.process_time()
        model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
        taken.append((time.perf_counter() - wall, time.process_time() - used))
print(*sorted(taken[1:])[2])  # the median; the first generation is a warm-up
"""


def arm(policy: str | None, rows: int, tokens: int) -> dict[str, float]:
    """Measure the generation of `rows` answers of `tokens` tokens under one OMP_WAIT_POLICY (None leaves it unset).

    Returns wall-clock seconds (`wall_s`) and processor seconds (`cpu_s`).
    """
    command = [sys.executable, "-c", _ARM, str(rows), str(tokens), str(_THREADS)]
    environment = {**os.environ, **threads_of(_THREADS), "OMP_WAIT_POLICY": policy}
    given = {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True, timeout=600)
    wall, used = map(float, done.stdout.split()[-2:])
    return {"wall_s": round(wall, 2), "cpu_s": round(used, 2)}


@click.command()
@click.option("--rows", default=16)
@click.option("--tokens", default=40)
def main(rows: int, tokens: int) -> None:
    """Measure both thread policies and print one JSON object."""
    results: dict[int, dict[str, dict[str, float]]] = {}
    for loops in (0, 1, 2, 4):
        with ExitStack() as beside:
            for _ in range(loops):
                process = beside.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
                beside.callback(process.kill)
            policies = {"default": None, "asleep": threads_of(_THREADS)["OMP_WAIT_POLICY"]}
            results[loops] = {name: arm(policy, rows, tokens) for name, policy in policies.items()}
    ratios = {
        loops: {name: round(arms["default"][name] / arms["asleep"][name], 1) for name in ("wall_s", "cpu_s")}
        for loops, arms in results.items()
    }
    said = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code_digest()[:12], "cores": os.cpu_count()}
    click.echo(json.dumps({**said, "by_busy_loops": results, "default_over_asleep": ratios}, indent=2))


if __name__ == "__main__":
    main()
