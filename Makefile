PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := .venv-bench
OLDEST := .venv-oldest .venv-oldest-lerobot

.PHONY: demo test test-oldest tools venv lint unit bench mutants faults chaos soak clean

demo: venv  ## the main job: train a small model, be killed, resume; two loss curves that lie on each other
	$(BIN)/headrace demo

test: venv tools lint unit  ## lint, then every test

tools:  ## what some tests need beside Python: strace kills at system calls, unshare makes small disks
	@command -v strace > /dev/null && command -v unshare > /dev/null \
	|| { apt-get update -qq && apt-get install -y -qq --no-install-recommends strace util-linux; } > /dev/null 2>&1 \
	|| echo "strace or unshare is missing and could not be installed; the tests that need them will say so"

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

unit: venv  ## every test, two processes side by side
	$(BIN)/python tests/side_by_side.py

test-oldest: tools $(OLDEST:=/.installed)  ## the tests that versions of packages matter to, on the oldest ones and on LeRobot's
	for venv in $(OLDEST); do echo "=== $$venv"; $$venv/bin/python tests/oldest.py || exit 1; done

.venv-oldest/.installed: requirements/oldest.txt
.venv-oldest-lerobot/.installed: requirements/lerobot.txt
$(OLDEST:=/.installed): pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -c $(filter requirements/%,$^) -e '.[dev,torch,demo]'
	$(@D)/bin/pip check
	touch $@

mutants: venv  ## plants bugs that loaders have had, or could have, in a copy of the tree, one at a time; each must turn a test red
	$(BIN)/python tests/trust/plant.py $(or $(ARGS),--report docs/reliability/mutants.md)

faults: venv  ## the tests of docs/reliability with many more repetitions, inputs and random walks; about an hour
	HEADRACE_FUZZ=40 HEADRACE_MACHINES=20 HEADRACE_FAULTS=10 $(BIN)/python -m pytest tests/trust tests/faults
	$(BIN)/python -m pytest tests/test_crash_points.py tests/test_processes.py tests/test_worker_death.py tests/test_cache_shared.py

chaos: venv tools  ## 1,000 kills of real runs, all recipes, about two hours; ARGS="--seed 7 --run 12" for one of them again
	$(BIN)/python tests/chaos/chaos.py $(or $(ARGS),--kills 1000 --report docs/reliability/chaos.json --summary docs/reliability/chaos.md)

soak: venv  ## real jobs for two hours, and whether memory, open files or threads rise; ARGS="--minutes 20 --jobs robot-stay"
	$(BIN)/python tests/chaos/soak.py $(or $(ARGS),--minutes 120 --report docs/reliability/soak.json --summary docs/reliability/soak.md)

bench: $(BENCH)/.installed  ## speed against the peers and the physical limit; writes benchmarks/results
	$(BENCH)/bin/python benchmarks/rows.py
	$(BENCH)/bin/python benchmarks/shuffle.py
	$(BENCH)/bin/python benchmarks/tokens.py
	$(BENCH)/bin/python benchmarks/resume.py
	$(BENCH)/bin/python benchmarks/images.py
	$(BENCH)/bin/python benchmarks/robot.py

# The peers get an environment of their own: they bring packages along that the product must not see.
$(BENCH)/.installed: pyproject.toml constraints.txt
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench,torch]'
	touch $(BENCH)/.installed

clean:
	rm -rf $(VENV) $(BENCH) $(OLDEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis
