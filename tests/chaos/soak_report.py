"""What a soak run came to: how memory, open files and threads of each process moved, in numbers and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

Sample: TypeAlias = dict[str, Any]
Point: TypeAlias = tuple[float, float]
"""A minute, and a figure."""

MEASURES = ("rss", "pss", "uss", "malloc used", "malloc free", "arrow", "objects", "files", "threads")
JUDGED, SHOWN = ("rss",), ("rss", "uss")
"""What a process keeps is in its RSS, whether it is its own or shared. USS also rises where another process that had
the same pages ends, so it is shown and not judged."""
FEWEST = 6
"""Samples of the last half; fewer say nothing."""

INTRODUCTION = """\
Written by `make soak`. Real jobs with two workers each read from a local Hub, epoch after epoch, at an even pace, and
save a state now and then. A thread in each process writes down every few seconds what the process takes: RSS (all of
its pages), PSS (shared ones divided among those who share them), USS (its own; it also rises when another process that
had the same pages ends), what malloc has in use and keeps free, the bytes of pyarrow's pool, Python's objects, open
files and threads. Workers that are fresh in each epoch are compared at equal age: the line through them says whether
each generation begins or ends larger than the one before.

Slopes are of the straight line through the last half of the time. Growth is from the middle value between a quarter
and 45 % of the time to that of the last fifth."""


@dataclass(frozen=True)
class Limits:
    slope: float
    """MB a minute."""
    growth: float
    """MB."""
    counts: int = 16
    """Open files or threads more."""


@dataclass(frozen=True)
class Series:
    """One process over time, or the fresh workers of a job, one after the other."""

    job: str
    name: str
    samples: list[tuple[float, Sample]]
    """Each with its minute."""

    def points(self, measure: str) -> list[Point]:
        return [(minute, sample[measure]) for minute, sample in self.samples if measure in sample]


# --- lines through points


def slope(points: Sequence[Point]) -> float:
    """Of the straight line with the least squares: figures a minute. 0 where there is no line."""
    if not points:
        return 0.0
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0


def between(points: Sequence[Point], first: float, last: float) -> list[Point]:
    """Those of a part of the time, in shares of it: 0 is the first point, 1 the last."""
    if not points:
        return []
    start, end = points[0][0], points[-1][0]
    low, high = start + first * (end - start), start + last * (end - start)
    return [point for point in points if low <= point[0] <= high]


def growth(points: Sequence[Point]) -> float:
    """From the middle value of an early part, after the start, to that of the last part."""
    early, late = between(points, 0.25, 0.45), between(points, 0.8, 1)
    return median(y for _, y in late) - median(y for _, y in early) if early and late else 0.0


# --- from samples to series


def series_of(samples: Iterable[Sample], stay: dict[str, bool]) -> list[Series]:
    """`stay`: the names of the jobs, and whether their workers stay."""
    found: dict[str, dict[str, dict[int, list[Sample]]]] = {job: {"trainer": {}, "worker": {}} for job in stay}
    for sample in samples:
        found[sample["job"]][sample["role"]].setdefault(sample["pid"], []).append(sample)
    series: list[Series] = []
    for job, roles in found.items():
        if not roles["trainer"]:
            continue
        begun = min(sample["at"] for of in roles["trainer"].values() for sample in of)
        series += [Series(job, "trainer", _by(own, "at", begun)) for own in roles["trainer"].values()]
        workers = list(roles["worker"].values())
        if stay[job]:
            series += [Series(job, f"worker {n}", _by(own, "at", begun)) for n, own in enumerate(workers, 1)]
        elif workers:
            age, same = at_equal_age(workers)
            series.append(Series(job, f"{len(same)} workers at the age of {age:.0f} s", _by(same, "born", begun)))
    return series


def at_equal_age(workers: Sequence[Sequence[Sample]]) -> tuple[float, list[Sample]]:
    """An age that three of four workers reached, and the sample of each of these next to it."""
    last = sorted(own[-1]["at"] - own[-1]["born"] for own in workers)
    age = last[len(last) // 4]
    old = [own for own in workers if own[-1]["at"] - own[-1]["born"] >= age]
    return age, [min(own, key=lambda sample: abs(sample["at"] - sample["born"] - age)) for own in old]


def _by(samples: Iterable[Sample], key: str, begun: float) -> list[tuple[float, Sample]]:
    return sorted((((sample[key] - begun) / 60, sample) for sample in samples), key=lambda one: one[0])


# --- figures


def figures(series: Series) -> dict[str, Any]:
    found: dict[str, Any] = {"job": series.job, "process": series.name, "samples": len(series.samples)}
    found["minutes"] = round(series.samples[-1][0] - series.samples[0][0], 2)
    for measure in MEASURES:
        if points := series.points(measure):
            found[measure] = {
                "first": round(points[0][1], 1),
                "last": round(points[-1][1], 1),
                "most": round(max(y for _, y in points), 1),
                "growth": round(growth(points), 2),
                "slope": round(slope(between(points, 0.5, 1)), 3),
            }
    return found


def problems_of(series: Series, limits: Limits) -> list[str]:
    """What rises beyond the limits. A line that is too short to say is a problem, too."""
    name = f"{series.job}: {series.name}"
    late = between(series.points("rss"), 0.5, 1)
    if len(late) < FEWEST:
        return [
            f"{name}: {len(late)} samples in the last half say nothing; at least {FEWEST} are needed: run it longer"
        ]
    found = []
    for measure in JUDGED:
        points = series.points(measure)
        rise, more = slope(between(points, 0.5, 1)), growth(points)
        if rise > limits.slope or more > limits.growth:
            found.append(
                f"{name}: {measure} rises by {rise:.2f} MB a minute (limit {limits.slope:g}), and grew by "
                f"{more:.1f} MB (limit {limits.growth:g})"
            )
    for measure in ("files", "threads"):
        more = growth(series.points(measure))
        if more > limits.counts:
            found.append(f"{name}: {more:.0f} more {measure} than at the start (limit {limits.counts})")
    return found


def page(report: dict[str, Any]) -> str:
    """For people."""
    run = report["run"]
    lines = [
        "# Soak: what hours of real jobs take of the machine",
        "",
        INTRODUCTION,
        "",
        f"{run['minutes']:g} minutes with the package whose hash (`git rev-parse HEAD:headrace`) begins with "
        f"{run['code']}, a sample every {run['every']:g} s, a pause of "
        f"{run['pause']:g} s after each step. Limits: {run['slope']:g} MB a minute, and {run['growth']:g} MB in all, "
        f"for {' and '.join(name.upper() for name in JUDGED)} of each line.",
        "",
        "| job | steps | epochs |",
        "|---|---|---|",
        *(f"| {one['job']} | {one['steps']:,} | {one['epochs']:,} |" for one in report["jobs"]),
        "",
        "Slopes in MB a minute (objects: a minute), growth in MB:",
        "",
        "| job | process | minutes | samples | RSS | RSS slope | RSS growth | USS slope | USS growth | PSS slope "
        "| malloc in use slope | malloc free slope | pyarrow slope | objects slope | files | threads |",
        "|---|---|" + "---|" * 14,
        *(_row(one) for one in report["lines"]),
        "",
        "Problems:" if report["problems"] else "Nothing rises beyond the limits.",
        *(["", *(f"- {problem}" for problem in report["problems"])] if report["problems"] else []),
    ]
    return "\n".join(lines) + "\n"


def _row(line: dict[str, Any]) -> str:
    def of(measure: str, figure: str) -> str:
        return f"{line[measure][figure]:,g}" if measure in line else "-"

    rss = f"{of('rss', 'first')} → {of('rss', 'last')} MB"
    judged = [of(measure, figure) for measure in SHOWN for figure in ("slope", "growth")]
    slopes = [of(measure, "slope") for measure in ("pss", "malloc used", "malloc free", "arrow", "objects")]
    counts = [f"{of(measure, 'first')} → {of(measure, 'last')}" for measure in ("files", "threads")]
    cells = [line["job"], line["process"], f"{line['minutes']:g}", str(line["samples"]), rss, *judged, *slopes, *counts]
    return f"| {' | '.join(cells)} |"
