# Every target does its own set-up: on a fresh machine `make demo` or `make test` is the first command.
#   make PYTHON=python3.12 test     another interpreter (3.11 or newer)
#   make VENV=/tmp/venv test        another place for the environment

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
FUZZ ?= 10

BIN := $(VENV)/bin
READY := $(VENV)/.brickprof-ready

.PHONY: help setup demo test fuzz test-gpu check bench format clean

help:
	@echo "make demo     a healthy run and a broken one, with their verdicts"
	@echo "make test     all tests"
	@echo "make fuzz     the tests of properties, with new examples, FUZZ (10) times"
	@echo "make test-gpu what needs a GPU, alone and one after the other; skips without one"
	@echo "make check    ruff, mypy and the direction of imports"
	@echo "make bench    what brickprof costs a training, how fast it reads logs and writes reports, what watch takes"
	@echo "make format   ruff's formatter and automatic fixes"
	@echo "make clean    remove the environment and everything built"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "brickprof needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# The broken run exits with its script's own code, which is what is being shown: 0 and 1 are both fine.
demo: $(READY)
	@printf '\n=== A training that is fine ===\n\n'
	$(BIN)/brickprof run examples/gpt.py
	@printf '\n=== The same training, broken ===\n\n'
	$(BIN)/brickprof run examples/broken_gpt.py || test $$? -eq 1

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

fuzz: $(READY)
	for round in $$(seq $(FUZZ)); do \
	    $(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile fuzz -n $(WORKERS) || exit 1; done

test-gpu: $(READY)
	$(BIN)/python -m pytest tests/test_gpu_*.py tests/test_kernels_gpu.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/logs.py --size 1000
	$(BIN)/python benchmarks/reports.py
	$(BIN)/python benchmarks/watch.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist brickprof.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
