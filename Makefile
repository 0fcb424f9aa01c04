# Every target sets up what it needs, from a bare checkout, in .venv.
#   make demo    the main job          make test   the tests
#   make lint    the linters           make setup  the virtual environment alone
#   make bench   the benchmarks

PYTHON ?= python3
VENV ?= .venv
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
LOCK := requirements/py$(VERSION)
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -q
SETUP := $(VENV)/.complete

.PHONY: setup test lint demo bench clean

setup: $(SETUP)

# Step by step, because fairseq builds without isolation: with it, pip fetches a second torch of gigabytes.
$(SETUP): setup.py $(LOCK)-build.txt $(LOCK).txt $(wildcard fairseq_tg/compiled/native/*)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r $(LOCK)-build.txt
	@echo "building fairseq (a few minutes, once)"
	$(PIP) install --no-build-isolation --no-deps -r $(LOCK).txt
	$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

requirements/py%.txt:
	@echo "no locked requirements for Python $(VERSION): use Python 3.11 (make PYTHON=python3.11 ...)" >&2; exit 1

test: $(SETUP)
	$(VENV)/bin/python -m pytest -n 2

lint: $(SETUP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror fairseq_tg/compiled/native/*

demo: $(SETUP)
	PATH="$(abspath $(VENV))/bin:$$PATH" bash examples/toy/run.sh

bench: $(SETUP)
	$(VENV)/bin/python benchmarks/training_cost.py

clean:
	rm -rf $(VENV) work-demo .pytest_cache .mypy_cache .ruff_cache
