"""Builds the tiny model that `loops/gsm8k.toml` starts from, out of right answers to questions that the loop never reads.

`python -m flows.demo.gsm8k DATA OUT`: DATA is the folder of the GSM8K traces. The loop reads the OTLP third of the
questions; this takes the right answers of the other two thirds, so that the base has seen neither holdout nor golden set.
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

from contracts.errors import ConfigError
from contracts.threads import threads_of

_STEPS, _CONTEXT = "40", "512"
_THREADS = 2


def examples(data: Path) -> list[dict[str, str]]:
    """{"prompt", "answer"} of right answers outside the OTLP files."""
    source = data / "golden.jsonl.gz"
    if not source.exists():
        raise ConfigError(f"{source} does not exist; name the folder of the GSM8K traces")
    with gzip.open(source, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    right = [row["record"] for row in rows if row["correct"] and row["format"] != "otlp"]
    return [{"prompt": record["messages"][-1]["content"], "answer": record["response"]} for record in right]


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def main(data: Path, out: Path) -> None:
    """Trains the base model into OUT (about a minute on two cores)."""
    pairs = examples(data)
    with tempfile.TemporaryDirectory() as folder:
        lines, corpus = Path(folder, "pairs.jsonl"), Path(folder, "corpus.txt")
        lines.write_text("\n".join(json.dumps(pair) for pair in pairs), encoding="utf-8")
        corpus.write_text("\n".join(text for pair in pairs for text in pair.values()), encoding="utf-8")
        options = ["--steps", _STEPS, "--context", _CONTEXT, "--vocabulary", "4096", "--batch", "16", "--threads", str(_THREADS)]
        command = [sys.executable, "-m", "trainers.inside.tiny", str(lines), str(corpus), str(out), *options]
        subprocess.run(command, env={**os.environ, **threads_of(_THREADS)}, check=True)


if __name__ == "__main__":
    main()
