PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := .venv-bench

.PHONY: demo test venv lint unit bench clean

demo: venv  ## the main job: train a small model, be killed, resume; two loss curves that lie on each other
	$(BIN)/headrace demo

test: venv lint unit  ## lint, then every test

venv: $(STAMP)  ## the environment alone

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,torch,demo]'
	$(BIN)/python -c "import importlib.metadata as m, sys; bad = sorted(d.name for d in m.distributions() if d.name.startswith('nvidia-')); sys.exit(f'CUDA packages came down: {bad}' if bad else 0)"
	touch $(STAMP)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: venv
	$(BIN)/python -m pytest

bench: $(BENCH)/.installed  ## speed against the peers and the physical limit; writes benchmarks/results
	$(BENCH)/bin/python benchmarks/rows.py
	$(BENCH)/bin/python benchmarks/shuffle.py
	$(BENCH)/bin/python benchmarks/tokens.py
	$(BENCH)/bin/python benchmarks/resume.py
	$(BENCH)/bin/python benchmarks/images.py

# The peers get an environment of their own: they bring packages along that the product must not see.
$(BENCH)/.installed: pyproject.toml constraints.txt
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench,torch]'
	touch $(BENCH)/.installed

clean:
	rm -rf $(VENV) $(BENCH) .mypy_cache .ruff_cache .pytest_cache .hypothesis
