"""Builds the small base model for `loops/02-gsm8k/loop.toml` from correct answers to questions that the loop does not read.

Usage: `python -m ratchet.flows.demo.gsm8k DATA OUT`, where DATA is the folder of the GSM8K traces. The loop reads the third of the
questions that is in OTLP format. This script uses the correct answers of the other two thirds, so the base model has seen neither the
holdout nor the golden set.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from ratchet.contracts.errors import ConfigError
from ratchet.runtime.threads import threads_of

_CONTEXT = "512"
_THREADS = 2


def examples(data: Path) -> list[dict[str, str]]:
    """Return one {"prompt", "answer"} per correct answer that is not in OTLP format.

    `data` is the folder of the GSM8K traces. Raises ConfigError if it does not contain `golden.jsonl.gz`.
    """
    source = data / "golden.jsonl.gz"
    if not source.exists():
        raise ConfigError(f"{source} does not exist; DATA must be the folder of the GSM8K traces")
    with gzip.open(source, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    right = [row["record"] for row in rows if row["correct"] and row["format"] != "otlp"]
    return [{"prompt": record["messages"][-1]["content"], "answer": record["response"]} for record in right]


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--steps", default=40, help="Steps of the training.")
def main(data: Path, out: Path, steps: int) -> None:
    """Train the base model from DATA and write it to the folder OUT (about one minute on two cores)."""
    pairs = examples(data)
    with tempfile.TemporaryDirectory() as folder:
        lines, corpus = Path(folder, "pairs.jsonl"), Path(folder, "corpus.txt")
        lines.write_text("\n".join(json.dumps(pair) for pair in pairs), encoding="utf-8")
        corpus.write_text("\n".join(text for pair in pairs for text in pair.values()), encoding="utf-8")
        options = ["--steps", str(steps), "--context", _CONTEXT, "--vocabulary", "4096", "--batch", "16", "--threads", str(_THREADS)]
        command = [sys.executable, "-m", "ratchet.trainers.job.tiny_model", str(lines), str(corpus), str(out), *options]
        subprocess.run(command, env={**os.environ, **threads_of(_THREADS)}, check=True)


if __name__ == "__main__":
    main()
