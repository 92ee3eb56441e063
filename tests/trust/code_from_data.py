"""Finds in a source what could turn data into code, under whatever name it was imported."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

MODULES = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "jsonpickle", "marshal", "shelve", "copyreg"),
    *("tarfile", "zipfile", "runpy", "code", "codeop", "imp", "pty", "xmlrpc", "ctypes", "cffi", "logging.config"),
    *("pyarrow.ipc", "pyarrow.feather", "torch.hub", "torch.package", "timeit", "cProfile", "profile", "pdb", "bdb"),
}
"""Readers of formats that run what they read, or write where it says; and ways into other programs."""
FUNCTIONS = {
    *("eval", "exec", "compile", "__import__", "breakpoint"),
    *("os.system", "os.popen", "posix.system", "nt.system", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("asyncio.create_subprocess_shell", "tempfile.mktemp", "shutil.unpack_archive"),
    *("yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all"),
    *("yaml.Loader", "yaml.CLoader", "yaml.UnsafeLoader", "yaml.CUnsafeLoader", "yaml.FullLoader", "yaml.CFullLoader"),
    *("yaml.add_constructor", "yaml.add_multi_constructor", "torch.jit.load", "pandas.eval", "pandas.DataFrame.eval"),
    *("numpy.load", "pandas.read_pickle", "types.FunctionType", "types.CodeType", "types.LambdaType"),
    *(
        "importlib.__import__",
        "importlib.reload",
        "importlib.util.spec_from_file_location",
        "importlib.machinery.SourceFileLoader",
    ),
    *("ssl._create_unverified_context",),
}
STARTS = ("os.exec", "os.spawn", "os.posix_spawn")
LOADERS = {"torch.load", "yaml.load", "yaml.load_all"}
"""Harmless if they are called in one way, and not to be handed on."""
METHODS = {
    *("mktemp", "extractall", "getoutput", "getstatusoutput", "startfile", "unpack_archive"),
    *("_create_unverified_context", "read_pickle", "to_pickle", "load_module", "exec_module", "open_stream"),
    *("enable_load_extension",),
}
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
WATCHED = {"ForkingPickler", "all_gather_object", "import_module", "literal_eval", "Popen", "from_string"}
"""Allowed where a reason is given."""
SAFE_LOADER = "getattr(yaml, 'CSafeLoader', yaml.SafeLoader)"
_BUILTINS = {*dir(builtins), "__builtins__"}
_SPACES = ("builtins.__dict__", "__builtins__", "__builtins__.__dict__", "sys.modules", "globals()", "locals()")
"""Dictionaries in which builtins and modules are found by name."""


def findings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and rule of everything that is not to be there, and of everything that needs a reason."""
    names = _Names(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        found = [*_imports(node), *_references(node, names, id(node) in called)]
        if isinstance(node, ast.Call):
            found += _calls(node, names, tree)
        yield from ((getattr(node, "lineno", 0), what) for what in found)


class _Names:
    """What the names of a source stand for."""

    def __init__(self, tree: ast.AST) -> None:
        self._known: dict[str, str] = {}
        self._modules: set[str] = {"builtins", "__builtins__"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._known[alias.asname or whole] = whole
                    self._modules.add(whole)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    self._known[alias.asname or alias.name] = self._joined(node.module, alias.name) or ""
        for _ in range(4):  # names of names
            for node in ast.walk(tree):
                self._assigned(node)

    def _assigned(self, node: ast.AST) -> None:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            targets = [node.target]
        value = getattr(node, "value", None)
        whole = self.of(value) if targets and isinstance(value, ast.expr) else None
        for target in targets:
            if isinstance(target, ast.Name) and whole and not whole.startswith("?"):
                self._known.setdefault(target.id, whole)

    def of(self, node: ast.expr) -> str | None:
        """A dotted name, as it would be without any alias; None: it is no name."""
        if isinstance(node, ast.Name):
            own = node.id if node.id in _BUILTINS else f"?{node.id}"  # no module is known under a name of ours
            return self._known.get(node.id, own)
        if isinstance(node, ast.NamedExpr):
            return self.of(node.value)
        if isinstance(node, ast.Attribute):
            return self._joined(self.of(node.value), node.attr)
        if isinstance(node, ast.Subscript) and (key := constant(node.slice)) is not None:
            space = self.of(node.value)
            return None if space not in _SPACES else key
        if isinstance(node, ast.Call):
            return self._of_call(node)
        return None

    def _of_call(self, node: ast.Call) -> str | None:
        function = self.of(node.func)
        if function == "getattr" and len(node.args) >= 2 and (name := constant(node.args[1])) is not None:
            return self._joined(self.of(node.args[0]), name)
        if function == "vars" and node.args and self.of(node.args[0]) in ("builtins", "__builtins__"):
            return "builtins.__dict__"
        if function in ("globals", "locals"):
            return f"{function}()"
        if function in ("importlib.import_module", "__import__") and node.args:
            return constant(node.args[0])
        if function and function.endswith((".get", ".__getitem__")) and node.args:
            return constant(node.args[0]) if function.rpartition(".")[0] in _SPACES else None
        return None

    @staticmethod
    def _joined(owner: str | None, name: str) -> str | None:
        if owner in ("builtins", "__builtins__") and name != "__dict__":
            return name
        return None if owner is None else f"{owner}.{name}"

    def is_module(self, node: ast.expr) -> bool:
        return self.of(node) in self._modules


def constant(node: ast.expr) -> str | None:
    """Text that is written out, or put together from pieces that are."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = constant(node.left), constant(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):
        parts = [constant(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
        return None if None in parts else "".join(part for part in parts if part is not None)
    return None


def _banned(whole: str) -> bool:
    return whole in FUNCTIONS or whole.startswith(STARTS) or _of_banned_module(whole)


def _of_banned_module(whole: str) -> bool:
    return any(whole == banned or whole.startswith(f"{banned}.") for banned in MODULES)


def _imports(node: ast.AST) -> Iterator[str]:
    wholes: list[str] = []
    if isinstance(node, ast.Import):
        wholes = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        wholes = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    for whole in wholes:
        if _of_banned_module(whole):
            yield f"import {whole}"
        elif whole in FUNCTIONS:
            yield whole


def _references(node: ast.AST, names: _Names, is_called: bool) -> Iterator[str]:
    """Of names, attributes, and what stands for them."""
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        return
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if isinstance(node, ast.Attribute) and name in METHODS:
        yield f".{name}"
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name in GLOBALS:
        yield f"{name} is set"
    whole = names.of(node) or (f"?.{name}" if name else None)
    if isinstance(getattr(node, "ctx", None), ast.Store) or whole is None:
        return
    if _banned(whole):
        yield whole
    if whole in LOADERS and not is_called:
        yield f"{whole} is handed on"
    last = whole.rpartition(".")[2].removeprefix("?")
    if last in WATCHED:
        yield last


def _calls(node: ast.Call, names: _Names, tree: ast.AST) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    for keyword in node.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Dict):
            pairs = zip(keyword.value.keys, keyword.value.values, strict=True)
            given |= {constant(key) or "": value for key, value in pairs if key is not None}
    for name, expected in MEANINGS.items():
        if name in given and getattr(given[name], "value", None) is not expected:
            yield f"{name}={ast.unparse(given[name])}"
    whole, function = names.of(node.func), node.func
    if whole == "getattr" and len(node.args) >= 2 and names.is_module(node.args[0]) and constant(node.args[1]) is None:
        yield "getattr of a module"
    if whole == "torch.load" and "weights_only" not in given:  # of which the value is looked at above
        yield "torch.load"
    if whole in ("yaml.load", "yaml.load_all") and not _is_safe(node, tree):
        yield whole
    if not isinstance(function, ast.Attribute) or isinstance(function.value, ast.Constant):
        return
    if function.attr in ("format", "format_map"):
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
