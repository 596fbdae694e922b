# Every target does its own set-up: python3 with its venv module is all that must be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-lowest lint format bench bench-quick docs

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The package and what it needs to run.
$(VENV)/.package: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

# And the tools of development.
$(VENV)/.dev: $(VENV)/.package
	$(PIP) -e '.[dev]'
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

docs: $(VENV)/.dev ## Run every example in the documentation
	$(BIN)/pytest -W error tests/docs
