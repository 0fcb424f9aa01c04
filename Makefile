# Every target sets up what it needs, from a bare checkout, in .venv.
#   make demo    the main job          make test   the tests
#   make lint    the linters           make setup  the virtual environment alone
#   make bench   the benchmarks
#   make test-compat   the tests with fairseq 0.12.2, Python 3.10 and torch 2.2 (several gigabytes are fetched)
#   make test-sanitizers   the native engine under AddressSanitizer, UBSan and ThreadSanitizer (needs g++)
#   make test-arm      the native engine on ARM, under an emulator (needs a Debian with g++-aarch64-linux-gnu and qemu-user-static)
#   make test-faults   the long tests of kills, full disks and damage
#   make test-examples   the examples of models of many languages, on toys (a few minutes)
#   make test-slurm    builds and trainings on a Slurm cluster that it starts (needs Debian's slurm-wlm and munge)
#   make test-browser  the service's page in a real browser (needs Debian's chromium and chromium-driver, and npm)
#   make test-serve    the service under load: fuzzed requests, killed and slow clients
#   make dist          sdist and wheel in dist/, with the native libraries inside; make test-dist serves from the wheel
#   make audit         known vulnerabilities of the pinned versions (asks PyPI)

PYTHON ?= python3
VENV ?= .venv
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
LOCK := requirements/py$(VERSION)
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -q
SETUP := $(VENV)/.complete
#: A file's tests in one process, which makes what they share once; the slow files come first, the many small ones last
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
#: of the older generation: the first that runs (pyenv has a python3.10 that does not, if that is not its global one)
PYTHON310 ?= $(shell for python in python3.10 $$HOME/.pyenv/versions/3.10*/bin/python3.10; do \
	$$python -c '' 2> /dev/null && echo $$python && break; done)

.PHONY: setup test test-browser test-serve dist test-dist test-compat test-examples test-faults test-sanitizers test-arm test-slurm audit lint demo bench clean

setup: $(SETUP)

# Step by step, because fairseq builds without isolation: with it, pip fetches a second torch of gigabytes. Debugging
# symbols and optimization, which Python's own flags ask for, take a compiler a good part of its time (what needs the
# latter, our engine and fairseq's batching, asks for it itself). While fairseq builds, which takes most of it, our
# engine does, and everything else is installed.
$(SETUP): setup.py $(LOCK)-build.txt $(LOCK).txt $(wildcard fairseq_tg/compiled/native/*)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r $(LOCK)-build.txt
	@echo "building fairseq (a few minutes, once)"
	export CFLAGS='-g0 -O1'; fairseq=$$(grep ^fairseq $(LOCK).txt); grep -v ^fairseq $(LOCK).txt > $(VENV)/others.txt; \
	$(PIP) wheel --no-build-isolation --no-deps -w $(VENV)/wheels "$$fairseq" & building=$$!; \
	$(PIP) install --no-build-isolation --no-deps -e . && \
	$(PIP) install --no-build-isolation --no-deps -r $(VENV)/others.txt && \
	wait $$building && $(PIP) install --no-deps $(VENV)/wheels/fairseq*.whl
	@$(VENV)/bin/fairseq-tg --version
	@touch $@

requirements/py%.txt:
	@echo "no locked requirements for Python $(VERSION): use Python 3.11 (make PYTHON=python3.11 ...)" >&2; exit 1

test: $(SETUP)
	$(VENV)/bin/python -m pytest $(PARALLEL)

test-compat:
	@[ -n "$(PYTHON310)" ] || { echo "no Python 3.10 found: make test-compat PYTHON310=/path/to/python3.10" >&2; exit 1; }
	$(MAKE) PYTHON=$(PYTHON310) VENV=.venv-py3.10 test

test-faults: $(SETUP)
	$(VENV)/bin/python -m pytest $(PARALLEL) --thorough tests/faults

test-examples: $(SETUP)
	$(VENV)/bin/python -m pytest -n 2 --thorough tests/examples

test-sanitizers: $(SETUP)
	$(VENV)/bin/python -m tests.engine.sanitizers

test-arm: $(SETUP)
	$(VENV)/bin/python -m tests.engine.arm .venv-arm

test-slurm: $(SETUP)
	$(VENV)/bin/python -m pytest tests/slurm

test-browser: $(SETUP)
	$(PIP) install -r requirements/browser.txt
	npm install --no-fund --no-audit --silent --no-save --prefix $(VENV)/axe axe-core@4
	TG_AXE=$(VENV)/axe/node_modules/axe-core/axe.min.js $(VENV)/bin/python -m pytest tests/browser

test-serve: $(SETUP)
	$(PYTHON) -m venv .venv-load
	.venv-load/bin/python -m pip --disable-pip-version-check -q install -r requirements/load.txt
	TG_SCHEMATHESIS=.venv-load/bin/schemathesis $(VENV)/bin/python -m pytest tests/load

# In an environment of its own; auditwheel puts OpenMP's library into the wheel and says where it runs.
dist:
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip --disable-pip-version-check -q install -r requirements/dist.txt
	rm -rf dist build
	.venv-dist/bin/python -m build --no-isolation --outdir build/dist .
	PATH="$(abspath .venv-dist)/bin:$$PATH" .venv-dist/bin/auditwheel repair --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist/

test-dist: $(SETUP) dist
	$(VENV)/bin/python -m pytest tests/dist

audit:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip --disable-pip-version-check -q install pip-audit
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip -r $(LOCK)-build.txt -r $(LOCK).txt

lint: $(SETUP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror fairseq_tg/compiled/native/* tests/native/*

demo: $(SETUP)
	PATH="$(abspath $(VENV))/bin:$$PATH" bash examples/toy/run.sh

bench: $(SETUP)
	$(VENV)/bin/python benchmarks/training_cost.py

clean:
	rm -rf $(VENV) .venv-py3.10 .venv-arm .venv-audit .venv-dist .venv-load build dist work-demo .pytest_cache .mypy_cache .ruff_cache
