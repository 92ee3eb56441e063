"""The tests that versions of other packages matter to, in an environment of old ones (`make test-oldest`).

    .venv-oldest/bin/python tests/oldest.py [options of pytest]

Left out are tests about the files of this repository, and those that repeat one thing very often: they show that
our own code does not lose count, which depends on no package, and `make test` runs them on the newest versions.
"""

from __future__ import annotations

import sys
from pathlib import Path

from side_by_side import TESTS, run

FOLDERS_LEFT_OUT = {
    "chaos": "kills of real runs at random, by the minute",
    "faults": "faults of disks, clocks and processes, again and again",
    "trust": "random walks, simulated machines, and tests about the repository itself",
}
TAKEN = ("test_canary.py", "test_fuzz.py", "test_hostile_data.py")
"""...but these, of what is in files from outside."""
LEFT_OUT = {
    "test_benchmarks.py": "scripts for the environment of benchmarks, which has the newest of everything",
    "test_robot_benchmarks.py": "as above",
    "test_cache_shared.py": "processes that share a cache: files and locks of our own",
    "test_crash_points.py": "a kill at every system call of our own writing",
    "test_demo.py": "trains for minutes what test_train_text.py trains for seconds",
    "test_package.py": "what a build of the package holds",
    "test_public.py": "rules about our own source text",
    "test_resume_everywhere.py": "fifty thousand resumes in memory",
    "test_runner.py": "the runner of the tests",
    "test_synth_right.py": "whether made-up data is right, for which no package is needed",
    "test_topology.py": "thousands of changes of topology in memory",
    "test_worker_death.py": "processes that are killed",
}


def chosen() -> list[Path]:
    folders = {TESTS / name for name in FOLDERS_LEFT_OUT}
    return sorted(
        path
        for path in TESTS.rglob("test_*.py")
        if path.name not in LEFT_OUT and (path.name in TAKEN or not folders & set(path.parents))
    )


if __name__ == "__main__":
    sys.exit(run(chosen(), sys.argv[1:]))
