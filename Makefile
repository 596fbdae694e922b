# Every target does its own set-up: python3 with its venv module is all that must be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := python -m pip install --quiet --disable-pip-version-check

# The oldest versions that pyproject.toml allows.
LOWEST := numpy==2.1.0 ml_dtypes==0.5.0 llvmlite==0.46.0
LOWEST_CUDA := cuda-bindings==13.0.0 nvidia-cuda-nvrtc==13.0.48

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz test-torch test-opencl test-oclgrind test-array-api test-wheel test-lowest lint format bench bench-quick bench-cuda docs \
	test-cuda test-cuda-fake test-arm test-newest test-pythons test-all site

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The package and what it needs to run.
$(VENV)/.package: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) -e .
	$(BIN)/python -m compileall -q src/ferrule
	@touch $@

# And the tools of development.
$(VENV)/.dev: $(VENV)/.package
	$(BIN)/$(INSTALL) -e '.[dev]'
	@touch $@

demo: $(VENV)/.package ## Train a small network on handwritten digits
	$(BIN)/python -m ferrule demo digits

test: lint ## Lint, check the types, run all tests
	$(BIN)/pytest -W error -n 2 --dist worksteal

lint: $(VENV)/.dev ## Check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict

format: $(VENV)/.dev ## Format the code, and fix what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The libraries to compare with, in an environment of their own.
.bench-venv/.ready: pyproject.toml bench/setup.sh
	PYTHON=$(PYTHON) sh bench/setup.sh
	@touch $@

bench: .bench-venv/.ready ## Measure against all peers; the table is bench/results.md
	.bench-venv/bin/python bench/run.py

bench-quick: .bench-venv/.ready ## A subset in short blocks: rough figures in two minutes
	.bench-venv/bin/python bench/run.py --quick

bench-cuda: ## Measure on a GPU, against the peers that this Python has; it installs nothing
	PYTHONPATH=src $(PYTHON) bench/run.py --gpu

# PyTorch and what its own testing modules need.
.torch-venv/.ready: pyproject.toml
	$(PYTHON) -m venv .torch-venv
	.torch-venv/bin/$(INSTALL) -e . scipy expecttest pytest hypothesis
	.torch-venv/bin/$(INSTALL) "torch==2.13.0" --retries 0 --timeout 15 \
		--index-url https://download.pytorch.org/whl/cpu || \
		.torch-venv/bin/$(INSTALL) "torch==2.13.0"
	.torch-venv/bin/$(INSTALL) "torchvision==0.28.0" timm transformers
	@touch $@

# What depends on the interpreter: captures, threads, and the graph, whose nodes hold each other.
CORE_TESTS := $(wildcard tests/backend/test_jit*.py) $(wildcard tests/unit/test_jit*.py) tests/unit/test_capture.py \
	tests/unit/test_schedule.py tests/unit/test_realize.py tests/unit/test_graph_key.py tests/unit/test_stored.py \
	tests/unit/test_hazards.py tests/unit/test_interning.py tests/unit/test_records.py tests/unit/test_enums.py \
	tests/unit/test_threads.py tests/unit/test_python_threads.py tests/unit/test_pool.py tests/unit/test_cpu_graph.py \
	tests/unit/test_view.py tests/unit/test_shapetracker.py tests/property/test_view_chains.py

test-newest: ## Run what depends on the interpreter with the newest Python (see .ci/python)
	.ci/python 3.14 -n 2 --dist worksteal $(CORE_TESTS)

test-pythons: ## Run all tests with the other Pythons (see .ci/python)
	for version in 3.12 3.13 3.14; do WHOLE=1 .ci/python $$version -n 2 --dist worksteal tests || exit 1; done

test-all: test test-pythons test-torch test-opencl test-cuda-fake test-wheel test-lowest ## Run everything there is

MINUTES ?= 5
FUZZ ?=
fuzz: $(VENV)/.dev ## Run random programs for $$MINUTES; options of `python -m tests.fuzz` in $$FUZZ
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(FUZZ)

test-torch: .torch-venv/.ready ## Compare with PyTorch on its database of operators
	.torch-venv/bin/python -m pytest -q tests/torch
	.torch-venv/bin/python tests/torch/op_db.py

# PoCL compiles in half the time without optimisation.
test-opencl: $(VENV)/.dev ## Run all tests of devices on OpenCL
	POCL_EXTRA_BUILD_FLAGS=-cl-opt-disable $(BIN)/pytest -W error -n 2 --dist worksteal --device CL tests/backend tests/unit/test_opencl.py

test-oclgrind: $(VENV)/.dev ## Look for data races between threads, with Oclgrind (apt install oclgrind)
	@command -v oclgrind-kernel > /dev/null || { echo "apt install oclgrind"; exit 1; }
	$(BIN)/pytest -W error tests/oclgrind

test-array-api: $(VENV)/.dev ## Run the public suite of the array API, a checkout at $$ARRAY_API_TESTS
	@test -n "$$ARRAY_API_TESTS" || { echo "set ARRAY_API_TESTS to a checkout of array-api-tests"; exit 1; }
	$(BIN)/$(INSTALL) -r "$$ARRAY_API_TESTS/requirements.txt"
	cd "$$ARRAY_API_TESTS" && ARRAY_API_TESTS_MODULE=ferrule.array_api ARRAY_API_TESTS_VERSION=2024.12 \
		$(CURDIR)/$(BIN)/pytest array_api_tests --max-examples 100

test-cuda: ## Run the backend tests on a GPU, with this Python; it installs nothing
	$(PYTHON) tests/cuda/run.py

test-cuda-fake: $(VENV)/.dev ## Run the backend tests for GPUs without one, on the fake driver
	$(BIN)/python tests/cuda/run.py --fake -W error -n 2 --dist worksteal

# What depends on the processor, whole, and a little of the rest. An emulated Python is slow.
ARM_TESTS := tests/unit/test_elf.py tests/unit/test_pool.py tests/unit/test_cpu_program.py \
	tests/unit/test_cpu_graph.py tests/unit/test_llvmir.py tests/unit/test_portability.py \
	tests/backend/test_ops_ast.py

# Python for AArch64 and an emulator, from Debian's packages and PyPI; see the script.
build/arm/.ready: tests/arm/setup.sh
	PYTHON=$(PYTHON) sh tests/arm/setup.sh
	@touch $@

test-arm: build/arm/.ready ## Run a part of the tests on an emulated ARM processor (on Debian, minutes)
	build/arm/python .ci/smoke.py
	build/arm/python -m pytest -q --device CPU $(ARM_TESTS) -k "not test_arm and not float8"

docs: $(VENV)/.dev ## Run every example in the documentation
	$(BIN)/pytest -W error tests/docs

# The generator of the site, beside the package, whose docstrings and tour are pages of it.
.site-venv/.ready: pyproject.toml
	$(PYTHON) -m venv .site-venv
	.site-venv/bin/$(INSTALL) -e '.[docs]'
	@touch $@

site: .site-venv/.ready ## Build the site of the documentation in build/site/html; no warning, no broken link
	.site-venv/bin/python docs/make_site.py
	.site-venv/bin/zensical build --strict --config-file build/site/mkdocs.yml

test-wheel: $(VENV)/.dev ## Build the wheel and try it in a clean environment
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/$(INSTALL) dist/*.whl
	cd build && wheel/bin/python ../.ci/smoke.py

test-lowest: ## Try the oldest versions that the dependencies may have
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/$(INSTALL) --only-binary :all: $(LOWEST)
	build/lowest/bin/$(INSTALL) .
	cd build && lowest/bin/python ../.ci/smoke.py
	build/lowest/bin/$(INSTALL) $(LOWEST_CUDA) pytest hypothesis
	build/lowest/bin/python -m pytest -W error -q tests/golden/test_cuda.py
