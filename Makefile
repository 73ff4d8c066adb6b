# Every command of this checkout.  `make demo` and `make test` need nothing but Python 3.11+, Java 17+ and make;
# with Go 1.26+ `make test` also runs the tests on a real Kubernetes API server.

PYTHON ?= python3
SEEDS ?= 1000

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Groups of tests run beside each other, the longest first (tests/groups.py); pytest's own options do the rest.
AT_ONCE ?= 2
RESULTS := build/tests
PYTEST := $(BIN)/python -m pytest --dist=loadgroup --no-loadscope-reorder
PURE = $(PYTEST) --numprocesses=logical -m "not servers" --junitxml=$(RESULTS)/pure.xml
SERVERS = $(BIN)/python -m tests.kube.binaries --optional && \
	$(PYTEST) --numprocesses=$(AT_ONCE) -m servers --junitxml=$(RESULTS)/servers.xml

.DEFAULT_GOAL := help
.PHONY: help demo check test lint unit pure servers test-cluster assets durations sim mutants bench lock generate english rendered clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## Run the main job: a local cluster that loses a leader, swaps a node and loses nothing.
	TIDEMARK_ETCD="$${TIDEMARK_ETCD:-$$($(BIN)/python -m tests.kube.binaries --etcd)}" $(BIN)/tidemark demo

check: $(INSTALLED) ## Run lint and every test that starts no server: some minutes, for the inner loop.
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory pure

test: $(INSTALLED) ## Run all checks: lint, every test, then the simulator over SEEDS seeds (default 1000).
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory unit
	$(MAKE) --no-print-directory sim

lint: $(INSTALLED) ## Check style, types, who may import whom, and the Dockerfile.
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint Dockerfile

unit: $(INSTALLED) ## Run the tests without the simulator's seeds; ARGS="-k name" picks some.
ifeq ($(ARGS),)
	@failed=0; $(PURE) || failed=$$?; test $$failed -ne 2 || exit 2; $(SERVERS) && exit $$failed
else
	$(BIN)/python -m pytest $(ARGS)
endif

pure: $(INSTALLED) ## Run the tests that start no server, on all processors.
	$(PURE)

servers: $(INSTALLED) ## Run the tests that start servers, AT_ONCE groups at a time (default 2).
	$(SERVERS)

test-cluster: $(INSTALLED) ## Run the quickstart and faults on real kubelets made here; needs root, skipped elsewhere.
	$(BIN)/python -m tools.cluster $(ARGS)

assets: $(INSTALLED) ## Build the programs of the Kubernetes tests ahead; needs Go. The tests do it themselves, once.
	$(BIN)/python -m tests.kube.binaries

durations: $(INSTALLED) ## Write tests/durations.json from the results of the last `make test`.
	$(BIN)/python -m tests.durations $(RESULTS)/pure.xml $(RESULTS)/servers.xml

sim: $(INSTALLED) ## Run the simulator over SEEDS seeds (default 1000); a failure prints the line that replays it.
	$(BIN)/python -m tidemark_sim --seed 1 --runs $(SEEDS)

mutants: $(INSTALLED) ## Find the seeds that catch the simulator's mutants, after a profile or a fault has changed.
	$(BIN)/python tools/mutant_seeds.py

bench: $(INSTALLED) ## Measure this machine and write the results below bench/; takes minutes and wants an idle machine.
	$(BIN)/python -m bench $(ARGS)

generate: $(INSTALLED) ## Write the protobuf modules, the CRDs, the dashboards of the chart, and the API reference.
	$(BIN)/python tools/generate_protobuf.py
	$(BIN)/python tools/generate_resources.py
	$(BIN)/python tools/generate_dashboards.py

lock: $(INSTALLED) ## Renew images/*.txt, the packages of images and their hashes; ARGS=--upgrade takes newer ones.
	$(BIN)/python tools/lock_images.py $(ARGS)

english: $(INSTALLED) ## Lower the committed counts of words to avoid to those of today; CONTRIBUTING.md lists the words.
	$(BIN)/python tools/english.py --lower

rendered: $(INSTALLED) ## Render the chart into charts/rendered/, for machines without Helm; needs Go, once.
	$(BIN)/python -m tests.kube.helm

clean: ## Remove the virtual environment, caches and the state of local clusters (stop them first).
	rm -rf $(VENV) .tidemark .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than pyproject.toml when the environment holds what that file asks for.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Tidemark needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); echo "$(PYTHON) cannot create a virtual environment, see above." >&2; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[dev]'
	@touch $@
