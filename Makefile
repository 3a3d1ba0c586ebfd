# The two commands: `make demo` and `make test`. Both set up all they need in .venv.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready
# Python 3.11 or newer, whatever it is called here.
BASE_PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# One process per core; tests that share a service stay together (tests/conftest.py).
PYTEST_ARGS ?= -n 2 --dist loadgroup
DEMO := tests/cases/c06c_order_inverted_entrypoint_4r/plain

.PHONY: demo test setup lint types quick accuracy reproduce clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(BASE_PYTHON)" || { echo "firstfault needs Python 3.11 or newer with venv" >&2; exit 1; }
	@$(BASE_PYTHON) -c 'import venv, ensurepip' 2>/dev/null || ./.ci/install python
	$(BASE_PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev,s3]'
	@touch $@

demo: setup
	@echo '$$ firstfault diagnose $(DEMO)'
	@$(VENV)/bin/firstfault diagnose $(DEMO) --html demo-report.html
	@echo
	@echo "The same as a page: open demo-report.html"

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

types: setup
	$(VENV)/bin/mypy

# Quick checks first: a typo should fail in seconds, not behind the slow tests.
test: lint types
	$(VENV)/bin/firstfault signatures check
	./.ci/install tests
	$(VENV)/bin/pytest -q $(PYTEST_ARGS)

accuracy: setup
	$(PY) benchmarks/accuracy/run.py

# The two founding failures, live: real torch and DeepSpeed in a venv of their own. Opt-in; see docs/reproduce.md.
LIVE := .venv-reproduce
OLD_DEEPSPEED := $(LIVE)/deepspeed-0.14.4

$(LIVE)/.ready: tests/reproduce/requirements.txt
	$(BASE_PYTHON) -m venv $(LIVE)
	@begun=$$(date +%s); \
	$(LIVE)/bin/pip install --quiet --disable-pip-version-check -r tests/reproduce/requirements.txt && \
	$(LIVE)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --upgrade \
	  --target $(OLD_DEEPSPEED) deepspeed==0.14.4 && echo $$(($$(date +%s) - begun)) > $@

reproduce: setup $(LIVE)/.ready
	$(PY) tests/reproduce/run.py --venv $(LIVE) --old-deepspeed $(OLD_DEEPSPEED) --firstfault $(VENV)/bin/firstfault \
	  --out build/reproduce --record docs/reproduce.md --install-seconds "$$(cat $(LIVE)/.ready)" $(REPRODUCE_ARGS)

clean:
	rm -rf $(VENV) build dist demo-report.html
