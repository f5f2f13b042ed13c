# Two commands do everything on a fresh clone, with Python 3.11 or newer and make:
#   make probe   installs into .venv and probes an example, on the GPU if there is one
#   make test    installs into .venv, lints, type-checks and runs the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: probe test lint clean

probe: $(VENV)/.installed
	$(BIN)/autoaccum probe examples/gpt.py --target-batch 64 --memory-budget 1GiB

test: lint
	$(BIN)/python -m pytest -m "not gpu"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "autoaccum needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
