"""Chaos: real runs under SIGKILL, SIGSTOP, a bad server, a full disk and rot; every row must still come exactly once.

    python tests/chaos/chaos.py --short                     the form that every test run has
    python tests/chaos/chaos.py --seed 7 --kills 1000       the long form
    python tests/chaos/chaos.py --seed 7 --run 12           one run of it again
    python tests/chaos/chaos.py --join A.json B.json ...    one report of several, with --report and --summary

The same seed draws the same data, recipes, topologies and harm; what the scheduler makes of them is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import chaos_host as host
from chaos_data import KINDS, make_data, tokenizer_of
from chaos_fleet import Places
from chaos_hub import HubProcess
from chaos_plan import SHORT, Plan, plan_of
from chaos_report import summary, totals
from chaos_run import Campaign
from package_hash import package_hash

DISK_BYTES = 96 << 20


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kills", type=int, default=None, help="go on until there were so many")
    parser.add_argument("--minutes", type=float, default=None, help="begin no new run after so long")
    parser.add_argument("--short", action="store_true", help="the five short runs")
    parser.add_argument("--run", type=int, default=None, help="only the run of this number")
    parser.add_argument("--only", choices=KINDS, default=None, help="only runs of this kind")
    parser.add_argument("--folder", type=Path, default=None, help="where everything is kept; a new one by default")
    parser.add_argument("--report", type=Path, default=None, help="a JSON file")
    parser.add_argument("--summary", type=Path, default=None, help="a markdown file")
    parser.add_argument("--join", type=Path, nargs="+", default=None, help="reports to make one of; nothing is run")
    given = parser.parse_args()
    if given.seed is None:
        given.seed = secrets.randbelow(1_000_000)
        sys.argv += ["--seed", str(given.seed)]
    if given.folder is None:
        given.folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
        sys.argv += ["--folder", str(given.folder)]
    return given


def plans(given: argparse.Namespace, done: list[dict[str, Any]]) -> Iterator[Plan]:
    """The runs to come, until there were enough."""
    if given.run is not None:
        yield plan_of(given.seed, given.run, short=given.short, kind=given.only)
        return
    began = time.monotonic()
    for number in range(len(SHORT)) if given.short else count():
        if given.minutes is not None and time.monotonic() - began > given.minutes * 60:
            return
        if given.kills is not None and is_enough(done, given.kills):
            return
        plan = plan_of(given.seed, number, short=given.short)
        if given.only in (None, plan.kind):
            yield plan
        if not given.short and given.kills is None and given.minutes is None:
            return


def is_enough(done: list[dict[str, Any]], kills: int) -> bool:
    """So many, a fifth of them among torch workers."""
    found = totals(done)
    return bool(found["kills"] >= kills and 5 * found["with torch workers"] >= kills)


def main() -> int:
    given = asked()
    if given.join:
        done = [run for path in given.join for run in json.loads(path.read_text())["runs"]]
        write(done, given)
        print(json.dumps(totals(done), indent=2))
        return 1 if any(one["problems"] for one in done) else 0
    return campaigns(given)


def campaigns(given: argparse.Namespace) -> int:
    folder: Path = given.folder.resolve()
    if host.INSIDE not in os.environ and host.has_namespaces():
        host.go_inside(folder / "disk", DISK_BYTES)
    print(f"CHAOS_SEED={given.seed}", flush=True)
    done: list[dict[str, Any]] = []
    env = {**os.environ, "HF_HOME": str(folder / "home")}
    (folder / "temporary").mkdir(parents=True, exist_ok=True)
    (folder / "disk").mkdir(exist_ok=True)
    with HubProcess(env, folder / "hub.txt") as hub:
        for plan in plans(given, done):
            print(plan, flush=True)
            data = make_data(plan.kind, folder / "data")
            for branch in ("main", "refs/tags/v3.0"):
                hub.push(data.repo, data.folder, branch)
            places = Places(
                folder=folder / f"run-{plan.number:04d}",
                cache=folder / "disk" / f"{plan.number:04d}",
                tokenizer=tokenizer_of(folder / "data"),
                temporary=folder / "temporary",
            )
            done.append({**Campaign(plan, data, hub, places).run(), "code": package_hash()})
            tell(done, given)
            shutil.rmtree(places.cache, ignore_errors=True)
            if not done[-1]["problems"]:
                shutil.rmtree(places.folder, ignore_errors=True)
    failed = [one for one in done if one["problems"]]
    if not failed:
        shutil.rmtree(folder / "data", ignore_errors=True)
    print(json.dumps(totals(done), indent=2))
    return 1 if failed or not done else 0


def tell(done: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """After each run, so that a run that is cut off has its report."""
    last = done[-1]
    said = [
        f"{last[name]} {name}" for name in ("kills", "resumes", "topology changes", "samples that count", "seconds")
    ]
    print("  " + ", ".join(said), flush=True)
    for problem in last["problems"]:
        print(f"  FAILED: {problem}", flush=True)
    if last["problems"]:
        form = " --short" if given.short else ""
        print(f"  kept in {given.folder}/run-{last['number']:04d}; again: ", end="")
        print(f"python tests/chaos/chaos.py{form} --seed {given.seed} --run {last['number']}", flush=True)
    write(done, given)


def write(done: list[dict[str, Any]], given: argparse.Namespace) -> None:
    if given.report is not None:
        given.report.write_text(json.dumps({"totals": totals(done), "runs": done}, indent=1) + "\n")
    if given.summary is not None:
        given.summary.write_text(summary(done))


if __name__ == "__main__":
    sys.exit(main())
