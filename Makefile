# Everything below needs only Python >= 3.11, git and make; the environment is made in .venv and reused.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help run test test-slow lint flwr-run clean

help:
	@echo "make run        the quickstart experiment: real data, Ray workers, a table and curves"
	@echo "make test       the default tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make lint       ruff and mypy"
	@echo "make flwr-run   the quickstart under Flower's own simulation"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedsim needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Set PYTHON=/path/to/python3.11." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) lacks the venv module. On Debian or Ubuntu: apt-get install python3-venv; on Fedora it comes with python3; or set PYTHON to another interpreter." >&2; exit 2; }
	@echo "setting up $(VENV): some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	@touch $@

run: $(READY)
	$(BIN)/fedsim run experiments/quickstart/experiment.toml

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

flwr-run: $(READY)
	$(BIN)/python -m fedsim.flower.flwr_run experiments/quickstart/experiment.toml

clean:
	rm -rf $(VENV)
