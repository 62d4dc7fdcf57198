# Every target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
VENV   ?= .venv
# Written last, so an interrupted installation is repeated and not mistaken for a finished one.
STAMP  := $(VENV)/.installed

DEMO   = $(VENV)/bin/python -m cbp_ray reproduce fig6
PYTEST = $(VENV)/bin/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder
PIP    = $(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt

# Compiled modules are kept even where the environment forbids it, as many containers do: imports take a third of the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check bench clean

help: ## show this list
	@echo "Usage: make TARGET [PYTHON=python3.11]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(STAMP) ## set up if needed, then figure 6 of the paper at full scale
	@$(DEMO)

test: $(STAMP) ## set up if needed, then run the tests and the checks
	@$(PYTEST) -m "not long and not slow and not soak"
	@$(MAKE) --no-print-directory check

test-all: $(STAMP) ## the same with the few tests that take most of a minute each
	@$(PYTEST) -m "not soak"
	@$(MAKE) --no-print-directory check

check: $(STAMP) ## ruff (rules and format) and mypy (strict)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

bench: $(STAMP) ## set up if needed, then the benchmarks of generate-and-test and of the Bit-Flipping kernel
	@$(VENV)/bin/python -m cbp_ray bench gnt
	@$(VENV)/bin/python -m cbp_ray bench bit-flipping

clean: ## remove the virtual environment, build products and caches (results stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml setup.py constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null || { \
	  echo "make: PYTHON=$(PYTHON) must be Python 3.11 to 3.13, found $$($(PYTHON) --version 2>&1 | head -n 1);" \
	       "install one and run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "Setting up $(VENV) (once, a few minutes)"
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation -e '.[all,dev]'
	@$(VENV)/bin/python -c 'import cbp_ray.sweeps.run, cbp_ray.figures, ray.tune, rllib_ext.engine' # compiles what is used
	@touch $@
