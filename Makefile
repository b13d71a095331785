# `make demo` and `make test` install everything they need on a machine that has only Python 3.11 to 3.14, pip and venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Go builds the test cluster; `make tools` installs it into .venv where the machine has none.
export PATH := $(PATH):/usr/local/go/bin:$(abspath $(BIN))
HARNESS_LOCKS := harness.lock harness_other.lock harness_frameworks.lock
DEAL := --dist loadscope --no-loadscope-reorder
# The small files of the tests are written to memory, where it has room: a journal of a disk costs them a tenth to a fifth of their time.
ROOM := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')
in_memory = $(shell [ $(or $(ROOM),0) -gt $(1) ] && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
# Waiting OpenMP threads sleep instead of spinning, because the tests share two cores (runtime/threads.py).
export OMP_WAIT_POLICY := PASSIVE
# Container images often set this variable. Each process would then compile all its packages again: 20 s of CPU for a training job. The
# pods of the test cluster cannot write a cache, so .dev compiles all packages once. `make COMPILE= unit` leaves that out.
unexport PYTHONDONTWRITEBYTECODE
COMPILE := --compile-bytecode

.PHONY: demo cluster-demo rest-catalog install test tools wheel release bare check lint unit reference docs screenshots rig gsm8k vllm lmeval nemo soak harness lock clean help

help:            ## list the targets
	@grep -E '^[a-z0-9]+:.*##' Makefile | sed 's/:.*## */\t/' | expand -t 12

demo: $(VENV)/.train  ## run the whole loop on this machine (a few minutes after the install)
	@$(BIN)/ratchet demo

install: $(VENV)/.train  ## install everything into .venv; then `. .venv/bin/activate` puts ratchet on the PATH

test: $(VENV)/.dev    ## run all tests, as CI does
	@$(BIN)/python -m tests.cluster.rig build || echo "building the test cluster failed: the cluster tests cannot run; see the output above"
	@OMP_NUM_THREADS=1 $(call in_memory,8000000) $(BIN)/python -m pytest -n 4 $(DEAL) tests

tools: $(VENV)/bin/uv  ## install the programs without which some tests skip: Debian packages (as root) and Go
	@sh tests/tools.sh

wheel: $(VENV)/bin/uv  ## build the wheel, install it with uv and with pipx, and run its first commands (downloads gigabytes)
	@sh tests/wheel.sh

release: $(VENV)/.release  ## build wheel and sdist reproducibly into dist, check and install them, and write checksums and SBOM (as root also in a bare Debian)
	@$(VENV)/release/bin/python release/build.py dist
	@if [ "$$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then DIST=dist sh tests/bare.sh sh release/install.sh /src/dist; \
	else sh release/install.sh dist; echo "installed in this system only: a bare Debian needs root and debootstrap"; fi

bare:            ## install the wheel and run all tests in a bare Debian 12 and a bare Debian 13, as a newcomer would (as root; needs debootstrap)
	@SUITE=bookworm sh tests/bare.sh make wheel test
	@SUITE=trixie sh tests/bare.sh make wheel test

check: $(VENV)/.dev lint unit  ## run the fast checks: lint, types, import rules, unit and contract tests

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(call in_memory,4000000) $(BIN)/python -m pytest -n 2 $(DEAL) tests/unit tests/contract tests/architecture -m "not slow and not soak"

reference: $(VENV)/.dev  ## write docs/reference from the code
	@$(BIN)/python docs/reference.py

docs: $(VENV)/.docs   ## build the documentation site in build/site; a broken link or a page outside the navigation fails
	@$(BIN)/python -m properdocs build

screenshots: $(VENV)/.dev  ## take the pictures in docs/images from the report of the last `make demo` (needs Chromium)
	@$(BIN)/python docs/screenshots.py

rig: $(VENV)/.dev     ## build the programs of the test cluster (needs Go; about 20 minutes the first time, then cached)
	@$(BIN)/python -m tests.cluster.rig build

cluster-demo: $(VENV)/.dev  ## run the whole loop on a test cluster, installed by Helm (as root, with the tools of `make tools`; about ten minutes)
	@$(BIN)/python -m tests.cluster.rig build
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -s -q -k a_cycle_from_traces tests/cluster/test_whole.py

soak: $(VENV)/.dev    ## run the tests that are too long for CI: longer variants, property tests with new examples, tens of thousands of simulated runs, fifty gang interruptions, all closed loops (results in benchmarks/results)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak tests
	@RATCHET_EXPLORE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(DEAL) tests/unit tests/contract -m "not soak"
	@$(BIN)/python -m tests.simulation.soak
	@$(BIN)/python -m tests.cluster.soak
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.loops --all
	@$(MAKE) harness

harness: $(VENV)/.dev $(VENV)-harness/.installed  ## compare what the dialects read of real, pinned libraries with the log of a model server (result in benchmarks/results/dialects.jsonl; NEWEST=1: with the newest releases instead)
	@$(BIN)/python -m tests.harness.newest build/harness-newest
	@if [ -n "$(NEWEST)" ]; then \
	  $(BIN)/python -m tests.harness.environments --newest "$(abspath $(VENV)-harness)-newest" $(addprefix build/harness-newest/,$(HARNESS_LOCKS)) && \
	  cp build/harness-newest/releases.json "$(abspath $(VENV)-harness)-newest/" && \
	  HARNESS_ENVIRONMENTS="$(abspath $(VENV)-harness)-newest" $(BIN)/python -m tests.harness --save; \
	else $(BIN)/python -m tests.harness --save; fi

vllm: $(VENV)/.dev $(VENV)-vllm/.installed  ## run the tests with a real vLLM on the CPU (an environment of its own, 6 GB; the two servers need 5 GB of memory)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m "not soak" tests/contract/test_vllm.py tests/e2e/test_vllm.py tests/e2e/test_adapters.py tests/e2e/test_shared_process.py

lmeval: $(VENV)/.dev $(VENV)-lmeval/.installed  ## run the tests with a real lm-evaluation-harness (an environment of its own, 700 MB)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/contract/test_lm_eval.py tests/e2e/test_lm_eval.py

nemo: $(VENV)/.dev $(VENV)-nemo/.installed  ## run jobs on a real NeMo RL release on the CPU (RATCHET_NEMO_RL=its source folder; an environment of its own, 5 GB; more than an hour)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m soak tests/nemo $(if $(CASES),-k "$(CASES)"); found=$$?; $(BIN)/python -m tests.nemo.results; exit $$found

rest-catalog: $(VENV)/.dev  ## run the tests of a lake behind the REST protocol with the server that Apache Iceberg publishes (needs Java and Maven)
	@mvn -q -B -f tests/rest_catalog/pom.xml dependency:copy-dependencies -DoutputDirectory="$(abspath .rest-catalog)"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -k "rest" tests/unit/materializer/lake/places/test_shared.py tests/crash/test_shared_ingest_kill.py

gsm8k: $(VENV)/.train  ## run one cycle over real answers to GSM8K questions (needs the trace data)
	@RATCHET_SHARED=$${RATCHET_SHARED:-../shared} BIN=$(BIN) sh loops/02-gsm8k/run.sh

lock:            ## compile the lock files again
	@sh requirements/compile.sh

$(VENV)/bin/uv: requirements/uv.lock
	@echo "creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 to 3.14 is required, this is " + sys.version.split()[0] + "; set PYTHON to another interpreter" if not (3, 11) <= sys.version_info < (3, 15) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.lock
	@touch $@

$(VENV)/.train: $(VENV)/bin/uv requirements/train.lock pyproject.toml
	@echo "installing the packages of requirements/train.lock (several GB, mostly torch)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/train.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/uv requirements/dev.lock pyproject.toml
	@echo "installing the packages of requirements/dev.lock (several GB, mostly torch)"
	@$(BIN)/uv pip install -q $(COMPILE) --python $(BIN)/python --require-hashes -r requirements/dev.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

$(VENV)/.release: $(VENV)/bin/uv requirements/release.lock
	@$(BIN)/uv venv -q --clear --python $(PYTHON) $(VENV)/release
	@$(BIN)/uv pip install -q --python $(VENV)/release/bin/python --require-hashes -r requirements/release.lock
	@touch $@

$(VENV)/.docs: $(VENV)/bin/uv requirements/docs.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/docs.lock
	@touch $@

# An environment that cannot be installed is left out: the harness names its libraries and the reason.
$(VENV)-harness/.installed: $(VENV)/bin/uv $(addprefix requirements/,$(HARNESS_LOCKS)) tests/harness/programs/node/package-lock.json
	@$(BIN)/python -m tests.harness.environments "$(abspath $(VENV)-harness)" $(addprefix requirements/,$(HARNESS_LOCKS))
	@touch $@

$(VENV)-nemo/.installed: $(VENV)/bin/uv requirements/nemo_cpu.lock
	@echo "installing the packages of requirements/nemo_cpu.lock (several GB, mostly torch)"
	@$(BIN)/uv venv -q --clear --python $(PYTHON) $(VENV)-nemo
	@$(BIN)/uv pip install -q --python $(VENV)-nemo/bin/python --require-hashes -r requirements/nemo_cpu.lock
	@$(BIN)/uv pip install -q --python $(VENV)-nemo/bin/python --no-deps -e .
	@touch $@

$(VENV)-vllm/.installed: $(VENV)/bin/uv requirements/vllm.lock
	@echo "installing the packages of requirements/vllm.lock (several GB)"
	@$(BIN)/uv venv -q --clear --python $(PYTHON) $(VENV)-vllm
	@$(BIN)/uv pip install -q --python $(VENV)-vllm/bin/python --no-deps --require-hashes -r requirements/vllm.lock
	@touch $@

$(VENV)-lmeval/.installed: $(VENV)/bin/uv requirements/lm_eval.lock
	@echo "installing the packages of requirements/lm_eval.lock (700 MB)"
	@$(BIN)/uv venv -q --clear --python $(PYTHON) $(VENV)-lmeval
	@$(BIN)/uv pip install -q --python $(VENV)-lmeval/bin/python --require-hashes -r requirements/lm_eval.lock
	@touch $@

clean:           ## remove the virtual environment and the demo's state; any other RATCHET_HOME stays
	@rm -rf $(VENV) .rest-catalog $(VENV)-vllm $(VENV)-lmeval $(VENV)-nemo $(VENV)-harness $(VENV)-harness-newest .ratchet-demo
