"""Finds in a source what could turn data into code.

What may be imported is listed, and of the modules that are watched, what may be used. No assignment is followed:
a module may stand only before the dot of an attribute, so everything that is used of it has its name written there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

USABLE = {
    *("__future__", "abc", "argparse", "array", "ast", "atexit", "base64", "binascii", "bisect", "collections"),
    *("collections.abc", "concurrent.futures", "contextlib", "copy", "dataclasses", "datetime", "decimal", "difflib"),
    *("email.utils", "enum", "errno", "fcntl", "fnmatch", "fractions", "functools", "gc", "glob", "gzip", "hashlib"),
    *("hmac", "html.parser", "http", "http.client", "http.server", "importlib", "importlib.resources"),
    *("importlib.util", "inspect", "io", "ipaddress", "itertools", "json", "logging", "math", "mmap"),
    *("multiprocessing", "multiprocessing.connection", "multiprocessing.reduction", "multiprocessing.util", "numbers"),
    *("operator", "os", "pathlib", "queue", "random", "re", "resource", "secrets", "select", "shutil", "signal"),
    *("socket", "ssl", "stat", "statistics", "string", "struct", "subprocess", "sys", "tempfile", "termios"),
    *("textwrap", "threading", "time", "traceback", "types", "typing", "urllib.parse", "urllib.request", "uuid"),
    *("warnings", "weakref", "zlib"),
    *("PIL", "PIL.Image", "PIL.ImageDraw", "av", "av.container", "av.packet", "av.stream", "av.video.frame"),
    *("av.video.reformatter", "av.video.stream", "certifi", "fastokens", "fsspec", "huggingface_hub", "jinja2"),
    *("jinja2.compiler", "jinja2.exceptions", "jinja2.ext", "jinja2.filters", "jinja2.lexer"),
    *("jinja2.nodes", "jinja2.parser"),
    *("jinja2.runtime", "jinja2.sandbox", "jinja2.utils", "numpy", "numpy.typing", "pandas", "pyarrow"),
    *("pyarrow.parquet", "rich.console", "rich.progress", "rich.table", "rich.text", "soundfile", "soxr"),
    *("tokenizers", "torch", "torch.distributed", "torch.nn.functional", "torch.utils.data", "torch.utils.dlpack"),
    *("torchcodec", "transformers", "typer", "urllib3", "urllib3.connection", "urllib3.connectionpool"),
    *("urllib3.exceptions", "yaml", "zstandard"),
}
"""All that may be imported, besides our own modules."""
HARMLESS = {
    "ast": "Add BinOp Constant Div Mult Sub USub UnaryOp dump expr operator parse",
    "importlib": "metadata.PackageNotFoundError metadata.version resources.files util.find_spec",
    "inspect": "signature",
    "jinja2": """lexer.Token lexer.TokenStream
        compiler.CodeGenerator compiler.CodeGenerator._FinalizeInfo compiler.Frame exceptions.SecurityError
        exceptions.TemplateAssertionError exceptions.TemplateError exceptions.TemplateSyntaxError ext.Extension
        ext.loopcontrols nodes nodes.*
        parser.Parser runtime.Context
        runtime.LoopContext runtime.Macro runtime.Undefined utils.Namespace utils.Namespace.__init__
        utils._PassArg.context utils._PassArg.eval_context utils._PassArg.from_obj utils.pass_context""",
    "logging": "DEBUG Filter INFO LogRecord WARNING basicConfig getLogger",
    "multiprocessing": """connection.wait context.get_spawning_popen current_process get_all_start_methods
        parent_process reduction.DupFd resource_tracker.ensure_running util.Finalize util.get_temp_dir""",
    "operator": "add floordiv index itemgetter length_hint mul pow sub truediv",
    "pandas": "DataFrame Index",
    "pyarrow": """Array.from_buffers ArrowException ArrowInvalid ArrowNotImplementedError BaseExtensionType
        BufferReader Codec DictionaryArray.from_arrays ExtensionType OSFile PythonFile RecordBatch.from_pylist
        Table.from_arrays Table.from_batches Table.from_pylist __version__ __version__.split array binary binary_view
        bool_ chunked_array concat_tables default_memory_pool dictionary field int64 large_binary large_list
        large_string list_ map_
        parquet.ParquetFile parquet.ParquetWriter parquet.read_metadata parquet.read_table parquet.write_table
        py_buffer schema string string_view struct table type_for_alias types types.*""",
    "string": "Template",
    "subprocess": "",
    "sys": """argv exception executable exit float_info.min get_int_max_str_digits getsizeof is_finalizing""",
    "torch": """Generator Tensor as_tensor cat cuda.Stream cuda.current_device cuda.is_available device
        distributed.ReduceOp.MAX distributed.all_reduce distributed.distributed_c10d._get_default_store
        distributed.get_rank distributed.get_world_size distributed.new_group empty equal exp float32 from_numpy
        full_like get_rng_state int32 int64 manual_seed nn.Dropout nn.Embedding nn.GELU nn.LayerNorm nn.Linear
        nn.Module nn.ModuleList nn.Sequential nn.functional.cross_entropy nn.functional.interpolate
        nn.functional.linear nn.functional.scaled_dot_product_attention nn.init.normal_ nn.utils.clip_grad_norm_
        ones_like optim.AdamW optim.Optimizer randint round save set_num_threads set_rng_state stack strided tensor
        uint8 use_deterministic_algorithms utils.data.IterableDataset utils.data.get_worker_info
        utils.dlpack.from_dlpack where""",
    "transformers": "",
    "types": "MappingProxyType NoneType TracebackType UnionType",
    "yaml": """AliasEvent CSafeLoader CollectionEndEvent CollectionStartEvent MappingNode MarkedYAMLError Node
        NodeEvent SafeDumper SafeLoader ScalarEvent ScalarNode SequenceNode YAMLError compose
        constructor.SafeConstructor dump parse reader.ReaderError safe_load""",
    "numpy.random": "RandomState default_rng",
    "numpy.lib": "stride_tricks.sliding_window_view",
}
"""Modules that can run code, and all that may be used of them without a reason. A star is any one name."""
REFUSED = {
    *("eval", "exec", "compile", "__import__", "breakpoint", "globals", "locals", "__builtins__"),
    *("os.system", "os.popen", "os.startfile", "PIL.ImageMath", "typing.get_type_hints", "shutil.unpack_archive"),
    *("numpy.load", "numpy.DataSource", "numpy.char", "numpy.core", "numpy._core", "numpy.ctypeslib", "numpy.f2py"),
    *("numpy.dtypes", "numpy.ma", "numpy.matlib", "numpy.matrixlib", "numpy.polynomial", "numpy.rec"),
    *("numpy.strings", "numpy.testing", "numpy.distutils", "numpy.compat"),
}
"""Of builtins and of modules that are not listed above; with all that is inside."""
STARTS = ("os.exec", "os.spawn", "os.posix_spawn")
INSIDE = {
    *{module.partition(".")[0] for module in HARMLESS},
    *("os", "posix", "nt", "builtins", "bltns", "ctypes", "pickle", "marshal", "copyreg", "np", "pa", "pd", "runpy"),
}
"""Other modules import these, and so lead to them: `glob.os`."""
LOADERS = {"torch.load", "yaml.load", "yaml.load_all"}
"""Harmless if they are called in one way, and not to be handed on."""
METHODS = {
    *("mktemp", "extractall", "getoutput", "getstatusoutput", "startfile", "unpack_archive", "load_extension"),
    *("_create_unverified_context", "read_pickle", "to_pickle", "load_module", "exec_module", "open_stream"),
    *("enable_load_extension", "add_constructor", "add_multi_constructor", "attrgetter", "methodcaller"),
    *("resolve_name", "vformat", "FunctionType", "LambdaType", "CodeType", "_evaluate", "make_dataclass"),
    "ProcessPoolExecutor",
}
"""Of whatever object."""
BEHIND = {
    *("__globals__", "__builtins__", "__subclasses__", "__getattribute__", "__loader__", "__spec__", "__code__"),
    *("f_globals", "f_builtins", "f_locals", "__self__"),
    *("os", "posix", "nt", "builtins", "ctypes", "pickle", "_pickle", "marshal", "runpy", "subprocess", "importlib"),
    *("yaml", "jinja2", "np"),
}
"""Ways from any object to modules and builtins, also as a text: `sys.modules["os"]` has a text for it."""
MEANINGS = {
    "shell": False,
    "allow_pickle": False,
    "trust_remote_code": False,
    "eval_str": False,
    "weights_only": True,
    "verify": True,
    "check_hostname": True,
}
"""Arguments that may have this value only."""
GLOBALS = {"MAX_IMAGE_PIXELS", "LOAD_TRUNCATED_IMAGES", "verify_mode"}
"""Attributes of libraries that nobody but the user may change."""
WATCHED = {
    *("ForkingPickler", "all_gather_object", "import_module", "literal_eval", "Popen", "from_string", "sys.modules"),
    *("sys._getframe", "multiprocessing.get_context"),
}
"""Allowed where a reason is given, with all that is inside."""
SAFE_LOADER = "getattr(yaml, 'CSafeLoader', yaml.SafeLoader)"


def findings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and rule of everything that is not to be there, and of everything that needs a reason."""
    names = _Names(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    bases = set(map(id, _bases(tree)))
    for node in ast.walk(tree):
        found = [*_imports(node, names), *_anywhere(node, names)]
        if isinstance(node, ast.expr) and id(node) not in bases:
            found += _uses(node, names, id(node) in called)
        if isinstance(node, ast.Call):
            found += _calls(node, names, tree)
        yield from ((getattr(node, "lineno", 0), what) for what in found)


class _Names:
    """What the names of a source stand for: what was imported, and nothing else."""

    def __init__(self, tree: ast.AST) -> None:
        self._known: dict[str, str] = {}
        self._modules: set[str] = set()
        self.twice: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._modules |= {whole, alias.name}
                    self._bind(alias.asname or whole, whole)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._bind(alias.asname or alias.name, f"{node.module}.{alias.name}")

    def _bind(self, name: str, whole: str) -> None:
        before = self._known.setdefault(name, whole)
        if before != whole and not INSIDE.isdisjoint((*before.split("."), *whole.split("."))):
            self.twice.add(name)

    def of(self, node: ast.expr) -> str | None:
        """A dotted name, as it would be without any alias; None: it is of nothing that was imported."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        base, name = _step(node)
        owner = None if base is None else self.of(base)
        return None if owner is None else f"{owner}.{name}"

    def is_module(self, whole: str | None) -> bool:
        return whole in self._modules


def _step(node: ast.expr) -> tuple[ast.expr | None, str]:
    """The object of which an attribute is taken, and the attribute's name; also where `getattr` takes it."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        name = constant(node.args[1]) if len(node.args) >= 2 else None
        return (None, "") if name is None else (node.args[0], name)
    return None, ""


def _bases(tree: ast.AST) -> Iterator[ast.expr]:
    """What stands before the dot of an attribute, or is only asked whether it has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (base := _step(node)[0]) is not None:
            yield base
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr":
            yield from node.args[:1]


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


def _imports(node: ast.AST, names: _Names) -> Iterator[str]:
    if isinstance(node, ast.Import):
        modules, taken = [alias.name for alias in node.names], []
    elif isinstance(node, ast.ImportFrom):
        modules, taken = ["." * node.level + (node.module or "")], [alias.name for alias in node.names]
    else:
        return
    for module in modules:
        if module not in USABLE and not _is_ours(module):
            yield f"import {module}"
        for name in taken:
            if name == "*":
                yield f"import * from {module}"
            elif not _leads_to_harmless(f"{module}.{name}"):
                yield from _refusals(f"{module}.{name}", is_called=True)
    for alias in node.names:
        if (alias.asname or alias.name) in names.twice:
            yield f"{alias.asname or alias.name} stands for two things"


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "headrace"


def _anywhere(node: ast.AST, names: _Names) -> Iterator[str]:
    """Names that mean harm wherever they stand."""
    if not isinstance(node, ast.expr):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and names.of(node) is None and node.id in REFUSED:
        yield node.id
    base, name = _step(node)
    if base is not None and name in METHODS:
        yield f".{name}"
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name in GLOBALS:
        yield f"{name} is set"
    yield from {name, constant(node) or ""} & BEHIND


def _uses(node: ast.expr, names: _Names, is_called: bool) -> Iterator[str]:
    """Of a name with all its attributes."""
    whole = names.of(node)
    if whole is None:
        if isinstance(node, ast.Name) and node.id in ("vars", "getattr") and not is_called:
            yield f"{node.id} is handed on"
        if isinstance(node, ast.Subscript | ast.Attribute) and _is_vars(node.value):
            name = node.attr if isinstance(node, ast.Attribute) else "[...]"
            yield from {f"vars(...) {name}"} - {f"vars(...) {name}" for name in ("items", "values", "keys")}
        yield from {_step(node)[1]} & WATCHED
    elif names.is_module(whole):
        if not isinstance(getattr(node, "ctx", None), ast.Store):
            yield f"{whole} is handed on"
    else:
        yield from _refusals(whole, is_called)


def _is_vars(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars"


def _refusals(whole: str, is_called: bool) -> Iterator[str]:
    reasoned = [name for name in WATCHED if f".{name}." in f".{whole}."]
    if reasoned:
        yield from reasoned
    elif whole in LOADERS:
        if not is_called:
            yield f"{whole} is handed on"
    elif (module := _watched(whole)) is not None:
        if not _is_harmless(module, whole):
            yield whole
    elif _is_refused(whole) or _leads_elsewhere(whole):
        yield whole


def _is_refused(whole: str) -> bool:
    return whole.startswith(STARTS) or any(f"{whole}.".startswith(f"{one}.") for one in REFUSED)


def _leads_elsewhere(whole: str) -> bool:
    """To a module that is watched, by way of another one that imports it."""
    root, *inside, last = whole.split(".")
    if last in METHODS or last == "__dict__" or any(part.lstrip("_") in INSIDE for part in (*inside, last)):
        return True
    return root != "headrace" and any(part.startswith("_") for part in inside)


def _watched(whole: str) -> str | None:
    return max((module for module in HARMLESS if f"{whole}.".startswith(f"{module}.")), key=len, default=None)


def _is_harmless(module: str, whole: str) -> bool:
    rest, listed = whole[len(module) + 1 :], HARMLESS[module].split()
    owner, _, last = rest.rpartition(".")
    return rest in listed or (f"{owner}.*" in listed and not last.startswith("_"))


def _leads_to_harmless(whole: str) -> bool:
    """A module in a watched one, of which something may be used: that is looked at where it is."""
    module = _watched(whole)
    return module is not None and any(f"{module}.{name}".startswith(f"{whole}.") for name in HARMLESS[module].split())


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
    if isinstance(function, ast.Name) and function.id == "vars" and not node.args:
        yield "vars()"
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
