"""What many chaos runs came to, in numbers and as a page."""

from __future__ import annotations

from collections import Counter
from typing import Any

SUMS = (
    "kills",
    "processes",
    "with torch workers",
    "launches",
    "resumes",
    "topology changes",
    "re-deals",
    "worker deaths noticed",
    "samples",
    "samples that count",
    "torn lines",
    "checkpoints refused",
    "seconds",
)

INTRODUCTION = """\
Written by `make chaos`. Real processes: a local Hub, one to three ranks
with up to two workers each, one cache with a limit. Ranks, workers and whole runs are killed by SIGKILL at random
moments, stopped, served by a bad server, given a full disk, rotten cache files, torn checkpoints and a second job
beside them, and started again with other numbers of ranks and workers. Half of the runs have locks that do not lock.
After each run the ledgers are checked against the data set's own manifest: every row (every token, every frame) once
per epoch, lost steps given again as they were, the order of a run that nobody disturbed, all ranks in step, every
checksum right; and no process, thread, partial file or shared memory is left."""


def totals(done: list[dict[str, Any]]) -> dict[str, Any]:
    actions = Counter[str]()
    for one in done:
        actions.update(one["actions"])
    found: dict[str, Any] = {"runs": len(done), **{name: sum(one[name] for one in done) for name in SUMS}}
    found["seconds"] = round(found["seconds"], 1)
    firsts = sorted(one["seconds to the first sample"][0] for one in done if one["seconds to the first sample"])
    return {
        **found,
        "actions": dict(actions),
        "errors that ended a launch": sum(len(one["errors that ended a launch"]) for one in done),
        "median seconds to the first sample after a restart": firsts[len(firsts) // 2] if firsts else None,
        "requests": sum(one["hub"]["requests"] for one in done),
        "runs with problems": sum(1 for one in done if one["problems"]),
        "problems": sum(len(one["problems"]) for one in done),
    }


def summary(done: list[dict[str, Any]]) -> str:
    """A page for people."""
    all_of = totals(done)
    seeds = ", ".join(dict.fromkeys(str(one["plan"]["seed"]) for one in done))
    code = ", ".join(dict.fromkeys(one["code"] for one in done))
    lines = [
        "# Chaos: what was done to runs, and what came of it",
        "",
        INTRODUCTION,
        "",
        f"Seeds {seeds}, with the package whose hash (`git rev-parse HEAD:headrace`) begins with {code}.",
        "",
        "| measure | figure |",
        "|---|---|",
    ]
    for name, value in all_of.items():
        if name == "actions":
            value = ", ".join(
                f"{count:,} {action}" for action, count in sorted(value.items(), key=lambda item: -item[1])
            )
        lines.append(f"| {name} | {value:,} |" if isinstance(value, int | float) else f"| {name} | {value} |")
    lines += [
        "",
        "| recipe | runs | kills | resumes | topology changes | samples that count | problems |",
        "|---|" + "---|" * 6,
    ]
    for kind in dict.fromkeys(one["plan"]["kind"] for one in done):
        own = totals([one for one in done if one["plan"]["kind"] == kind])
        names = ("runs", "kills", "resumes", "topology changes", "samples that count", "problems")
        lines.append(f"| {kind} | " + " | ".join(f"{own[name]:,}" for name in names) + " |")
    problems = [f"- run {one['number']}: {problem}" for one in done for problem in one["problems"]]
    if problems:
        lines += ["", "Problems:", "", *problems]
    return "\n".join(lines) + "\n"
