"""Nothing that was read can become code, a shell command, a program's path or an unchecked connection: kept by reading
the source of the package, since a test that runs it could only try some of the ways."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace

PACKAGE = Path(headrace.__file__).parent

MODULES = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "copyreg"),
    *("tarfile", "zipfile", "runpy", "code", "codeop", "imp", "pty", "xmlrpc"),
    *("pyarrow.ipc", "pyarrow.feather", "torch.hub"),
}
"""Readers of formats that run what they read, or write where it says."""
NAMES = {"eval", "exec", "compile", "__import__"}
METHODS = {
    *("mktemp", "extractall", "getoutput", "getstatusoutput", "startfile", "unpack_archive"),
    *("_create_unverified_context", "read_pickle", "to_pickle", "load_module", "exec_module", "open_stream"),
}
SHELLS = {"os.system", "os.popen"}
LOADERS = {"np", "numpy", "torch", "joblib", "marshal", "dill"}
"""`load` of these unpickles, or may."""
MEANINGS = {
    "shell": False,
    "allow_pickle": False,
    "trust_remote_code": False,
    "weights_only": True,
    "verify": True,
    "check_hostname": True,
}
"""Arguments that may have this value only."""
GLOBALS = {"MAX_IMAGE_PIXELS", "LOAD_TRUNCATED_IMAGES", "verify_mode"}
"""Attributes of libraries that nobody but the user may change."""
WATCHED = {"ForkingPickler", "all_gather_object", "import_module", "literal_eval", "Popen"}
"""Allowed where `ALLOWED` gives the reason."""
SAFE_LOADER = "getattr(yaml, 'CSafeLoader', yaml.SafeLoader)"

ALLOWED = {
    ("serve/wire.py", "ForkingPickler"): "jobs and batches between a trainer and its own workers, on a socket pair "
    "without a name that only these two processes have; nothing that was read from data is unpickled, but as the value "
    "that a worker made of it",
    ("serve/worker.py", "ForkingPickler"): "an error is tried out before it goes the same way",
    (
        "serve/peers.py",
        "all_gather_object",
    ): "receipts between the ranks of one job, in the trainer's own process group",
    ("__init__.py", "import_module"): "the public names, from a table in the same file",
    ("fetch/media/images.py", "import_module"): "one of six Pillow plugins, from a table in the same file",
    ("make/values.py", "literal_eval"): "lists as Python prints them; short, shallow, without names and operators",
    ("tools/child.py", "Popen"): "the demo starts itself, from a list",
    ("synth/__init__.py", "import_module"): "one of our own modules, from a table in the same file",
    ("synth/facts.py", "format"): "templates of our own, in a table of world.py",
    ("synth/world.py", "format"): "the same",
    ("lerobot/info.py", "format"): "a `Template` of ours, which was parsed into literals and known fields",
    ("make/formatters/base.py", "format"): "a formatter's method of that name",
}


def findings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and rule of everything that is not to be there, and of everything that needs a reason."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for module in _imported(node):
            if any(module == banned or module.startswith(f"{banned}.") for banned in MODULES):
                yield line, f"import {module}"
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.Name) and name in NAMES:
            yield line, name
        if isinstance(node, ast.Attribute) and (name in METHODS or ast.unparse(node) in SHELLS):
            yield line, f".{name}"
        if name in WATCHED:
            yield line, name
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name in GLOBALS:
            yield line, f"{name} is set"
        if isinstance(node, ast.Call):
            yield from ((line, what) for what in _call(node, tree))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _call(node: ast.Call, tree: ast.AST) -> Iterator[str]:
    function = node.func
    for keyword in node.keywords:
        if keyword.arg in MEANINGS:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if value is not MEANINGS[keyword.arg]:
                yield f"{keyword.arg}={ast.unparse(keyword.value)}"
    if not isinstance(function, ast.Attribute):
        return
    of = ast.unparse(function.value)
    weights = any(keyword.arg == "weights_only" for keyword in node.keywords)  # of which the value is looked at above
    if function.attr == "load" and of in LOADERS and not weights:
        yield f"{of}.load"
    if of == "yaml" and function.attr in ("load", "load_all", "unsafe_load", "full_load") and not _is_safe(node, tree):
        yield f"yaml.{function.attr}"
    if function.attr in ("format", "format_map") and not isinstance(function.value, ast.Constant):
        yield "format"  # a template from outside reaches into what it is given: "{0.__class__}"


def _is_safe(node: ast.Call, tree: ast.AST) -> bool:
    """`yaml.load` with a loader that was made just so in the same file."""
    names = {keyword.value.id for keyword in node.keywords if isinstance(keyword.value, ast.Name)}
    made = {
        target.id: ast.unparse(one.value)
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name) and target.id in names
    }
    return bool(names) and made == dict.fromkeys(names, SAFE_LOADER)


def test_the_package_has_nothing_that_turns_data_into_code() -> None:
    found, used = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        for line, what in findings(ast.parse(path.read_text())):
            if name.startswith("testing/") and what == "format":
                continue  # names of files that a test gives
            if (name, what) in ALLOWED:
                used.add((name, what))
            else:
                found.append(f"{name}:{line}: {what}")
    assert found == []
    assert used == set(ALLOWED), "a reason for what is not there any more"


SEEN = {
    "import pickle": "import pickle",
    "from pickle import loads": "import pickle",
    "import pyarrow.ipc as ipc": "import pyarrow.ipc",
    "from pyarrow import feather": "import pyarrow.feather",
    "import tarfile": "import tarfile",
    "eval(text)": "eval",
    "f = exec": "exec",
    "__import__(name)": "__import__",
    "yaml.load(text)": "yaml.load",
    "yaml.load(text, Loader=yaml.Loader)": "yaml.load",
    "loader = yaml.UnsafeLoader\nyaml.load(text, Loader=loader)": "yaml.load",
    "yaml.unsafe_load(text)": "yaml.unsafe_load",
    "np.load(path)": "np.load",
    "torch.load(path)": "torch.load",
    "torch.load(path, weights_only=False)": "weights_only=False",
    "read(path, allow_pickle=True)": "allow_pickle=True",
    "run(command, shell=True)": "shell=True",
    "run(command, shell=asked)": "shell=asked",
    "os.system(command)": ".system",
    "tempfile.mktemp()": ".mktemp",
    "tar.extractall(folder)": ".extractall",
    "pa.ipc.open_stream(data)": ".open_stream",
    "from_pretrained(name, trust_remote_code=given)": "trust_remote_code=given",
    "get(url, verify=False)": "verify=False",
    "Image.MAX_IMAGE_PIXELS = None": "MAX_IMAGE_PIXELS is set",
    "template.format(chunk=1)": "format",
    "importlib.import_module(row)": "import_module",
}


@pytest.mark.parametrize("source", SEEN)
def test_what_is_looked_for_is_found(source: str) -> None:
    found = [what for _, what in findings(ast.parse(source))]
    assert any(what.startswith(SEEN[source]) for what in found), found


@pytest.mark.parametrize(
    "source",
    [
        f"loader = {SAFE_LOADER}\nyaml.load(text, Loader=loader)",
        "yaml.safe_load(text)",
        "re.compile(pattern)",
        "json.load(file)",
        "'{}'.format(1)",
        "subprocess.run([a], shell=False)",
        "torch.from_numpy(array)",
    ],
)
def test_what_is_harmless_is_let_through(source: str) -> None:
    assert list(findings(ast.parse(source))) == []
