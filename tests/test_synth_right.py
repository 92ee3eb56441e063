"""What made-up rows say is so: worked out again here, by other means, from their texts."""

from __future__ import annotations

import ast
import contextlib
import io
import math
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from headrace import synth

ROWS = 240


def rows_of(kind: str, count: int = ROWS, seed: int = 0) -> list[dict[str, Any]]:
    return [synth.row(kind, i, seed) for i in range(count)]


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


# --- sums

NUMBER = r"\(*\d+(?:\.\d+)?\)*"
SUM = rf"{NUMBER}(?:\s?[-+×÷/]\s?{NUMBER})*"
EQUATION = re.compile(rf"(?<![\w.]) ?({SUM}) = ({SUM})")


def worth(text: str) -> Fraction:
    python = re.sub(r"\d+(?:\.\d+)?", r"F('\g<0>')", text.replace("×", "*").replace("÷", "/"))
    return Fraction(eval(python, {"F": Fraction}))  # noqa: S307 - our own rows


@pytest.mark.parametrize("seed", [0, 1])
def test_every_equation_in_a_chain_of_thought_holds(seed: int) -> None:
    seen: dict[str, int] = defaultdict(int)
    for row in rows_of("cot", seed=seed):
        for text in [*row["steps"], row["answer"]]:
            assert text.count("=") == len(EQUATION.findall(text)) or row["topic"] in ("equation",), text
            for left, right in EQUATION.findall(text):
                assert worth(left) == worth(right), text
                seen[row["topic"]] += 1
    assert len(seen) == 19
    assert min(seen.values()) > 10


def tallest(question: str) -> list[str]:
    pairs = [(a, b) for a, b in re.findall(r"(\w+) is taller than (\w+)", question)]
    pairs += [(b, a) for a, b in re.findall(r"(\w+) is shorter than (\w+)", question)]
    order = [a for a, _ in pairs if a not in {b for _, b in pairs}]
    while len(order) <= len(pairs):
        order.append(next(b for a, b in pairs if a == order[-1]))
    return order


def later(n: list[int]) -> str:
    end = (n[0] + n[2]) * 60 + n[1] + n[3]
    return f"{end // 60:02d}:{end % 60:02d}"


def ages(question: str, years: int, total: int) -> int:
    times = next(n for word, n in (("twice", 2), ("three", 3), ("four", 4)) if word in question)
    return next(n for n in range(100) if n + times * n + 2 * years == total)


def leftover(total: int, part: int, share: int) -> Fraction:
    left = Fraction(total) - Fraction(total, part)
    return left - left / share


SOLVERS: dict[str, Callable[[str, list[int]], object]] = {
    "addition": lambda q, n: sum(n),
    "multiplication": lambda q, n: math.prod(n),
    "division": lambda q, n: f"{n[0] // n[1]} and {n[0] % n[1]}",
    "precedence": lambda q, n: worth(q.removeprefix("Evaluate ").removeprefix("What is ").rstrip("?.")),
    "equation": lambda q, n: next(x for x in range(99) if n[0] * x + n[1] == n[2]),
    "fractions": lambda q, n: Fraction(n[0], n[1]) + Fraction(n[2], n[3]),
    "divisor": lambda q, n: math.gcd(*n),
    "binary": lambda q, n: bin(n[0])[2:],
    "sequence": lambda q, n: sum(n[0] + i * (n[1] - n[0]) for i in range(n[-1])),
    "shopping": lambda q, n: n[4] - n[0] * n[1] - n[2] * n[3],
    "journey": lambda q, n: n[0] * n[1] + n[2] * n[3],
    "discount": lambda q, n: Fraction(n[0] * (100 - n[1]), 100),
    "ratio": lambda q, n: Fraction(n[0] * n[1], n[1] + n[2]),
    "average": lambda q, n: Fraction(sum(n[1:]), n[0]),
    "ages": lambda q, n: ages(q, *n),
    "timetable": lambda q, n: later(n),
    "garden": lambda q, n: (n[0] + 2 * n[2]) * (n[1] + 2 * n[2]) - n[0] * n[1],
    "leftover": lambda q, n: leftover(n[0], n[2], n[4]),
    "workers": lambda q, n: Fraction(n[0] * n[1], n[2]),
    "heights": lambda q, n: tallest(q)[0 if "tallest" in q else -1],
}


def test_every_problem_has_the_answer_that_its_question_asks_for() -> None:
    seen = set()
    for row in rows_of("cot"):
        expected = SOLVERS[row["topic"]](row["question"], numbers(row["question"]))
        found = row["result"]
        assert (Fraction(found) if isinstance(expected, int | Fraction) else found) == expected, row
        assert found in row["answer"]
        if row["expression"]:
            assert worth(row["expression"]) == expected
        seen.add(row["topic"])
    assert seen == set(SOLVERS)


# --- facts

SENTENCES = {
    "region": r"(\w+) lies in ([\w ]+)\.",
    "river": r"(\w+) stands on the river (\w+)\.",
    "founded": r"(\w+) was founded in (\d+)\.",
    "population": r"(\w+) has ([\d,]+) inhabitants\.",
    "mayor": r"The mayor of (\w+) is (\w+ \w+)\.",
    "craft": r"(\w+) is known for its ([\w ]+)\.",
    "market": r"The market of (\w+) is held on (\w+)s\.",
    "bridges": r"(\w+) has (\d+) bridges\.",
}
QUESTIONS = {
    "region": r"[Ii]n which region does (\w+) lie\?",
    "river": r"[Oo]n which river does (\w+) stand\?",
    "founded": r"[Ii]n which year was (\w+) founded\?",
    "population": r"[Hh]ow many inhabitants does (\w+) have\?",
    "mayor": r"[Ww]ho is the mayor of (\w+)\?",
    "craft": r"[Ww]hat is (\w+) known for\?",
    "market": r"[Oo]n which day is the market of (\w+) held\?",
    "bridges": r"[Hh]ow many bridges does (\w+) have\?",
}
Facts = dict[tuple[str, str], str]


def told(text: str) -> Facts:
    return {
        (town, relation): value.replace(",", "")
        for relation, pattern in SENTENCES.items()
        for town, value in re.findall(pattern, text)
    }


def asked(question: str) -> tuple[str, str]:
    return next(
        (found[1], relation) for relation, pattern in QUESTIONS.items() if (found := re.search(pattern + "$", question))
    )


def most(facts: Facts, what: str) -> str:
    relation, best = ("founded", min) if what == "old" else ("population", max)
    values = {town: int(value) for (town, name), value in facts.items() if name == relation}
    return best(values, key=lambda town: values[town])


def test_all_passages_tell_of_one_world() -> None:
    world: Facts = {}
    for kind in ("idk", "fact_check"):
        for row in rows_of(kind, seed=3):
            facts = told(row["context"])
            assert facts == {(f["subject"], f["relation"]): f["value"] for f in row["facts"]}
            for key, value in facts.items():
                assert world.setdefault(key, value) == value
    assert len(world) > 200
    other = told(" ".join(row["context"] for row in rows_of("idk", seed=4)))
    assert any(other.get(key, value) != value for key, value in world.items())


def test_questions_are_answered_when_the_passage_has_the_answer_and_only_then() -> None:
    forms: dict[str, int] = defaultdict(int)
    for row in rows_of("idk"):
        facts, question = told(row["context"]), row["question"]
        forms[row["form"]] += 1
        if row["form"] == "compared":
            assert row["answerable"]
            assert row["answer"].startswith(most(facts, "old" if "oldest" in question else "large") + ",")
            continue
        town, relation = asked(question)
        assert row["answerable"] == ((town, relation) in facts)
        if row["answerable"]:
            assert told(row["answer"]) == {(town, relation): facts[town, relation]}
            assert row["result"].replace(",", "") == facts[town, relation]
            continue
        assert re.search(r"does not (say|give)|not mentioned|I don't know", row["answer"]), row
        assert row["result"] == ""
        if row["form"] == "unknown_town":
            assert town not in row["context"]
        if row["form"] == "wrong_premise":
            found = re.fullmatch(r"Given that (.*), (.*\?)", question)
            assert found is not None
            ((key, value),) = told(f"{found[1][0].upper()}{found[1][1:]}.").items()
            assert facts[key] != value
            assert found[1] in row["answer"]
    assert len(forms) == 5
    assert sum(row["answerable"] for row in rows_of("idk")) == ROWS // 2


def verdict(claim: str, facts: Facts) -> str:
    if found := re.fullmatch(r"(\w+) is (old|larg)er than (\w+)\.", claim):
        relation = "founded" if found[2] == "old" else "population"
        pair = {key: value for key, value in facts.items() if key in ((found[1], relation), (found[3], relation))}
        return "true" if most(pair, "old" if found[2] == "old" else "large") == found[1] else "false"
    if found := re.fullmatch(r"(\w+) is the (old|larg)est of the towns in the passage\.", claim):
        return "true" if most(facts, "old" if found[2] == "old" else "large") == found[1] else "false"
    ((key, value),) = told(claim).items()
    return "unknown" if key not in facts else "true" if facts[key] == value else "false"


def test_claims_have_the_label_that_the_passage_gives_them() -> None:
    labels: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows_of("fact_check"):
        facts = told(row["context"])
        assert row["label"] == verdict(row["claim"], facts), row
        labels[row["form"], row["label"]] += 1
        begins = {"true": "True.", "false": "False.", "unknown": "That cannot be decided"}
        assert row["answer"].startswith(begins[row["label"]])
        assert all(sentence in row["context"] and sentence in row["answer"] for sentence in row["evidence"])
        assert bool(row["evidence"]) == (row["label"] != "unknown")
    assert len(labels) == 7


def chance(row: dict[str, Any]) -> Fraction:
    found = numbers(row["context"])
    if row["form"] == "bag":
        return Fraction(max(found), sum(found))
    if row["form"] == "witness":
        return Fraction(found[0], found[1])
    if row["form"] == "weather":
        return Fraction(max(found[1], found[0] - found[1]), found[0])
    if row["form"] == "nothing":
        return Fraction(1, found[0])
    odds = Fraction(1)
    for right, says in re.findall(r"right in (\d) of 10 cases, says (yes|no)", row["context"]):
        ratio = Fraction(int(right), 10 - int(right))
        odds *= ratio if says == "yes" else 1 / ratio
    return max(odds, 1 / odds) / (1 + max(odds, 1 / odds)) if row["form"] == "witnesses" else Fraction(1)


def test_a_confidence_is_the_chance_that_follows_from_what_is_told() -> None:
    for row in rows_of("uncertainty"):
        expected = chance(row)
        assert abs(row["confidence"] - expected) < 1e-4
        assert abs(numbers(row["answer"])[-1] - 100 * expected) <= 1
        assert row["prediction"] in row["answer"]
        assert ("I am certain" in row["answer"]) == (expected == 1)
        assert ("I can only guess" in row["answer"]) == (expected < Fraction(9, 20))


def test_predictions_come_true_as_often_as_their_confidence_says() -> None:
    rows = rows_of("uncertainty", 6000)
    for form in sorted({row["form"] for row in rows}):
        ours = [row for row in rows if row["form"] == form]
        right, expected = sum(row["correct"] for row in ours), sum(row["confidence"] for row in ours)
        assert abs(right - expected) < 4 * math.sqrt(len(ours) / 4) * (form != "told") + 1e-6, form
    for low in range(2, 10):
        ours = [row for row in rows if low <= row["confidence"] * 10 < low + 1]
        right, expected = sum(row["correct"] for row in ours), sum(row["confidence"] for row in ours)
        assert len(ours) > 100
        assert abs(right - expected) < 4 * math.sqrt(len(ours) / 4), low


# --- changes


def applied(before: str, diff: str) -> str:
    """A unified diff, applied strictly: every line of it has to be where it says."""
    old, new, at = before.splitlines(True), [], 0
    for line in diff.splitlines(True)[3:]:
        if hunk := re.match(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@", line):
            new += old[at : int(hunk[1]) - 1]
            at = int(hunk[1]) - 1
            assert len(new) == int(hunk[2]) - 1
        elif line[0] == "+":
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            at += 1
            new += [line[1:]] if line[0] == " " else []
    return "".join(new + old[at:])


def outcome(program: str, call: str) -> str:
    scope: dict[str, Any] = {}
    exec(program, scope)  # noqa: S102 - our own rows
    try:
        return repr(eval(call, scope))  # noqa: S307 - our own rows
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("kind", ["commits", "diffs", "issues"])
def test_diffs_apply_and_programs_do_what_is_said_of_them_before_and_after(kind: str) -> None:
    for row in rows_of(kind):
        assert applied(row["before"], row["diff"]) == row["after"]
        assert row["diff"].startswith(f"diff --git a/{row['file']} b/{row['file']}\n--- a/{row['file']}\n+++ b/")
        assert {check["on"] for check in row["checks"]} == {"before", "after"}
        for check in row["checks"]:
            assert outcome(row[check["on"]], check["call"]) == check["result"], row
        if row.get("type", "fix") == "fix":
            before, after = row["checks"][:2]
            assert before["call"] == after["call"]
            assert before["result"] != after["result"]
            told = row["issue"] if kind == "issues" else row["message"] if kind == "diffs" else ""
            assert all(part in told for part in (before["call"], before["result"], after["result"])) or not told


def test_patch_and_git_take_the_diffs(tmp_path: Path) -> None:
    rows = rows_of("commits", 29)
    for i, row in enumerate(rows):
        file = tmp_path / str(i) / row["file"]
        file.parent.mkdir(parents=True)
        file.write_text(row["before"])
        root = tmp_path / str(i)
        check = ["git", "apply", "--check", "-"]
        subprocess.run(check, cwd=root, input=row["diff"], text=True, check=True, capture_output=True)
        patch = ["patch", "-p1", "--fuzz=0", "--silent"]
        subprocess.run(patch, cwd=root, input=row["diff"], text=True, check=True, capture_output=True)
        assert file.read_text() == row["after"]


def test_commit_messages_have_the_shape_that_git_wants() -> None:
    types = set()
    for row in rows_of("commits"):
        subject, blank, *body = row["message"].split("\n")
        assert len(subject) <= 72
        assert subject[0].isupper()
        assert not subject.endswith(".")
        assert blank == ""
        assert all(0 < len(line) <= 72 for line in body)
        types.add(row["type"])
    assert types == {"fix", "rename", "feature", "refactor", "test", "docs"}


# --- code and commands


def run_cell(source: str, scope: dict[str, Any]) -> list[tuple[str, str]]:
    """What a notebook shows for a cell: what is printed, then the value of the last line, or the error."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    shown: list[tuple[str, str]] = []
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "cell", "exec"), scope)  # noqa: S102 - our own rows
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)  # noqa: S307 - our own rows
                shown += [("execute_result", repr(value))] if value is not None else []
    except Exception as error:
        shown.append(("error", f"{type(error).__name__}: {error}"))
    return ([("stream", printed.getvalue())] if printed.getvalue() else []) + shown


def test_cells_give_what_running_them_gives() -> None:
    errors = 0
    for row in rows_of("jupyter"):
        scope: dict[str, Any] = {}
        for cell in row["cells"]:
            if cell["cell_type"] == "code":
                found = [(out["output_type"], out["text"] or out["traceback"]) for out in cell["outputs"]]
                assert run_cell(cell["source"], scope) == found, row
                errors += found[-1:] != [] and found[-1][0] == "error"
        last = row["cells"][-1]
        assert last["cell_type"] == "markdown"
        given = row["question"] + "".join(out["text"] + out["traceback"] for c in row["cells"] for out in c["outputs"])
        if row["topic"] != "calendar":
            assert set(numbers(last["source"])) <= set(numbers(given)), row
    assert errors == 40


def test_commands_print_what_the_real_ones_print(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    failed = 0
    for i, row in enumerate(rows_of("shell", 65)):
        root = tmp_path / str(i)
        for file in row["files"]:
            (root / file["path"]).parent.mkdir(parents=True, exist_ok=True)
            (root / file["path"]).write_text(file["text"])
        for step in row["steps"]:
            command = ["sh", "-c", step["command"]]
            done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=False)
            assert (done.stdout, done.stderr, done.returncode) == (step["output"], step["error"], step["exit_code"]), (
                row
            )
            failed += done.returncode != 0
        printed = row["question"] + "".join(step["output"] + step["error"] for step in row["steps"])
        if row["topic"] not in ("missing_file", "find_files", "is_mentioned"):
            assert set(numbers(row["answer"])) <= set(numbers(printed)), row
    assert failed > 5


# --- documents


def cents(text: str) -> int:
    return int(re.sub(r"[$,.]", "", text))


def table_of(text: str) -> tuple[list[str], list[list[str]]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return lines[0], lines[2:]


def check_invoice(text: str) -> None:
    _, lines = table_of(text)
    assert all(int(count) * cents(price) == cents(amount) for _, count, price, amount in lines)
    found = re.search(r"Net: (\S+)\nTax \((\d+)%\): (\S+)\nTotal: (\S+)", text)
    assert found is not None
    net, tax, total = (cents(found[i]) for i in (1, 3, 4))
    assert net == sum(cents(line[3]) for line in lines)
    assert tax * 100 == net * int(found[2])
    assert total == net + tax
    one, two = (day for _, day in days(text))
    assert (two - one).days == 30


def check_sales(text: str) -> None:
    _, lines = table_of(text)
    values = [[int(cell) for cell in line[1:]] for line in lines]
    assert all(sum(line[:-1]) == line[-1] for line in values)
    assert values[-1] == [sum(column) for column in zip(*values[:-1], strict=True)]
    assert f"sold {values[-1][-1]} units in" in text
    best = max(lines[:-1], key=lambda line: int(line[-1]))
    assert f"{best[0]} sold most, with {best[-1]} units" in text or "each." in text
    moved = re.search(r"(rose|fell) by (\d+) units, from (\d+) to (\d+)", text)
    if moved:
        assert [int(moved[3]), int(moved[4])] == [values[-1][0], values[-1][3]]
        assert int(moved[4]) - int(moved[3]) == int(moved[2]) * (1 if moved[1] == "rose" else -1)


def check_stock(text: str) -> None:
    _, lines = table_of(text)
    assert all(int(a) + int(b) - int(c) == int(d) >= 0 for _, a, b, c, d in lines)
    low = [name for name, *_, closing in lines if int(closing) < 20]
    assert f"Of {len(lines)} items, {len(low) or 'none'} closed below 20" in text
    assert all(name[:4] in text.rpartition("Of ")[2] for name in low)


def check_meeting(text: str) -> None:
    found = re.search(r"from (\d+):(\d+) to (\d+):(\d+) in .* We have (\d+) minutes for three points", text)
    assert found is not None
    a, b, c, d, length = (int(part) for part in found.groups())
    assert c * 60 + d - a * 60 - b == length
    assert len(re.findall(r"^\d\. ", text, re.MULTILINE)) == 3


def check_expenses(text: str) -> None:
    _, lines = table_of(text)
    amounts = [cents(amount) for _, amount in lines]
    assert sum(amounts[:-1]) == amounts[-1]
    hotel = re.search(r"Hotel, (\d+) nights? at (\S+)", text)
    assert hotel is not None
    assert int(hotel[1]) * cents(hotel[2]) == amounts[1]
    (_, one), (_, two) = days(text)
    assert (two - one).days == int(hotel[1])
    end = re.search(r"total of (\S+) is (?:(\S+) (above|below)|exactly) the limit of (\S+)\.\n", text)
    assert end is not None
    over = cents(end[2]) * (1 if end[3] == "above" else -1) if end[2] else 0
    assert cents(end[1]) - cents(end[4]) == over


def check_minutes(text: str) -> None:
    _, lines = table_of(text)
    yes, no, abstained, here = (int(line[1]) for line in lines)
    found = re.search(r"Present: (\d+) of (\d+) members \((\d+) absent\)", text)
    assert found is not None
    assert yes + no + abstained == here == int(found[1]) == int(found[2]) - int(found[3])
    assert f"The motion is {'accepted' if yes > no else 'rejected'}." in text


def days(text: str) -> list[tuple[str, date]]:
    months = [date(2000, month, 1).strftime("%B") for month in range(1, 13)]
    found = re.findall(rf"(\w+day), ({'|'.join(months)}) (\d+), (\d{{4}})", text)
    return [(name, date(int(year), months.index(month) + 1, int(day))) for name, month, day, year in found]


def test_the_numbers_in_a_document_agree_with_each_other() -> None:
    checks = {
        "invoice": check_invoice,
        "sales": check_sales,
        "stock": check_stock,
        "meeting": check_meeting,
        "expenses": check_expenses,
        "minutes": check_minutes,
    }
    seen = set()
    for row in rows_of("documents"):
        checks[row["form"]](row["text"])
        assert all(f"{day:%A}" == name for name, day in days(row["text"] + row["question"] + row["answer"]))
        seen.add((row["form"], row["use"]))
    assert len(seen) == 18


def test_answers_about_a_document_are_in_it_and_orders_have_what_it_needs() -> None:
    for row in rows_of("documents"):
        if row["use"] == "read":
            told = row["answer"].partition(" = ")[2] or row["answer"]
            assert set(numbers(told)) <= set(numbers(row["text"])), row
        if row["use"] == "write" and row["form"] in ("invoice", "expenses"):
            prices = re.findall(r"\$[\d,]+\.\d\d", row["question"])
            assert all(price in row["answer"] for price in prices), row
