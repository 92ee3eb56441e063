"""A small tree of files, and what the common commands say about it (GNU coreutils, grep and find, LC_ALL=C)."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import NamedTuple

from headrace.synth.dice import Dice
from headrace.synth.words import PEOPLE

LEVELS = ("INFO", "WARNING", "ERROR")
_EVENTS = {
    "INFO": ("job started", "job finished", "user logged in", "cache cleared"),
    "WARNING": ("disk almost full", "slow answer", "retrying request"),
    "ERROR": ("connection lost", "file not found", "out of memory"),
}
FRUIT = ("apple", "banana", "cherry", "fig", "grape", "lemon", "pear", "plum")


class Step(NamedTuple):
    command: str
    output: str = ""
    error: str = ""
    exit_code: int = 0


class Tree:
    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def lines(self, path: str) -> list[str]:
        return self.files[path].splitlines()

    # --- what commands say

    def ls(self, folder: str = "") -> Step:
        inside = f"{folder}/" if folder else ""
        names = {path.removeprefix(inside).partition("/")[0] for path in self.files if path.startswith(inside)}
        return Step(f"ls {folder}".strip(), _text(sorted(names)))

    def wc(self, path: str, flag: str = "-l") -> Step:
        counts = {
            "-l": len(self.lines(path)),
            "-w": len(self.files[path].split()),
            "-c": len(self.files[path].encode()),
        }
        return Step(f"wc {flag} {path}", f"{counts[flag]} {path}\n")

    def head(self, path: str, count: int) -> Step:
        return Step(f"head -n {count} {path}", _text(self.lines(path)[:count]))

    def tail(self, path: str, count: int) -> Step:
        return Step(f"tail -n {count} {path}", _text(self.lines(path)[-count:]))

    def grep(self, word: str, path: str, flag: str = "") -> Step:
        """`flag`: "" gives the lines, `-n` with their numbers, `-c` their count. A word without signs of a pattern."""
        found = [(i, line) for i, line in enumerate(self.lines(path), 1) if word in line]
        texts = {"": [line for _, line in found], "-n": [f"{i}:{line}" for i, line in found], "-c": [str(len(found))]}
        return Step(" ".join(f"grep {flag} {word} {path}".split()), _text(texts[flag]), "", 0 if found else 1)

    def sort(self, path: str, count: int) -> Step:
        """By number, the highest first; equal ones by their whole line, the last first."""
        ordered = sorted(self.lines(path), key=lambda line: (int(line.split()[0]), line), reverse=True)
        return Step(f"sort -rn {path} | head -n {count}", _text(ordered[:count]))

    def tally(self, path: str, field: int) -> Step:
        """How often each value of a column comes, the most frequent first."""
        counts = Counter(line.split()[field - 1] for line in self.lines(path))
        lines = sorted((f"{n:7d} {name}" for name, n in counts.items()), key=lambda line: (int(line.split()[0]), line))
        return Step(f"cut -d ' ' -f {field} {path} | sort | uniq -c | sort -rn", _text(lines[::-1]))

    def find(self, pattern: str) -> Step:
        found = [f"./{path}" for path in self.files if fnmatchcase(path.rpartition("/")[2], pattern)]
        return Step(f"find . -type f -name '{pattern}' | sort", _text(sorted(found)))

    def cat(self, path: str) -> Step:
        if path in self.files:
            return Step(f"cat {path}", self.files[path])
        return Step(f"cat {path}", "", f"cat: {path}: No such file or directory\n", 1)

    def mv(self, old: str, new: str) -> Step:
        self.files[new] = self.files.pop(old)
        return Step(f"mv {old} {new}")


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def plant(dice: Dice) -> Tree:
    """A project with logs, notes, a little code and data."""
    hour = dice.between(6, 15)
    log = []
    for i in range(dice.between(6, 12)):
        level = dice.pick(LEVELS)
        log.append(f"{hour + i // 4:02d}:{i % 4 * 15 + dice.roll(15):02d} {level} {dice.pick(_EVENTS[level])}")
    names = dice.some(PEOPLE, 5)
    scores = [f"{score} {name}" for score, name in zip(dice.some(range(10, 100), 5), names, strict=True)]
    fruit = [dice.pick(FRUIT[:5]) for _ in range(dice.between(6, 10))]
    todo = [f"call {name}" for name in names[:3]] + [f"buy {fruit[0]}"]
    module, service = dice.pick(("parser", "server", "report", "loader")), dice.pick(("app", "web", "db", "mail"))
    return Tree(
        {
            "README.md": f"# {module}\n\nKept by {names[0]} and {names[1]}.\n",
            f"logs/{service}.log": _text(log),
            "data/scores.txt": _text(scores),
            "data/fruit.txt": _text(fruit),
            "notes/todo.txt": _text(todo),
            f"src/{module}.py": f"import sys\n\n\ndef main():\n    print({module!r}, len(sys.argv))\n",
            f"src/test_{module}.py": f"from {module} import main\n",
        }
    )
