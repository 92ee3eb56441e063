PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test venv lint unit bench clean

demo: venv  ## the main job: stream, be killed, resume, show the ledger
	$(BIN)/headrace demo

test: venv lint unit  ## lint, then every test

venv: $(STAMP)  ## the environment alone

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,torch]'
	$(BIN)/python -c "import importlib.metadata as m, sys; bad = sorted(d.name for d in m.distributions() if d.name.startswith('nvidia-')); sys.exit(f'CUDA packages came down: {bad}' if bad else 0)"
	touch $(STAMP)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: venv
	$(BIN)/python -m pytest

bench: venv  ## speed against the peers and the physical limit; writes benchmarks/results
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/rows.py
	$(BIN)/python benchmarks/shuffle.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
