# Every command of this checkout.  `make demo` and `make test` need nothing but Python 3.11+, Java 17+ and make;
# with Go 1.26+ both run the etcd that Go builds, and `make test-full` also tests on a real Kubernetes API server.

PYTHON ?= python3
SEEDS ?= 300
SEEDS_FULL ?= 5000
MINUTES ?= 15

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Groups of tests run beside each other, the longest first (tests/run/groups.py).  A process that dies ends the run.
AT_ONCE ?= logical
RESULTS := build/tests
PYTEST := $(BIN)/python -m pytest --dist=loadgroup --no-loadscope-reorder --max-worker-restart=0 --numprocesses=$(AT_ONCE)
SUBMAKE := $(MAKE) --no-print-directory

# $(call bounded,NAME,MINUTES) COMMAND ends a command that takes longer, and prints what ran (tests/run/bounded.py).
bounded = $(BIN)/python -m tests.run.bounded --name $(1) --minutes $(2) --

# Tests start hundreds of Python processes: each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test test-full lint quick unit all test-cluster assets durations sim mutants bench lock generate english rendered clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## Run the main job: a local cluster that loses a leader, swaps a node and loses nothing.
	TIDEMARK_ETCD="$${TIDEMARK_ETCD:-$$($(BIN)/python -m tests.kube.binaries --etcd)}" $(BIN)/tidemark demo

check: $(INSTALLED) ## Run lint and the short tests that start no server, in 5 minutes: for the inner loop.
	$(call bounded,check,5) $(SUBMAKE) lint quick

test: $(INSTALLED) ## Run lint, all tests but those of `make test-full`, and SEEDS seeds (default 300), in MINUTES (default 15).
	@rm -f $(RESULTS)/*
	$(BIN)/python -m tests.kube.binaries --etcd
	$(call bounded,test,$(MINUTES)) $(SUBMAKE) lint unit sim

test-full: $(INSTALLED) ## Run every test, none twice, and SEEDS_FULL seeds (default 5000); print a table of minutes.
	@rm -f $(RESULTS)/*
	$(BIN)/python -m tests.kube.binaries --optional
	@failed=0; $(SUBMAKE) --keep-going lint all sim SEEDS=$(SEEDS_FULL) || failed=$$?; \
		$(BIN)/python -m tests.run.stages $(RESULTS)/full.xml; exit $$failed

lint: $(INSTALLED) ## Check style, types, who may import whom, and the Dockerfile.
	$(call bounded,lint,5) sh -ec '$(BIN)/ruff check .; $(BIN)/mypy; $(BIN)/lint-imports --no-logo; $(BIN)/hadolint Dockerfile'

quick: $(INSTALLED) ## Run the short tests that start no server.
	$(call bounded,quick,5) $(PYTEST) -m "not servers and not slow" --junitxml=$(RESULTS)/quick.xml

unit: $(INSTALLED) ## Run the tests of `make test`, failed ones with servers once more; ARGS="-k name" picks any.
ifeq ($(ARGS),)
	@failed=0; $(call bounded,tests,$(MINUTES)) $(PYTEST) -m "not full" --junitxml=$(RESULTS)/tests.xml || failed=$$?; \
		$(BIN)/python -m tests.run.again $$failed $(RESULTS)/tests.xml
else
	$(BIN)/python -m pytest $(ARGS)
endif

all: $(INSTALLED) ## Run every test, none twice.
	$(call bounded,tests,120) $(PYTEST) --junitxml=$(RESULTS)/full.xml

test-cluster: $(INSTALLED) ## Run the quickstart and faults on real kubelets made here; needs root, skipped elsewhere.
	$(BIN)/python -m tools.cluster $(ARGS)

assets: $(INSTALLED) ## Build the programs of the Kubernetes tests, once; needs Go. `make test-full` does it too.
	$(BIN)/python -m tests.kube.binaries $(ARGS)

durations: $(INSTALLED) ## Write tests/run/durations.json from the results of the last `make test` or `make test-full`.
	$(BIN)/python -m tests.run.durations $(wildcard $(RESULTS)/tests.xml $(RESULTS)/full.xml)

sim: $(INSTALLED) ## Run the simulator over SEEDS seeds (default 300), and as many of keyspaces; a failure prints its replay.
	$(call bounded,seeds,60) $(BIN)/python -m tidemark_sim --seed 1 --runs $(SEEDS)
	$(call bounded,keyspaces,60) $(BIN)/python -m tidemark_sim --seed 1 --runs $(SEEDS) --profile keyspace
	$(call bounded,clocks,60) $(BIN)/python -m tidemark_sim --seed 1 --runs $(SEEDS) --profile keyspace-ahead

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
