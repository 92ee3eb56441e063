"""What a newcomer sees first."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent
DESCRIPTIONS = {
    "headrace.catalog.source",
    "headrace.make.describe",
    "headrace.mix.describe",
    "headrace.mix.weights",
    "headrace.sequence.describe",
}
ORDER = ["synth", "catalog", "fetch", "lerobot", "make", "mix", "sequence", "serve", "tools"]


def test_public_names_are_sorted_and_there() -> None:
    assert headrace.__all__ == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    assert set(headrace._HOMES) == set(headrace.__all__) - {"__version__"}


def test_import_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import headrace; dt = time.perf_counter() - t; "
        "heavy = set('torch pyarrow numpy av PIL huggingface_hub pandas datasets'.split()) & set(sys.modules); "
        "print(dt, sorted(heavy))"
    )
    best = 9.0
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, heavy = done.stdout.split(" ", 1)
        assert heavy.strip() == "[]"
        best = min(best, float(seconds))
    assert best < 0.3


def test_reading_rows_loads_neither_torch_nor_pandas(tmp_path: Path) -> None:
    from headrace.testing import write_parquet

    write_parquet(tmp_path / "in", [[30, 30]])
    code = (
        "import sys, headrace\n"
        f"stage = headrace.rows('parquet:{tmp_path}/in/*.parquet', shuffle=True, cache_dir={str(tmp_path / 'd')!r})\n"
        "assert len(list(stage)) == 60\n"
        "print(sorted({'torch', 'pandas', 'datasets', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_folders_import_only_from_folders_before_them() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        folder = path.relative_to(PACKAGE).parts[0]
        here = ORDER.index(folder) if folder in ORDER else -1
        if folder in ("testing", "__init__.py", "__main__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headrace."):
                other = node.module.split(".")[1]
                if folder.startswith("recipe") and node.module in DESCRIPTIONS:
                    continue  # a recipe composes what the folders describe
                if other in ORDER and ORDER.index(other) > here:
                    wrong.append(f"{path.relative_to(PACKAGE)} imports {node.module}")
    assert wrong == []


def test_only_run_reads_the_environment() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(word in path.read_text() for word in ("os.environ", "os.getenv"))
    }
    assert found <= {"run.py", "tools/demo.py"}


def test_files_and_functions_stay_small() -> None:
    long = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if text.count("\n") >= 600:
            long.append(f"{path.name}: {text.count(chr(10))} lines")
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
        long += [f"{path.name}: {n.name}" for n in functions if (n.end_lineno or 0) - n.lineno >= 60]
    assert long == []


def test_nothing_in_the_package_can_run_code_from_data() -> None:
    banned = {"eval", "exec", "compile", "__import__", "pickle", "marshal", "shelve", "mktemp", "extractall"}
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            bad = (name in banned and not (isinstance(node, ast.Attribute) and name == "compile")) or set(
                modules
            ) & banned
            if bad:
                found.append(f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)} {name or modules}")
    assert found == []


def test_a_loader_offers_what_a_trainer_uses_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 9)
    with headrace.load(f"jsonl:{tmp_path}/a.jsonl", cache_dir=tmp_path / "data") as loader:
        next(iter(loader))
        offered = {name for name in dir(loader) if not name.startswith("_")}
    states = {"load_state_dict", "state_dict", "stateful"}
    assert offered == {*states, "close", "dataset", "describe", "faults", "set_epoch", "stats"}
