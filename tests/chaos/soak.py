"""Soak: real jobs for hours, side by side, and what each of their processes takes; nothing may rise for ever.

    python tests/chaos/soak.py --minutes 120                   the long form, all jobs
    python tests/chaos/soak.py --minutes 20 --jobs robot-stay  one job
    python tests/chaos/soak.py --again FOLDER                  the report of a run that was, or that still runs

The exit status is 1 where memory, open files or threads rise beyond the limits, and the problem is named.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from chaos_data import tokenizer_of
from chaos_hub import HubProcess
from chaos_recipes import Job
from package_hash import package_hash
from soak_jobs import JOBS, data_of
from soak_report import Limits, figures, page, problems_of, series_of

TOLD = 60.0
"""Seconds between two lines of progress, and two reports."""


def asked(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0, help="how long each job runs from its first batch on")
    parser.add_argument("--jobs", default=",".join(JOBS), help="names of jobs, with commas")
    parser.add_argument(
        "--in-turn", action="store_true", help="one job after the other, each with its part of the time"
    )
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each step")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--most-slope", type=float, default=0.5, help="MB a minute over the last half")
    parser.add_argument("--most-growth", type=float, default=64.0, help="MB in all, after the start")
    parser.add_argument("--small", action="store_true", help="with little data")
    parser.add_argument("--leak", choices=("trainer", "worker"), default=None, help="plant a leak")
    parser.add_argument("--leak-mb", type=float, default=1.0, help="MB that a planted leak keeps of each batch")
    parser.add_argument("--folder", type=Path, default=None, help="where everything is kept; a new one by default")
    parser.add_argument("--again", type=Path, default=None, help="the folder of a run to write the report of")
    parser.add_argument("--report", type=Path, default=None, help="a JSON file")
    parser.add_argument("--summary", type=Path, default=None, help="a markdown file")
    return parser.parse_args(given)


class Soak:
    """A run: its folder, its processes, its report."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder, self.samples = given, folder, folder / "samples.jsonl"
        self.names: list[str] = given.jobs.split(",")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.failed: list[str] = []

    def run(self) -> None:
        home = {**os.environ, "HF_HOME": str(self.folder / "home")}
        seconds = 60 * self.given.minutes
        with HubProcess(home, self.folder / "hub.txt") as hub:
            for kind in dict.fromkeys(JOBS[name].kind for name in self.names):
                data = data_of(kind, self.folder / "data", small=self.given.small)
                for branch in ("main", "refs/tags/v3.0"):
                    hub.push(data.repo, data.folder, branch)
            try:
                if self.given.in_turn:
                    for name in self.names:
                        self._start([name], hub, seconds / len(self.names))
                        self._wait(hub)
                else:
                    self._start(self.names, hub, seconds)
                    self._wait(hub)
            finally:
                for process in self.running.values():
                    process.kill()

    def _start(self, names: Sequence[str], hub: HubProcess, seconds: float) -> None:
        for name in names:
            task = self.folder / f"{name}.task.json"
            task.write_text(json.dumps(self._task(name, seconds)))
            env = {
                **os.environ,
                "HF_ENDPOINT": hub.endpoint,
                "HF_HOME": str(self.folder / "home"),
                "OMP_NUM_THREADS": "1",
            }
            script = str(Path(__file__).with_name("soak_trainer.py"))
            with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
                self.running[name] = subprocess.Popen(
                    [sys.executable, script, str(task)], env=env, stdout=out, stderr=err
                )

    def _task(self, name: str, seconds: float) -> dict[str, Any]:
        soaked, data = JOBS[name], self.folder / "data"
        job = Job(
            kind=soaked.kind,
            folder=str(self.folder),
            cache=str(self.folder / "caches" / name),
            tokenizer=str(tokenizer_of(data)),
            seed=0,
            ranks=1,
            workers=2,
            lanes=2,
            launch=0,
            rows=len(data_of(soaked.kind, data, small=self.given.small).manifest),
            pause=self.given.pause,
            stay=soaked.stay,
        )
        given = self.given
        leak = {"leak": given.leak, "leak_mb": given.leak_mb}
        where = {"name": name, "samples": str(self.samples), "every": given.every, "seconds": seconds}
        return {"job": dataclasses.asdict(job), **where, **leak}

    def _wait(self, hub: HubProcess) -> None:
        """Until all have ended; a line and a report every minute."""
        told = begun = time.monotonic()
        while self.running:
            time.sleep(0.2)
            for name, process in list(self.running.items()):
                if process.poll() is not None:
                    del self.running[name]
                    if process.returncode:
                        last = (self.folder / f"{name}.err").read_text()[-2000:]
                        self.failed.append(f"{name}: it ended with {process.returncode}: {last}")
            if time.monotonic() - told > TOLD:
                told = time.monotonic()
                hub.count()  # which also lets the Hub forget its requests
                problems = len(self.write()["problems"])
                print(f"{(told - begun) / 60:6.1f} min: {', '.join(self.running)}; {problems} problems", flush=True)

    # --- the report

    def write(self) -> dict[str, Any]:
        found = self.report()
        for path, text in ((self.given.report, json.dumps(found, indent=1) + "\n"), (self.given.summary, page(found))):
            if path is not None:
                path.write_text(text)
        return found

    def report(self) -> dict[str, Any]:
        given = self.given
        limits = Limits(slope=given.most_slope, growth=given.most_growth)
        lines = self.samples.read_text().splitlines() if self.samples.exists() else []
        series = series_of(map(json.loads, lines), {name: JOBS[name].stay for name in self.names})
        quiet = set(self.names) - {one.job for one in series}
        return {
            "run": {
                "minutes": given.minutes,
                "every": given.every,
                "pause": given.pause,
                "slope": limits.slope,
                "growth": limits.growth,
                "code": given.code,
            },
            "jobs": [{"job": name, **self._done(name)} for name in self.names],
            "lines": [figures(one) for one in series],
            "problems": [
                *self.failed,
                *(f"{name}: it wrote no sample" for name in sorted(quiet)),
                *(problem for one in series for problem in problems_of(one, limits)),
            ],
        }

    def _done(self, name: str) -> dict[str, int]:
        """What a job says at its end; nothing before."""
        out = self.folder / f"{name}.out"
        told = out.read_text().splitlines() if out.exists() else []
        found: dict[str, int] = json.loads(told[-1]) if told else {"steps": 0, "epochs": 0}
        return found


def main() -> int:
    given = asked()
    folder: Path = given.again or given.folder or Path(tempfile.mkdtemp(prefix="headrace-soak-"))
    kept = folder / "asked.json"
    if given.again:
        wanted = {"report": given.report, "summary": given.summary}
        soak = Soak(argparse.Namespace(**{**json.loads(kept.read_text()), **wanted}), folder.resolve())
    else:
        folder.mkdir(parents=True)
        plain = {name: value for name, value in vars(given).items() if not isinstance(value, Path)}
        kept.write_text(json.dumps({**plain, "code": package_hash()}))
        given.code = package_hash()
        soak = Soak(given, folder.resolve())
        print(f"soak: {', '.join(soak.names)} for {given.minutes:g} minutes in {folder}", flush=True)
        soak.run()
    found = soak.write()
    for line in found["lines"]:
        rise = ", ".join(f"{name} {line[name]['slope']:+.2f} MB/min" for name in ("rss", "pss", "uss"))
        print(f"{line['job']}: {line['process']}: {rise}")
    for problem in found["problems"]:
        print(f"PROBLEM: {problem}")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
