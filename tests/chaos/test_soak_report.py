"""The figures of a soak run are right: slopes, growth, workers at equal age, and what is a problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from soak_report import (
    Limits,
    Sample,
    Series,
    at_equal_age,
    between,
    figures,
    growth,
    page,
    problems_of,
    series_of,
    slope,
)

LIMITS = Limits(slope=0.5, growth=64)


def line(figure: Callable[[int], float], *, minutes: int = 100, files: Callable[[int], int] = lambda n: 9) -> Series:
    """A process that is looked at every minute."""
    samples = [{"rss": figure(n), "uss": 50.0, "files": files(n), "threads": 4} for n in range(minutes)]
    return Series("job", "trainer", list(zip(map(float, range(minutes)), samples, strict=True)))


def test_a_slope_is_that_of_the_line_with_the_least_squares() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert slope([(0, 5), (10, 0)]) == -0.5
    assert slope([(0, 0), (1, 0), (4, 4)]) == pytest.approx(28 / 26)  # its ends alone would say 1
    assert slope([(0, 0), (1, 3), (2, 0), (3, 3)]) == pytest.approx(0.6)
    assert slope([(1, 7), (4, 7), (9, 7)]) == 0


@pytest.mark.parametrize("points", [[], [(3.0, 4.0)], [(3.0, 4.0), (3.0, 9.0)]])
def test_without_a_line_the_slope_is_0(points: list[tuple[float, float]]) -> None:
    assert slope(points) == 0


def test_parts_of_the_time_are_counted_from_the_first_point_to_the_last() -> None:
    points = [(float(x), 0.0) for x in range(10, 21)]
    assert between(points, 0.5, 1) == points[5:]
    assert between(points, 0.25, 0.45) == [(13.0, 0.0), (14.0, 0.0)]
    assert between([], 0, 1) == []


def test_growth_is_between_middle_values_and_leaves_the_start_out() -> None:
    points = [(float(n), 1000.0 * (n < 25) + (7.0 if n > 60 else 4.0)) for n in range(101)]
    assert growth(points) == 3
    points[90] = (90.0, 5000.0)  # one peak
    assert growth(points) == 3
    assert growth([]) == 0


def test_workers_are_compared_at_an_age_that_three_of_four_reached() -> None:
    def worker(born: float, *ages: float) -> list[Sample]:
        return [{"born": born, "at": born + age} for age in ages]

    workers = [worker(0, 5, 10), worker(20, 5, 10, 15, 20), worker(50, 5, 10, 16), worker(70, 5), worker(80, 5, 11, 17)]
    age, same = at_equal_age(workers)
    assert age == 10
    assert [(one["born"], one["at"] - one["born"]) for one in same] == [(0, 10), (20, 10), (50, 10), (80, 11)]


def test_samples_become_a_line_for_each_process_that_stays_and_one_for_all_fresh_ones() -> None:
    def sample(job: str, role: str, pid: int, born: float, at: float) -> Sample:
        return {"job": job, "role": role, "pid": pid, "born": born, "at": at, "rss": 1.0}

    samples = [sample(job, "trainer", 1, 0, at) for job in "ab" for at in (60, 120)]
    samples += [sample("a", "worker", pid, 60, 120) for pid in (2, 3)]
    samples += [sample("b", "worker", pid, 60.0 * pid, 60.0 * pid + 30) for pid in (4, 5, 6)]
    found = series_of(samples, {"a": True, "b": False, "never begun": True})
    assert [(one.job, one.name, [minute for minute, _ in one.samples]) for one in found] == [
        ("a", "trainer", [0, 1]),
        ("a", "worker 1", [1]),
        ("a", "worker 2", [1]),
        ("b", "trainer", [0, 1]),
        ("b", "3 workers at the age of 30 s", [3, 4, 5]),
    ]


@pytest.mark.parametrize(
    ("series", "problem"),
    [
        (line(lambda n: 300), None),
        (line(lambda n: 300 + 0.4 * n), None),
        (line(lambda n: 300 + min(n, 20) * 30), None),  # it fills at the start, and is level then
        (line(lambda n: 300 + 10 * (n % 7)), None),  # up and down
        (line(lambda n: 300 + 0.6 * n), "rises by 0.60 MB a minute (limit 0.5), and grew by 33.0 MB (limit 64)"),
        (line(lambda n: 300 + (70 if n > 48 else 0)), "rises by 0.00 MB a minute (limit 0.5), and grew by 70.0 MB"),
        (line(lambda n: 300, files=lambda n: 9 + n), "more files than at the start (limit 16)"),
        (line(lambda n: 300, minutes=8), "4 samples in the last half say nothing"),
    ],
)
def test_a_problem_is_what_rises_beyond_a_limit_or_cannot_be_told(series: Series, problem: str | None) -> None:
    found = problems_of(series, LIMITS)
    assert len(found) == (problem is not None), found
    assert problem is None or problem in found[0]


def test_pages_that_are_no_longer_shared_are_not_a_problem() -> None:
    series = line(lambda n: 300)
    for minute, sample in series.samples:
        sample["uss"] = 50 + (80 if minute > 60 else 0)
    assert not problems_of(series, LIMITS)
    assert figures(series)["uss"]["growth"] == 80


def test_a_page_has_a_row_for_each_line_and_names_every_problem() -> None:
    series = line(lambda n: 300 + 0.6 * n)
    run = {"minutes": 100, "code": "abc", "every": 60, "pause": 0.1, "slope": 0.5, "growth": 64}
    report: dict[str, Any] = {
        "run": run,
        "jobs": [{"job": "job", "steps": 1000, "epochs": 3}],
        "lines": [figures(series)],
        "problems": problems_of(series, LIMITS),
    }
    found = page(report)
    assert "| job | trainer | 99 | 100 | 300 → 359.4 MB | 0.6 | 33 | 0 | 0 |" in found
    assert "- job: trainer: rss rises by 0.60 MB a minute" in found
    assert "Nothing rises beyond the limits." in page({**report, "problems": []})
