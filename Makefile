# Everything runs from .venv, which every target builds if it is missing or out of date.
PYTHON ?= python3
JOBS ?= auto
SOAK_SECONDS ?= 3600
SOAK_PROCESSES ?= 1
FUZZ_SECONDS ?= 600
PIP_AUDIT := 2.10.1
TRAINERS := trl==1.16.0 orda-kernel==0.1.0 requests==2.34.2 wandb==0.31.0 trackio==0.43.0
RAY := 2.60.0
# Its own pins exclude our transformers; of what it names, its agent loop needs these.
VERL := verl==0.9.1
FOR_VERL := ray==$(RAY) hydra-core==1.3.8 tensordict==0.10.0 codetiming==1.4.0 cachetools==8.0.0 \
	fastapi==0.163.0 uvicorn==0.54.0
# For transformers' own processors. PyPI has only its build for CUDA, which wants another torch.
TORCHVISION := torchvision==0.28.0
# Its interpreter needs an older numpy than .venv has.
TRITON := triton==3.6.0 numpy==2.3.5
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ENGINES := .venv-engines
# large_step.py needs a large GPU and is run by hand; scale_simulation.py measures no ratio.
BY_HAND := benchmarks/large_step.py benchmarks/scale_simulation.py
BENCHMARKS := $(filter-out $(BY_HAND),$(wildcard benchmarks/[a-z]*.py))

# Tests run in parallel; one thread each is faster than all of them fighting for the cores. The demo
# runs alone and may use them all.
test faults soak fuzz browser trainers kernels gpu engines ray bench: export OMP_NUM_THREADS ?= 1

.PHONY: help setup test faults soak fuzz browser trainers kernels demo lint types gpu engines ray hashes audit bench performance release
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Build .venv from requirements.lock

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("bas-opd needs Python 3.11 or newer. Name one: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test: $(READY) ## Run the tests, but for the long ones
	$(BIN)/python -m pytest -n $(JOBS) -m "not gpu and not slow and not browser"

faults: $(READY) ## Kill, starve and damage real runs
	$(BIN)/python -m pytest -n $(JOBS) tests/faults

soak: $(READY) ## Let runs of SOAK_PROCESSES fail in every way for SOAK_SECONDS
	PYTHONPATH=tests $(BIN)/python tests/faults/soak.py --seconds $(SOAK_SECONDS) --processes $(SOAK_PROCESSES)

fuzz: $(READY) ## Search for files that no reader expects, for FUZZ_SECONDS
	PYTHONPATH=tests $(BIN)/python tests/faults/fuzz.py --seconds $(FUZZ_SECONDS)

browser: $(READY) ## Open the pages in a real browser
	$(BIN)/python -m pytest -m browser tests/browser

# They bring packages that the lock does not have, so they get an environment on top of .venv.
trainers: $(READY) ## Test the integrations with other trainers, the hub and trackers (needs the network)
	@test -d .venv-trainers || $(BIN)/python -m venv .venv-trainers
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	"$$(.venv-trainers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	.venv-trainers/bin/python -m pip install --quiet --disable-pip-version-check --no-warn-conflicts $(TRAINERS) $(FOR_VERL)
	.venv-trainers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python $(VERL) $(TORCHVISION)
	.venv-trainers/bin/python .ci/torchvision_on_cpu.py
	PYTHONPATH=src .venv-trainers/bin/python -m pytest tests/integrations

kernels: $(READY) ## Test the Triton kernels in Triton's interpreter, without a GPU (needs the network)
	@test -d .venv-kernels || $(BIN)/python -m venv .venv-kernels
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	"$$(.venv-kernels/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	.venv-kernels/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(TRITON)
	PYTHONPATH=src TRITON_INTERPRET=1 .venv-kernels/bin/python -m pytest -n $(JOBS) tests/kernels
	PYTHONPATH=src .venv-kernels/bin/python -m pytest -n $(JOBS) tests/kernels/test_compiled.py

demo: $(READY) ## Train a small model on this CPU, two ways, and write a page to look at
	$(BIN)/bas-opd demo

lint: $(READY) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types
	$(BIN)/pyright

gpu: $(READY) ## Run the tests that need a GPU
	$(BIN)/python -m pytest -m gpu

# Ray brings packages of its own; the environment sees those of .venv besides.
ray: $(READY) ## Train on a Ray cluster of this machine (needs the network)
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; $(BIN)/python -m venv "$$place"; \
	sites='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(BIN)/python -c "$$sites" > "$$("$$place/bin/python" -c "$$sites")/bas-opd.pth"; \
	"$$place/bin/python" -m pip install --quiet --disable-pip-version-check ray==$(RAY); \
	PYTHONPATH=$(CURDIR)/src "$$place/bin/python" -m pytest tests/worlds/test_ray.py

engines: $(ENGINES)/.ready ## Run the tests with vLLM, in an environment of their own (3.5 GB)
	$(ENGINES)/bin/python -m pytest tests/engines

$(ENGINES)/.ready: .ci/engines.txt pyproject.toml
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check -r .ci/engines.txt
	# Nothing here uses them, and PyPI has only their builds for CUDA.
	$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	$(ENGINES)/bin/python .ci/torchvision_on_cpu.py
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e .
	@touch $@

hashes: $(READY) ## Write requirements.hashes.lock
	$(BIN)/python .ci/hashes.py

# The tool has packages of its own, so it gets an environment of its own.
audit: ## Look up known vulnerabilities of every pinned package (needs the network)
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; $(PYTHON) -m venv "$$place"; \
	"$$place/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit==$(PIP_AUDIT); \
	"$$place/bin/pip-audit" --strict --disable-pip --no-deps --requirement requirements.lock

# An empty environment elsewhere, in which nothing of this folder can be found.
release: $(READY) ## Build the wheel, install it into an empty environment and run the demo from it
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; wheel=$$(ls $(CURDIR)/dist/*.whl); \
	$(PYTHON) -m venv "$$place/venv"; \
	"$$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c $(CURDIR)/requirements.lock "$$wheel"; \
	cd "$$place"; venv/bin/bas-opd --version; venv/bin/bas-opd train tiny model.path=small; \
	venv/bin/bas-opd verify runs/tiny --draws; \
	venv/bin/bas-opd demo --folder $(CURDIR)/build; echo "$$wheel works."

performance: $(READY) ## Render the tables of docs/performance.md and docs/scale.md from docs/results/bench
	$(BIN)/python -m bas_opd.bench.page docs/performance.md docs/scale.md

bench: $(READY) ## Measure the speed ratios
	@set -e; for script in $(BENCHMARKS); do echo "$$script"; $(BIN)/python "$$script"; done
