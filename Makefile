# Two commands matter: `make demo` and `make test`. Both set up what they need on a bare machine
# (Python 3.11 or newer, make, root for the local cluster's node) and are quick the second time.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
# Compiled modules halve the start of every process that imports torch, whatever the surroundings say.
export PYTHONDONTWRITEBYTECODE =
VENV := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(VENV)/python -m pytest
# Tests against real clusters meet a loaded machine now and then: what failed is shown, then run once more on its own.
AGAIN := $(PYTEST) --last-failed --last-failed-no-failures none

.DEFAULT_GOAL := help

.PHONY: help
help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## the virtual environment and system packages, from the lock file
	@$(PYTHON) dev/bootstrap.py

.PHONY: demo
demo: setup ## a manifest becomes a policy, on a local Kubernetes; ARGS="--values FILE" for a cluster of your own
	@$(VENV)/python dev/demo.py $(ARGS)

.PHONY: demo-down
demo-down: setup ## remove everything that the demo made
	@$(VENV)/python dev/demo.py --down

.PHONY: test
test: lint unit integration e2e ## everything that CI checks

.PHONY: lint
lint: setup ## style, types, layers, generated files
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	MYPYPATH=operator:dev:tests/benchmarks:tests/support $(VENV)/mypy tests/benchmarks/*.py
	$(VENV)/lint-imports

.PHONY: unit
unit: setup ## pure tests, seconds
	$(PYTEST) tests/unit -n 2

# What shares control planes and counts what happens there is one process' work; the workers' tests go on beside it.
CONTROL_PLANES := $(addprefix tests/integration/,chart devcluster devcluster_binaries documents faultproxy operator operator_api operator_faults)
CONTROL_PLANE_TESTS := $(CONTROL_PLANES) -o cache_dir=.pytest_cache/control-planes
WORKER_TESTS := tests/integration $(addprefix --ignore=,$(CONTROL_PLANES)) -o cache_dir=.pytest_cache/workers

.PHONY: programs
programs: setup ## what the local cluster is made of, built once: some fifteen minutes, longer than any test may take
	@$(VENV)/devcluster binaries --build all > /dev/null

.PHONY: integration integration-control-planes integration-workers
integration: setup ## real processes and a real API server
	@$(MAKE) --no-print-directory -j 2 integration-control-planes integration-workers
	$(VENV)/python -m cleanrl_worker.tools.coverage_matrix --check
integration-control-planes: programs
	$(PYTEST) $(CONTROL_PLANE_TESTS) || $(AGAIN) $(CONTROL_PLANE_TESTS)
integration-workers:
	$(PYTEST) $(WORKER_TESTS) || $(AGAIN) $(WORKER_TESTS)

.PHONY: coverage
coverage: setup ## launch, resume and evaluate every algorithm, and write docs/coverage.md
	rm -rf var/smoke-records
	CLEANRL_COVERAGE=all $(PYTEST) tests/integration/worker_smoke tests/integration/training tests/integration/algorithms2_off_policy tests/integration/algorithms2_on_policy
	$(VENV)/python -m cleanrl_worker.tools.coverage_matrix

.PHONY: e2e
e2e: programs ## real kubelet, real pods
	$(PYTEST) tests/e2e || $(AGAIN) tests/e2e

.PHONY: fuzz
fuzz: setup ## hostile input for a long time (CLEANRL_FUZZ_EXAMPLES=20000); CI tries the same for seconds
	CLEANRL_FUZZ_EXAMPLES=$${CLEANRL_FUZZ_EXAMPLES:-20000} $(PYTEST) -o timeout=0 tests/unit/hostile tests/integration/hostile \
	  tests/unit/worker/test_any_configuration_resolves_or_names_its_fault.py

.PHONY: audit
audit: setup ## dependencies: pinned, hashed, licensed, and (where its service can be reached) not known to be vulnerable
	$(VENV)/python dev/audit.py

.PHONY: images images-clean e2e-images
images: setup ## build both images; IMAGES="--torch cuda --extras atari" changes what goes in, IMAGES=--help lists it
	@$(VENV)/python dev/images.py $(IMAGES)
images-clean: setup ## remove the images and everything that building them left
	@$(VENV)/python dev/images.py --clean
e2e-images: setup ## build both images and train a run in pods of them: minutes, and some 20 GB of disk on the way
	$(VENV)/python dev/images.py --archive $(IMAGES)
	$(PYTEST) tests/images -s
	$(VENV)/python dev/images.py --clean

.PHONY: bench
bench: setup ## the benchmarks of minutes (hours in all), and one table of all figures (docs/benchmarks/README.md); ARGS=--quick 20 minutes of them
	$(VENV)/python tests/benchmarks/bench.py $(ARGS)

.PHONY: chaos
chaos: setup ## faults at random over 500 pretended and 30 real runs, and a count of what was lost; ARGS="--seed N --runs N --real N"
	$(VENV)/python tests/benchmarks/chaos.py $(ARGS)

.PHONY: soak
soak: setup ## 200 live runs with churn for two hours; goes on where it was stopped; ARGS="--minutes 20" is the short form
	$(VENV)/python tests/benchmarks/soak.py $(ARGS)

.PHONY: format
format: setup ## rewrite the code in the project's style
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

.PHONY: crds proto schemas docs
crds: setup ## generate crds/ and the chart's copy from the operator's models
	$(VENV)/python -m cleanrl_operator.api.crd
	$(VENV)/python dev/chart.py
proto: setup ## generate the session protocol's code
	$(VENV)/python -m cleanrl_protocol.generate
schemas: setup ## generate cleanrl_worker/schemas.json from the algorithms' flags
	$(VENV)/python -m cleanrl_worker.tools.schemas
docs: setup ## generate docs/reference/ from the resource and the algorithms
	$(VENV)/python dev/docs.py

.PHONY: clean
clean: ## remove the virtual environment, caches of tools and local runs
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis var
