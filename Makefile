# Everything happens in .venv, inside the checkout. `make` alone lists the targets.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup quickstart figures test browser check format
help:
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /  make \1\t/'

setup: .venv/ready ## make .venv with all that quickstart, tests and checks need

# torch comes first and by itself: with the pinned version there, nothing asks for another build.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[quickstart,language,datasets,tensorboard,onnx,entmax,dev]'
	@touch $@

quickstart: setup ## learn English pronunciation: from data to a model one can ask, in minutes
	$(BIN)/transduce quickstart --out runs/quickstart

figures: setup ## draw the book's figures anew, from the model of quickstart
	$(BIN)/python docs/figures.py runs/quickstart

test: setup ## prove the code
	$(BIN)/pytest -m "not browser"

browser: setup ## look at the pages in Chromium (which must be installed)
	$(BIN)/pytest -m browser

check: setup ## format, lint, types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: setup ## bring the code into the common form
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
