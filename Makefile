# Every target does its own set-up: a virtual environment and the pinned versions of constraints.txt.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BASE   := $(VENV)/.installed-base
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: demo test check test-latest table picture docs clean

demo: $(BASE)             ## the whole story in minutes, without data: demo/report.html (DEMO_OPTIONS=--quick: in seconds)
	$(BIN)/wellcond demo $(DEMO_OPTIONS)

test: $(STAMP)            ## the whole suite (GPU tests skip where there is no GPU)
	$(PYTEST)

check: $(STAMP) docs      ## lint, format, types, doctests, the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --doctest-modules src

test-latest:              ## the suite on the newest versions that pip finds
	$(MAKE) test VENV=.venv-latest CONSTRAINTS= PIP_FLAGS=--upgrade

table: $(STAMP)           ## README's results from results/*.json
	$(BIN)/python -m wellcond.bench.table

picture: $(STAMP)         ## README's picture, from computed numbers
	$(BIN)/python docs/kappa.py

docs: $(STAMP)            ## the site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # not --quiet: it would not count the warnings
	@echo "open site/index.html; to search in it, $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

clean:
	rm -rf $(VENV) .venv-latest demo site

CONSTRAINTS ?= -c constraints.txt

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)

define ENVIRONMENT
@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "wellcond needs Python 3.11 or newer and found %d.%d; say make PYTHON=python3.11" % v[:2])'
$(PYTHON) -m venv $(VENV)
endef

$(BASE): pyproject.toml constraints.txt
	$(ENVIRONMENT)
	$(PIP) -e . $(CONSTRAINTS)
	@touch $@

$(STAMP): pyproject.toml constraints.txt  # not after $(BASE): pip would look for everything twice
	$(ENVIRONMENT)
	$(PIP) -e '.[dev]' $(CONSTRAINTS)
	@touch $(BASE) $@
