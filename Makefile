# Needs Python 3.11 or newer, make and git; everything else it installs into $(VENV). `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
# Installed by pip and first: pip reads this machine's own configuration, which may offer a CPU build. uv then keeps it.
TORCH ?= torch==2.13.0
# Processes that run tests at once, one of them all that need a real Airflow: tests/support/sharing_out.py.
JOBS ?= 4
# The same of tests with servers, which mostly wait for them. Each process has a Slurm and hosts of its own.
SERVER_JOBS ?= 4
# What test-servers starts for itself; the packages' own services are not used.
SERVERS := slurmctld slurmd slurm-client slurmrestd slurm-wlm-basic-plugins slurm-wlm-jwt-plugin munge \
	openssh-server iproute2 openmpi-bin

BIN := $(VENV)/bin
UV := UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode

# Without bytecode each of Airflow's processes takes seconds longer to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.demo ## Pretrain a small model for real, preemption included; UI=1 leaves Airflow up afterwards
	$(BIN)/python -m airflow_llmsched.cli.demo $(if $(filter-out 0,$(UI)),--ui)

.PHONY: test
test: $(VENV)/.dev ## Run the tests; test-long and test-crash run the rest
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not long and not server"

.PHONY: test-long
test-long: $(VENV)/.dev ## What takes minutes: frozen triggerers, full pools, renting and lost workers of a real Airflow
	$(BIN)/pytest -m "long and not server"

.PHONY: test-servers
test-servers: $(VENV)/.launchers servers ## Run the tests against real servers, Slurm and sshd, and with real launchers
	$(BIN)/pytest -n $(SERVER_JOBS) --dist loadfile -m server

.PHONY: servers
servers: ## Install the Debian packages that test-servers needs, unless they are there
	@dpkg -s $(SERVERS) >/dev/null 2>&1 || { apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SERVERS); }

.PHONY: slurm-up
slurm-up: $(VENV)/.dev servers ## Start a Slurm of twelve nodes with fake GPUs below .slurm, and say how to use it
	$(BIN)/python -m tests.support.slurm_cluster up .slurm

.PHONY: slurm-down
slurm-down: ## End it, its jobs and every process they left
	$(BIN)/python -m tests.support.slurm_cluster down .slurm

.PHONY: test-fast
test-fast: $(VENV)/.dev ## Run the tests that start neither Airflow nor PyTorch ranks
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not stack and not long and not server and not torch"

.PHONY: test-crash
test-crash: $(VENV)/.dev ## Shoot workers, triggerers and teardowns at every effect; BUDGET=150 of each engine, SEED=1, ONLY=... to repeat one
	CRASH_ALL=1 CRASH_SEED=$(or $(SEED),0) CRASH_BUDGET=$(BUDGET) CRASH_ONLY=$(ONLY) \
		$(BIN)/pytest -n $(if $(ONLY),0,$(JOBS)) \
		tests/crash$(if $(ONLY),/test_$(firstword $(subst :, ,$(ONLY)))_combinations.py)

.PHONY: bench-journal
bench-journal: $(VENV)/.dev ## Measure a run's journal after 90 simulated days; results in bench/results/journal.json
	$(BIN)/python -m tests.bench.journal

.PHONY: bench-airflow
bench-airflow: $(VENV)/.dev ## Measure what 1,000 deferred gangs cost a triggerer, against 1,000 plain sleep triggers
	$(BIN)/python -m tests.bench.airflow

.PHONY: bench-market
bench-market: $(VENV)/.dev ## Measure the rental policy and its forecast on recorded traces, against their baselines
	$(BIN)/python -m tests.bench.market

.PHONY: bench-engines
bench-engines: $(VENV)/.dev servers ## Measure status, submit and start of gangs on real engines; results in bench/results/engines.json
	$(BIN)/python -m tests.bench.engines

.PHONY: bench-perf
bench-perf: $(VENV)/.dev ## Score parameters, step times, choices and memory against published figures, out of sample
	$(BIN)/python -m tests.bench.perf $(if $(RATES),--rates $(RATES))

.PHONY: bench-placement
bench-placement: $(VENV)/.dev ## Judge placements beside Slurm's, Kueue's and random ones by simulated flows, and time them
	$(BIN)/python -m tests.bench.placement

.PHONY: lint
lint: $(VENV)/.dev ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.PHONY: format
format: $(VENV)/.dev ## Apply the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: changelog
changelog: $(VENV)/.dev ## Show what newsfragments/ will add to CHANGELOG.md
	$(BIN)/towncrier build --draft

.PHONY: venv
venv: $(VENV)/.dev ## Make the virtual environment with everything that demo, tests and checks need

.PHONY: clean
clean: ## Remove caches, builds and what the demo left; keep the virtual environment
	rm -rf .demo build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

$(VENV)/.uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: \
	$$($(PYTHON) --version) is $$(command -v $(PYTHON)). Name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	touch $@

$(VENV)/.torch: $(VENV)/.uv
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(UV) -e ".[demo]"
	touch $@

# What gangs are launched with in the tests of launchers, beside PyTorch.
$(VENV)/.launchers: $(VENV)/.dev pyproject.toml
	$(UV) -e ".[demo,dev,launchers]"
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(UV) -e ".[demo,dev]"
	touch $@ $(VENV)/.demo
