"""Things to find out or to do with commands, and what they print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.synth.dice import Dice
from headrace.synth.tree import FRUIT, LEVELS, Step, Tree, plant
from headrace.synth.words import PEOPLE, counted, listing

Session = tuple[str, list[Step], str]
"""What is asked, the commands, and the answer."""


def shell(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    tree = plant(dice)
    files = [{"path": path, "text": text} for path, text in tree.files.items()]
    topic = list(SESSIONS)[i % len(SESSIONS)]
    question, steps, answer = SESSIONS[topic](dice, tree)
    return {
        "topic": topic,
        "question": question,
        "steps": [step._asdict() for step in steps],
        "answer": answer,
        "files": files,
    }


def _log(tree: Tree) -> str:
    return next(path for path in tree.files if path.startswith("logs/"))


def count_level(dice: Dice, tree: Tree) -> Session:
    path = _log(tree)
    level = dice.pick([level for level in LEVELS if level in tree.files[path]])
    step = tree.grep(level, path, "-c")
    count = int(step.output)
    return f"How many {level} lines are in {path}?", [step], f"{path} has {counted(count, level + ' line')}."


def show_level(dice: Dice, tree: Tree) -> Session:
    path, level = _log(tree), dice.pick(LEVELS)
    step = tree.grep(level, path, "-n")
    lines = step.output.splitlines()
    if not lines:
        return f"On which lines of {path} is {level}?", [step], f"On none: grep found no {level} in {path}."
    numbers = [line.partition(":")[0] for line in lines]
    answer = f"On line {numbers[0]}." if len(numbers) == 1 else f"On lines {listing(numbers)}."
    return f"On which lines of {path} is {level}?", [step], answer


def last_event(dice: Dice, tree: Tree) -> Session:
    listed = tree.ls("logs")
    path = _log(tree)
    step = tree.tail(path, 1)
    time, level, event = step.output.strip().split(" ", 2)
    return "What is the last thing in the log?", [listed, step], f"At {time} the log has the {level}: {event}."


def long_file(dice: Dice, tree: Tree) -> Session:
    path = dice.pick([_log(tree), "data/fruit.txt", "notes/todo.txt", "data/scores.txt"])
    step = tree.wc(path)
    return f"How many lines does {path} have?", [step], f"{path} has {step.output.split()[0]} lines."


def words_and_bytes(dice: Dice, tree: Tree) -> Session:
    path = dice.pick(["README.md", "notes/todo.txt", _log(tree)])
    words, size = tree.wc(path, "-w"), tree.wc(path, "-c")
    answer = f"{path} has {words.output.split()[0]} words and {size.output.split()[0]} bytes."
    return f"How many words and bytes are in {path}?", [words, size], answer


def best_scores(dice: Dice, tree: Tree) -> Session:
    count = dice.between(2, 3)
    look, step = tree.head("data/scores.txt", 2), tree.sort("data/scores.txt", count)
    best = [f"{line.split()[1]} with {line.split()[0]}" for line in step.output.splitlines()]
    return f"Who have the {count} highest scores?", [look, step], f"The highest scores have {listing(best)}."


def most_fruit(dice: Dice, tree: Tree) -> Session:
    step = tree.tally("data/fruit.txt", 1)
    counts = [line.split() for line in step.output.splitlines()]
    most = [name for n, name in counts if n == counts[0][0]]
    times = counted(int(counts[0][0]), "time")
    return (
        "Which fruit is most often in data/fruit.txt?",
        [step],
        f"{listing(most).capitalize()}, {'each ' if len(most) > 1 else ''}{times}.",
    )


def levels(dice: Dice, tree: Tree) -> Session:
    path = _log(tree)
    step = tree.tally(path, 2)
    told = [f"{n} {level}" for n, level in (line.split() for line in step.output.splitlines())]
    return f"How are the levels distributed in {path}?", [tree.head(path, 1), step], f"By lines: {listing(told)}."


def find_files(dice: Dice, tree: Tree) -> Session:
    pattern, what = dice.pick(
        (("*.py", "Python files"), ("*.txt", "text files"), ("test_*", "tests"), ("*.log", "logs"))
    )
    step = tree.find(pattern)
    paths = [line.removeprefix("./") for line in step.output.splitlines()]
    return f"Where are the {what} here?", [step], f"Found {counted(len(paths), 'file')}: {listing(paths)}."


def look_around(dice: Dice, tree: Tree) -> Session:
    folder = dice.pick(("src", "data", "notes"))
    top, inside = tree.ls(), tree.ls(folder)
    names = inside.output.split()
    return f"What is in the folder {folder}?", [top, inside], f"{folder} has {listing(names)}."


def missing_file(dice: Dice, tree: Tree) -> Session:
    """The first command fails, and the next finds out why."""
    name = dice.pick(("todo.txt", "fruit.txt", "scores.txt"))
    found = tree.find(name)
    path = found.output.strip().removeprefix("./")
    shown = tree.cat(path)
    return (
        f"Show me {name}.",
        [tree.cat(name), found, shown],
        f"It is not here but in {path.rpartition('/')[0]}, and has {counted(len(tree.lines(path)), 'line')}.",
    )


def is_mentioned(dice: Dice, tree: Tree) -> Session:
    word = dice.pick((*FRUIT, *PEOPLE))
    path = "notes/todo.txt"
    step = tree.grep(word, path)
    answer = (
        f"Yes: {step.output.splitlines()[0]}." if step.output else f"No, {path} does not mention it (grep ends with 1)."
    )
    return f"Does {path} mention {word}?", [step], answer


def rename(dice: Dice, tree: Tree) -> Session:
    old, new = dice.pick((("notes/todo.txt", "notes/done.txt"), ("data/fruit.txt", "data/food.txt")))
    folder = old.partition("/")[0]
    steps = [tree.ls(folder), tree.mv(old, new), tree.ls(folder)]
    return f"Rename {old} to {new}.", steps, f"Done: {new} is there, and {old} is gone."


SESSIONS: dict[str, Callable[[Dice, Tree], Session]] = {
    "count_level": count_level,
    "show_level": show_level,
    "last_event": last_event,
    "long_file": long_file,
    "words_and_bytes": words_and_bytes,
    "best_scores": best_scores,
    "most_fruit": most_fruit,
    "levels": levels,
    "find_files": find_files,
    "look_around": look_around,
    "missing_file": missing_file,
    "is_mentioned": is_mentioned,
    "rename": rename,
}
