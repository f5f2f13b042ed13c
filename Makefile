# Two commands do everything on a fresh clone, with Python 3.11 or newer and make:
#   make probe   installs into .venv and probes an example, on the GPU if there is one
#   make test    installs into .venv, lints, type-checks and runs the tests
# And with a CUDA build of torch, which is installed into .venv-gpu (1.4 GB) and needs no GPU:
#   make rehearse   says which plan the example would have on GPUs that are not here
# And for those who change what runs on a GPU:
#   make test-gpu   installs a CUDA build of torch into .venv-gpu and runs the tests marked gpu on the virtual GPU,
#                   and on the real one where there is one
#   make bench-search   measures the search beside other tools, on the virtual GPU and on the CPU
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

GPU_VENV := .venv-gpu
GPU_BIN := $(GPU_VENV)/bin
GPU_TORCH ?= 2.15.0
# What torch and autoaccum import, the test tools, and transformers for the models of tests/gpu/test_large_models.py:
# torch itself is installed apart, without its dependencies.
GPU_NEEDS := numpy filelock typing-extensions sympy networkx jinja2 fsspec setuptools \
    nvidia-ml-py optuna pandas click rich plotly pytest pytest-timeout pytest-xdist coverage transformers

GPU_PIP := $(GPU_BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: probe rehearse test test-gpu bench-search lint clean

probe: $(VENV)/.installed
	$(BIN)/autoaccum probe examples/gpt.py --target-batch 64 --memory-budget 1GiB

rehearse: $(GPU_VENV)/.installed
	$(GPU_BIN)/autoaccum rehearse examples/gpt2.py --target-batch 512 --gpu t4,l4,a100-40gb,h100-80gb,12GiB

test: lint
	$(BIN)/python -m pytest -m "not gpu" --durations 10 --numprocesses 2 --dist worksteal

# Needs a GPU no more than the tests do; about half an hour on two cores.
bench-search: $(GPU_VENV)/.installed
	$(GPU_PIP) --constraint constraints.txt accelerate pytorch-lightning toma matplotlib
	$(GPU_BIN)/python -m benchmarks.search

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

# Two at once, and the tests of a file in one process: they share what is slow to make.
TWO := --numprocesses 2 --dist loadfile
# What reaches no further line of the device code runs apart: coverage makes every import of torch slower.
APART := $(addprefix tests/gpu/,test_alterations.py test_anatomy.py test_large_models.py test_models.py test_rehearse.py \
    test_traits.py)
test-gpu: $(GPU_VENV)/.installed
	$(GPU_BIN)/coverage erase
	$(GPU_BIN)/coverage run -m pytest -m gpu $(TWO) tests/gpu $(APART:%=--ignore %)
	$(GPU_BIN)/coverage combine --quiet
	$(GPU_BIN)/coverage report
	$(GPU_BIN)/python -m pytest -m gpu $(TWO) $(APART) tests/virtual

# The wheel alone, where there is no GPU: its NVIDIA packages are gigabytes that the virtual GPU does without.
$(GPU_VENV)/.installed: pyproject.toml constraints.txt Makefile
	[ -x $(GPU_BIN)/python ] || $(PYTHON) -m venv $(GPU_VENV)
	$(GPU_PIP) $$(command -v nvidia-smi > /dev/null || echo --no-deps) torch==$(GPU_TORCH)
	$(GPU_PIP) --constraint constraints.txt $(GPU_NEEDS)
	$(GPU_PIP) --no-deps --editable .
	touch $@

clean:
	rm -rf $(GPU_VENV) $(VENV) .mypy_cache .pytest_cache .ruff_cache
