# `make demo` and `make test` do all of their own set-up on a bare machine with Python 3.11, pip and venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DEAL := -n 2 --dist loadscope --no-loadscope-reorder
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
# Threads that wait for each other sleep: tests share two cores (contracts/threads.py).
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test check lint unit rig gsm8k soak lock clean help

help:            ## what there is
	@grep -E '^[a-z0-9]+:.*##' Makefile | sed 's/:.*## */\t/' | expand -t 12

demo: $(VENV)/.train  ## the whole loop on this machine: minutes after the install
	@$(BIN)/ratchet demo

test: $(VENV)/.dev    ## everything that CI runs
	@$(BIN)/python -m tests.cluster.rig build || echo "the tests on a cluster cannot run without it"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(DEAL) tests

check: $(VENV)/.dev lint unit  ## lint, types, import rules, unit and contract tests: run it often

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(DEAL) tests/unit tests/contract tests/architecture -m "not slow"

rig: $(VENV)/.dev     ## build what the test cluster is made of (needs Go; about 20 minutes the first time, then kept)
	@$(BIN)/python -m tests.cluster.rig build

soak: $(VENV)/.dev    ## what is too long for CI: seeded lives by the ten thousand, a gang's fifty interruptions; kept in benchmarks/results
	@$(BIN)/python -m tests.simulation.soak
	@$(BIN)/python -m tests.cluster.soak

gsm8k: $(VENV)/.train  ## one cycle over real answers to GSM8K questions (needs the trace data)
	@RATCHET_SHARED=$${RATCHET_SHARED:-../shared} BIN=$(BIN) sh loops/gsm8k.sh

lock:            ## compile the lock files anew
	@sh requirements/compile.sh

$(VENV)/bin/uv: requirements/uv.lock
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.lock
	@touch $@

$(VENV)/.train: $(VENV)/bin/uv requirements/train.lock pyproject.toml
	@echo "installing what requirements/train.lock pins (some GB, mostly torch)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/train.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/uv requirements/dev.lock pyproject.toml
	@echo "installing what requirements/dev.lock pins (some GB, mostly torch)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/dev.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

clean:           ## remove what was installed and the demo's state; never an installation's RATCHET_HOME
	@rm -rf $(VENV) .ratchet-demo
