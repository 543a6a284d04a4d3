# Two commands on a bare machine: `make demo` and `make test`. Each creates the environment first, once.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
WORKERS ?= 2
# Small tensors on many threads are slower than on one, and test workers would fight over the cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test test-slow docs lint format clean

demo: $(VENV)/.installed
	$(BIN)/gbinet demo

test: $(VENV)/.installed lint
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS)

test-slow: $(VENV)/.installed
	$(TEST_ENV) $(BIN)/python -m pytest -m slow

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: pyproject.toml research/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gbinet needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]" -e research
	touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache
