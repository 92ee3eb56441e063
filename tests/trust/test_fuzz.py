"""Spoiled inputs of every kind that is read. `HEADRACE_FUZZ=50` tries fifty times as many, and takes a new seed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fuzzing
import pytest
from fuzzing import TARGETS

TIMES = int(os.environ.get("HEADRACE_FUZZ", "1"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "0")) or (random.SystemRandom().randrange(1 << 32) if TIMES > 1 else 20)


@pytest.mark.timeout(120 * TIMES)
@pytest.mark.parametrize("name", TARGETS)
def test_what_is_spoiled_gives_a_right_value_or_an_error_of_the_family(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    examples = target.examples * TIMES
    again = f"HEADRACE_FUZZ_SEED={SEED} HEADRACE_FUZZ={TIMES}"
    if not target.is_native:
        found = fuzzing.fuzz(name, examples, SEED, tmp_path)
    else:
        command = [sys.executable, fuzzing.__file__, name, str(examples), str(SEED), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110 * TIMES, check=False)
        died = f"; it died of {tmp_path / 'last'}" if done.returncode < 0 else ""
        assert done.returncode == 0, f"{again}{died}\n{done.stdout}{done.stderr}"
        found = Counter(json.loads(done.stdout))
    assert sum(found.values()) >= examples // 2, found
    assert found["error"] > examples // 20, found
    assert found["value"] > examples // 50, found
